"""Initial factors: where the training of a task begins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.lowrank.factors import Factors, full_rank


@dataclass(frozen=True)
class Start:
    """How new factors are drawn.

    kind="svd":    the truncated SVD of an ordinary initialisation; of the backbone's own weights for the first task.
    kind="random": the authors' draw, for every task: U and V Kaiming-normal, s standard normal.
    later:         what s is multiplied by for tasks after the first; near 0 they begin at the shared solution.

    >>> Start(later=0.0).later_factors(6, 4).s.abs().sum()
    tensor(0.)
    """

    kind: Literal["svd", "random"] = "svd"
    later: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in ("svd", "random") or not isinstance(self.later, Real) or not 0 <= self.later < math.inf:
            raise NacreError(f"Start takes kind 'svd' or 'random' and later >= 0; got {self.kind!r} and {self.later!r}")

    def first_factors(self, weight: Tensor, rank: int | None = None) -> Factors:
        """For a task that starts from a dense weight of its own."""
        matrix = weight.detach().flatten(1)
        rank = _rank(matrix.shape[0], matrix.shape[1], rank)
        return (
            svd_factors(matrix, rank) if self.kind == "svd" else random_factors(matrix.shape[0], matrix.shape[1], rank)
        )

    def later_factors(self, out: int, rest: int, rank: int | None = None) -> Factors:
        """For a task that starts from a frozen sum."""
        rank = _rank(out, rest, rank)
        if self.kind == "random":
            return random_factors(out, rest, rank)
        drawn = svd_factors(ordinary(out, rest), rank)
        return Factors(drawn.U, drawn.s * self.later, drawn.V)


def _rank(out: int, rest: int, rank: int | None) -> int:
    if rank is not None and (not isinstance(rank, Integral) or rank < 0):
        raise NacreError(f"rank must be a whole number, 0 or more; got {rank!r}")
    return full_rank(out, rest) if rank is None else min(rank, out, rest)


def ordinary(out: int, rest: int) -> Tensor:
    """A weight matrix as torch's layers draw theirs: uniform within 1/sqrt(fan in)."""
    return torch.empty(out, rest, dtype=torch.float32).uniform_(-1, 1) / math.sqrt(rest)


def svd_factors(matrix: Tensor, rank: int) -> Factors:
    """The best approximation of a matrix at a rank; U and V are orthonormal."""
    U, s, Vh = torch.linalg.svd(matrix.to("cpu", torch.float64), full_matrices=False)
    return Factors(*(part.to(torch.float32).contiguous() for part in (U[:, :rank], s[:rank], Vh[:rank].T)))


def random_factors(out: int, rest: int, rank: int) -> Factors:
    """The published code's draw: Kaiming-normal U [out, r] and V^T [r, rest], standard normal s."""
    U, s, V = (torch.randn(*shape, dtype=torch.float32) for shape in ((out, rank), (rank,), (rest, rank)))
    return Factors(U * math.sqrt(2 / max(1, rank)), s, V * math.sqrt(2 / rest))
