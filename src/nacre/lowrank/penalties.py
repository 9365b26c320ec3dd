"""What keeps factors in the form of an SVD and their rank low while they are trained: Section 3.5 of the paper."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pad_sequence

from nacre.lowrank.factors import Factors
from nacre.lowrank.residual import factors


def orthogonality(network: nn.Module, *, squared: bool = True) -> Tensor:
    """Sum over the layers' U and V of |Gram - I|_F^2 / r^2 (`squared=False`: the paper's norm, not squared).

    Takes any network that `SharedSpace.expand` gave, wrapped by DDP or torch.compile or not.

    >>> import nacre
    >>> network = nacre.SharedSpace(nn.Linear(4, 6)).expand(nn.Linear(6, 2))
    >>> network.load_factors({"weight": Factors(torch.ones(6, 1), torch.ones(1), torch.eye(4)[:, :1])})
    >>> orthogonality(network).item()  # of U (6 - 1)^2, of V nothing
    25.0
    """
    return orthogonality_of(factors(network).values(), squared=squared)


def hoyer(network: nn.Module) -> Tensor:
    """Sum over the layers of |s|_1 / |s|_2: 1 at rank one, sqrt(r) when all singular values are equal.

    >>> import nacre
    >>> network = nacre.SharedSpace(nn.Linear(4, 6)).expand(nn.Linear(6, 2), rank=1)
    >>> hoyer(network).item()
    1.0
    """
    return hoyer_of(factors(network).values())


def orthogonality_of(layers: Iterable[Factors], *, squared: bool = True, smaller: bool = False) -> Tensor:
    """The same of any factors; those of rank 0 add nothing.

    smaller: the authors' way with more columns than rows: the Gram matrix of the rows, over their number squared.
    """
    present, nothing = _with_rank(layers)
    parts = [part for layer in present for part in (layer.U, layer.V)]
    sides = [part.T if smaller and part.shape[0] < part.shape[1] else part for part in parts]
    return _apply(_GramError, squared, *sides) if sides else nothing


def hoyer_of(layers: Iterable[Factors]) -> Tensor:
    """The same of any factors; those of rank 0, or whose every s is 0, add nothing."""
    present, nothing = _with_rank(layers)
    return _apply(_Hoyer, *(layer.s for layer in present)) if present else nothing


def _with_rank(layers: Iterable[Factors]) -> tuple[list[Factors], Tensor]:
    """The layers that have a rank, and what the penalty is where none has: 0, that can be differentiated."""
    all_layers = list(layers)
    present = [layer for layer in all_layers if layer.rank]
    if present or not all_layers:
        return present, torch.zeros(())
    return [], torch.cat([layer.s for layer in all_layers]).sum()


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    with torch.autocast(arguments[-1].device.type, enabled=False):
        return cast(Tensor, function.apply(*arguments))


# Gradients by hand, for all layers at once: both penalties stand in every training step, and what autograd would spend
# on them, twice the products and an operation for each sign, is a tenth of a small network's step.


class _GramError(torch.autograd.Function):
    """Sum of |P^T P - I|_F^2 / r^2; the gradient of a term is 4 P (P^T P - I) / r^2."""

    @staticmethod
    def forward(ctx: Any, squared: bool, *parts: Tensor) -> Tensor:
        errors = [part.T @ part for part in parts]
        for error in errors:
            error.diagonal().sub_(1)
        values = [torch.dot(error.view(-1), error.view(-1)) for error in errors]
        # numbers of Python's: a tensor made of the ranks would make an accelerator wait in every step
        squares = [error.shape[0] ** 2 for error in errors]
        if squared:
            ctx.scales = [4 / square for square in squares]
        else:
            values = [value.sqrt() for value in values]
            # the norm's gradient does not exist at 0: there it is 0
            ctx.scales = [torch.where(v > 0, 2 / (square * v), 0) for v, square in zip(values, squares, strict=True)]
        ctx.save_for_backward(*parts, *errors)
        return torch.stack([value / square for value, square in zip(values, squares, strict=True)]).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        parts, errors = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        slopes = [
            (part @ error).mul_(scale * gradient) for part, error, scale in zip(parts, errors, ctx.scales, strict=True)
        ]
        return None, *slopes


class _Hoyer(torch.autograd.Function):
    """Sum of |s|_1 / |s|_2; the gradient of a term is sign(s) / |s|_2 - s |s|_1 / |s|_2^3."""

    @staticmethod
    def forward(ctx: Any, *singular: Tensor) -> Tensor:
        rows = pad_sequence(list(singular), batch_first=True)  # [layers, r]; a 0 adds nothing to any norm
        # the ratio does not depend on scale: measured against the largest s nothing overflows or underflows
        peaks = rows.abs().amax(1, keepdim=True)
        peaks = torch.where(peaks > 0, peaks, 1)
        units = rows / peaks
        # a unit's length is at least 1, but where every s is 0
        lengths = torch.linalg.vector_norm(units, dim=1, keepdim=True).clamp(min=1)
        values = torch.linalg.vector_norm(units, 1, dim=1, keepdim=True) / lengths
        ctx.ranks = [len(s) for s in singular]
        ctx.save_for_backward(units, peaks, lengths, values)
        total: Tensor = values.sum()
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        units, peaks, lengths, values = ctx.saved_tensors
        slopes = (units.sign() - units * (values / lengths)) * (gradient / (peaks * lengths))
        return tuple(slope[:rank] for slope, rank in zip(slopes, ctx.ranks, strict=True))
