"""What keeps factors in the form of an SVD and their rank low while they are trained: Section 3.5 of the paper."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nacre.lowrank.factors import Factors
from nacre.lowrank.residual import factors


def orthogonality(network: nn.Module, *, squared: bool = True) -> Tensor:
    """Sum over the layers' U and V of |Gram - I|_F^2 / r^2 (`squared=False`: the paper's norm, not squared).

    Takes any network that `SharedSpace.expand` gave, wrapped by DDP or torch.compile or not.
    """
    return _total(network, lambda layer: layer_orthogonality(layer, squared=squared))


def hoyer(network: nn.Module) -> Tensor:
    """Sum over the layers of |s|_1 / |s|_2: 1 at rank one, sqrt(r) when all singular values are equal."""
    return _total(network, lambda layer: layer_hoyer(layer.s))


def layer_orthogonality(layer: Factors, *, squared: bool = True, smaller: bool = False) -> Tensor:
    """The term of one layer; a layer of rank 0 has none.

    smaller: the authors' way with more columns than rows: the Gram matrix of the rows, over their number squared.
    """
    if layer.rank == 0:
        return layer.s.sum()
    sides = [part.T if smaller and part.shape[0] < part.shape[1] else part for part in (layer.U, layer.V)]
    terms = [
        cast(Tensor, _GramError.apply(side))  # type: ignore[no-untyped-call]
        for side in sides
    ]
    if not squared:
        # the norm's gradient does not exist at 0: there it is 0
        terms = [torch.where(term > 0, term, 1).sqrt() * (term > 0) for term in terms]
    first, second = (term / side.shape[1] ** 2 for term, side in zip(terms, sides, strict=True))
    total: Tensor = first + second
    return total


def layer_hoyer(s: Tensor) -> Tensor:
    """|s|_1 / |s|_2 of one layer; 0, with gradient 0, where every s is 0."""
    if s.numel() == 0:
        return s.sum()
    peak = s.detach().abs().max()
    empty = peak == 0
    unit = s / torch.where(empty, 1, peak)  # the ratio does not depend on scale: no overflow, no underflow
    return unit.abs().sum() / (unit.square().sum() + empty).sqrt()


def _total(network: nn.Module, term: Any) -> Tensor:
    device = next(network.parameters()).device
    with torch.autocast(device.type, enabled=False):
        terms = [term(layer) for layer in factors(network).values()]
        return torch.stack(terms).sum() if terms else torch.zeros((), device=device)


class _GramError(torch.autograd.Function):
    """|P^T P - I|_F^2. Its gradient is 4 P (P^T P - I): one product, where autograd would spend two."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        error = part.T @ part
        error.diagonal().sub_(1)
        ctx.save_for_backward(part, error)
        return error.square().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        part, error = ctx.saved_tensors
        slope: Tensor = part @ error
        return slope.mul_(4 * gradient)
