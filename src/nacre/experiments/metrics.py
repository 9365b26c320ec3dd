"""ACC and BWT of an accuracy matrix: row i holds the accuracies on tasks 0..i after task i was learnt."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

Row = Sequence[float]


def acc(matrix: Sequence[Row]) -> float:
    """The mean accuracy over all tasks after the last one.

    >>> acc([[90.0], [80.0, 70.0]])
    75.0
    """
    return fmean(matrix[-1])


def bwt(matrix: Sequence[Row]) -> float:
    """How much accuracy on earlier tasks changed since each was learnt, on average; below 0 is forgetting.

    >>> bwt([[90.0], [80.0, 70.0]])
    -10.0
    """
    changes = [matrix[-1][task] - matrix[task][task] for task in range(len(matrix) - 1)]
    return fmean(changes) if changes else 0.0


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the sample's standard deviation; 0 for one value.

    >>> mean_and_std([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return fmean(values), stdev(values) if len(values) > 1 else 0.0
