"""How large what has been learnt is: every number needed at inference, at 4 bytes or what it is stored in."""

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
    saved: int = 0  # bytes by which factors and heads in fewer bits take less than 4 a number
    disk: int | None = None  # bytes; None where nothing has been saved

    @property
    def numbers(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self) if part.name not in ("saved", "disk"))

    @property
    def megabytes(self) -> float:
        return self.bytes / 1e6

    @property
    def bytes(self) -> int:
        """4 a number, less what storing some in fewer bits saves."""
        return self.numbers * BYTES_A_NUMBER - self.saved
