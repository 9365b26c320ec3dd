"""How large what has been learnt is: every number needed at inference, at 4 bytes, MB = 1e6 bytes."""

from __future__ import annotations

from dataclasses import dataclass, fields

BYTES_A_NUMBER = 4


@dataclass(frozen=True)
class Size:
    """Counts of numbers, by what they are for, and the bytes they take in files.

    >>> Size(factors=250_000).megabytes
    1.0
    """

    factors: int = 0
    heads: int = 0
    private: int = 0  # norm tensors, biases
    frozen: int = 0  # tensors shared by all tasks
    extra: int = 0
    identifiers: int = 0  # one rank a layer and task
    base: int = 0  # a dense base, if there is one
    disk: int | None = None  # bytes; None where nothing has been saved

    @property
    def numbers(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self) if part.name != "disk")

    @property
    def megabytes(self) -> float:
        return self.numbers * BYTES_A_NUMBER / 1e6
