"""Factors: one weight matrix as U diag(s) V^T, and the sizes that follow from its shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nacre.errors import NacreError


@dataclass(frozen=True, eq=False)
class Factors:
    """The matrix U diag(s) V^T; rank 0 is the zero matrix.

    >>> factors = Factors(torch.eye(3)[:, :2], torch.tensor([2.0, 1.0]), torch.eye(4)[:, :2])
    >>> factors.rank, tuple(factors.weight().shape)
    (2, (3, 4))
    """

    U: Tensor  # [out, r]
    s: Tensor  # [r]
    V: Tensor  # [rest, r]

    def __post_init__(self) -> None:
        if not all(isinstance(part, Tensor) for part in (self.U, self.s, self.V)):
            kinds = ", ".join(type(part).__name__ for part in (self.U, self.s, self.V))
            raise NacreError(f"factors are three tensors U, s and V; got {kinds}")
        shapes = tuple(tuple(part.shape) for part in (self.U, self.s, self.V))
        fits = tuple(map(len, shapes)) == (2, 1, 2) and shapes[0][1] == shapes[1][0] == shapes[2][1]
        if not fits:
            raise NacreError(
                f"factors must have shapes U [out, r], s [r], V [rest, r]; got {shapes[0]}, {shapes[1]}, {shapes[2]}"
            )

    @property
    def rank(self) -> int:
        """How many singular values, 0 too."""
        return self.s.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """(out, rest): the shape of the matrix."""
        return self.U.shape[0], self.V.shape[0]

    def weight(self) -> Tensor:
        """The matrix itself, [out, rest]."""
        return (self.U * self.s) @ self.V.T

    def detach(self) -> Factors:
        """A copy that shares no storage and no graph with this one, on the CPU."""
        return Factors(*(part.detach().to("cpu", copy=True).contiguous() for part in (self.U, self.s, self.V)))

    @staticmethod
    def zero(out: int, rest: int) -> Factors:
        """The factors of rank 0."""
        return Factors(*(torch.empty(*shape, dtype=torch.float32) for shape in ((out, 0), (0,), (rest, 0))))


def concatenate(parts: Sequence[Factors]) -> Factors:
    """The sum of several matrices as one set of factors: the paper's U<=t, S<=t, V<=t.

    >>> one = Factors(torch.ones(2, 1), torch.ones(1), torch.ones(3, 1))
    >>> concatenate([one, one]).rank
    2
    """
    return Factors(
        torch.cat([part.U for part in parts], 1),
        torch.cat([part.s for part in parts]),
        torch.cat([part.V for part in parts], 1),
    )


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """The matrix a weight tensor is read as: `weight.flatten(1)`.

    >>> matrix_shape((64, 3, 3, 3))
    (64, 27)
    """
    return shape[0], int(torch.Size(shape[1:]).numel())


def full_rank(out: int, rest: int) -> int:
    """The paper's r: as many columns as cost no more numbers than the dense matrix, at least 1.

    >>> full_rank(64, 27)
    18
    """
    return max(1, out * rest // factor_cost(out, rest))


def factor_cost(out: int, rest: int) -> int:
    """Numbers that one singular value costs: a column of U, the value, a column of V.

    >>> factor_cost(64, 27)
    92
    """
    return out + rest + 1
