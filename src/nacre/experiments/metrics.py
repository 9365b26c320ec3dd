"""ACC, BWT and forgetting of an accuracy matrix: row i holds the accuracies on tasks 0..i after task i was learnt."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

Row = Sequence[float]
AVERAGED = ("acc", "bwt", "forgetting", "megabytes")


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


def forgetting(matrix: Sequence[Row]) -> float:
    """How far the earlier tasks are below the best they ever were, on average (Chaudhry et al. 2018).

    >>> forgetting([[90.0], [95.0, 70.0], [80.0, 75.0, 60.0]])
    5.0
    """
    count = len(matrix) - 1
    best = [max(row[task] for row in matrix[task:-1]) for task in range(count)]
    return fmean(best[task] - matrix[-1][task] for task in range(count)) if count else 0.0


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the sample's standard deviation; 0 for one value.

    >>> mean_and_std([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def printed(mean: float, std: float | None = None, digits: int = 2) -> str:
    """A mean and its deviation as the paper prints them; a single value alone.

    >>> printed(86.194, 0.377), printed(86.194)
    ('86.19(0.38)', '86.19')
    """
    return f"{mean:.{digits}f}" + (f"({std:.{digits}f})" if std is not None else "")


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One run as it is; several as means, standard deviations and the runs themselves."""
    if len(runs) == 1:
        return dict(runs[0])
    found = {key: mean_and_std([run[key] for run in runs]) for key in AVERAGED}
    means, deviations = ({key: both[at] for key, both in found.items()} for at in (0, 1))
    return {**means, "std": deviations, "runs": list(runs)}
