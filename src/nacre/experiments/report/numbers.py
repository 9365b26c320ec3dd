"""A number as the papers of this field print it: the mean over seeds, its standard deviation in brackets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nacre.experiments.metrics import mean_and_std

_PRINTED = re.compile(r"(-?\d+(?:\.(\d+))?)(?:\((\d+\.\d+)\))?")


@dataclass(frozen=True)
class Number:
    """A mean; std is None where there was one value only."""

    mean: float
    std: float | None = None
    digits: int = 2

    def __str__(self) -> str:
        mean = f"{self.mean:.{self.digits}f}"
        return mean if self.std is None else f"{mean}({self.std:.{max(self.digits, 2)}f})"

    @staticmethod
    def of(values: Sequence[float], digits: int = 2) -> Number | None:
        """The mean of what was measured; None of nothing.

        >>> str(Number.of([85.0, 86.0, 87.0])), str(Number.of([0.25], 3)), Number.of([])
        ('86.00(1.00)', '0.250', None)
        """
        if not values:
            return None
        mean, std = mean_and_std(values)
        return Number(mean, std if len(values) > 1 else None, digits)

    @staticmethod
    def printed(text: str) -> Number:
        """A number from print, with as many digits as it has there.

        >>> Number.printed("89.2(0.32)"), str(Number.printed("89.2(0.32)"))
        (Number(mean=89.2, std=0.32, digits=1), '89.2(0.32)')
        """
        found = _PRINTED.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no printed number")
        return Number(float(found[1]), None if found[3] is None else float(found[3]), len(found[2] or ""))


def megabytes(values: Sequence[float]) -> Number | None:
    """A size with the digits that tell it from others: 8.68, 0.266, 0.0213."""
    number = Number.of(values)
    if number is None:
        return None
    digits = next((digits for digits, least in ((2, 1.0), (3, 0.1), (4, 0.01)) if number.mean >= least), 5)
    return Number(number.mean, number.std, digits)
