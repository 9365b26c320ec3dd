"""Compression: which singular values a task keeps. Section 3.6 and Algorithm 3 of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.lowrank.factors import Factors, factor_cost
from nacre.lowrank.residual import factors, load_factors

BYTES_A_NUMBER = 4


def compress(
    network: nn.Module,
    *,
    energy: float | None = None,
    rank: int | Mapping[str, int] | None = None,
    budget: int | None = None,
    exact: bool = True,
) -> None:
    """Cuts the new factors of a network to lower rank; give exactly one of the three measures.

    energy: every layer keeps the fewest singular values that hold 1 - energy of its sum of squares.
    rank:   every layer (or each one named) keeps at most so many.
    budget: all layers together cost at most so many bytes of factors, and lose the least energy.
    exact:  first make the factors an exact SVD, so that the cut is the best possible (Eckart-Young);
            False cuts the trained factors as they are, which is the paper's own step.

    >>> import nacre
    >>> network = nacre.SharedSpace(nn.Linear(4, 6)).expand(nn.Linear(6, 2))
    >>> compress(network, rank=1)
    >>> network.factors()["weight"].rank
    1
    """
    if sum(measure is not None for measure in (energy, rank, budget)) != 1:
        raise NacreError("compress takes exactly one of energy=, rank= and budget=")
    layers = {name: prepare(layer, exact=exact) for name, layer in _finite(factors(network)).items()}
    if energy is not None:
        kept = {name: rank_at_energy(layer.s, energy) for name, layer in layers.items()}
    elif budget is not None:
        kept = ranks_in_budget(layers, budget)
    else:
        kept = _given_ranks(layers, rank)
    load_factors(network, {name: truncate(layer, kept[name]) for name, layer in layers.items()})


def _finite(layers: Mapping[str, Factors]) -> Mapping[str, Factors]:
    for name, layer in layers.items():
        if not all(part.isfinite().all() for part in (layer.U, layer.s, layer.V)):
            raise NacreError(f"the factors of layer {name!r} hold numbers that are not finite: training has diverged")
    return layers


def prepare(layer: Factors, *, exact: bool = True) -> Factors:
    """The same matrix with s >= 0 in falling order: its SVD, or (exact=False) the given factors sorted."""
    with torch.no_grad():
        return exact_svd(layer) if exact else sort(layer)


def exact_svd(layer: Factors) -> Factors:
    """The SVD of U diag(s) V^T without forming it: thin QR of U and V, then the SVD of the small core.

    Worked in float64 on the CPU, so that the result is the same bits on every device that trained the factors.
    """
    if layer.rank == 0:
        return layer
    U, s, V = (part.detach().to("cpu", torch.float64) for part in (layer.U, layer.s, layer.V))
    (Qu, Ru), (Qv, Rv) = torch.linalg.qr(U), torch.linalg.qr(V)
    left, values, right = torch.linalg.svd((Ru * s) @ Rv.T, full_matrices=False)
    return Factors(*(part.to(layer.s) for part in (Qu @ left, values, Qv @ right.T)))


def sort(layer: Factors) -> Factors:
    """The same columns, largest |s| first, every sign moved into U."""
    order = layer.s.detach().abs().argsort(descending=True, stable=True)
    s = layer.s.detach()[order]
    sign = torch.where(s < 0, -1, 1).to(s)
    return Factors(layer.U.detach()[:, order] * sign, s.abs(), layer.V.detach()[:, order])


def truncate(layer: Factors, rank: int) -> Factors:
    """The first `rank` columns."""
    return Factors(layer.U[:, :rank].contiguous(), layer.s[:rank].clone(), layer.V[:, :rank].contiguous())


def rank_at_energy(s: Tensor, energy: float) -> int:
    """The smallest k whose k largest s^2 sum to at least (1 - energy) of the total; 0 if every s is 0.

    >>> rank_at_energy(torch.tensor([3.0, 0.0, 4.0]), 0.36), rank_at_energy(torch.zeros(3), 0.1)
    (1, 0)
    """
    if not isinstance(energy, Real) or not 0 <= float(energy) <= 1:
        raise NacreError(f"energy is the share of the sum of squares to give up, from 0 to 1; got {energy}")
    squares = s.detach().to("cpu", torch.float64).square().sort(descending=True).values
    if squares.numel() == 0 or squares[0] == 0:
        return 0
    held = squares.cumsum(0)
    enough = (held >= (1 - energy) * held[-1]).nonzero()
    return 0 if energy == 1 else int(enough[0]) + 1


def ranks_in_budget(layers: Mapping[str, Factors], budget: int) -> dict[str, int]:
    """How many singular values each layer keeps so that all cost at most `budget` bytes and lose the least energy.

    A layer's values fall while their price is constant, so taking them by energy per byte is optimal but for the
    last one: the energy lost exceeds the smallest possible by less than that of one rank.
    """
    if not isinstance(budget, Real) or not float(budget) >= 0:  # NaN neither
        raise NacreError(f"budget is a number of bytes, 0 or more; got {budget}")
    prices = {name: BYTES_A_NUMBER * factor_cost(*layer.shape) for name, layer in layers.items()}
    offers = [
        (-value / prices[name], position, index, name)
        for position, (name, layer) in enumerate(layers.items())
        for index, value in enumerate(layer.s.detach().to("cpu", torch.float64).square().tolist())
        if value > 0
    ]
    kept = dict.fromkeys(layers, 0)
    left = budget
    for _, _, index, name in sorted(offers):
        if index == kept[name] and prices[name] <= left:  # a layer keeps a prefix: once one is too dear, none follows
            kept[name] += 1
            left -= prices[name]
    return kept


def _given_ranks(layers: Mapping[str, Factors], rank: int | Mapping[str, int] | None) -> dict[str, int]:
    given = dict(rank) if isinstance(rank, Mapping) else dict.fromkeys(layers, rank or 0)
    unknown = [name for name in given if name not in layers]
    if unknown or not all(isinstance(value, Integral) and value >= 0 for value in given.values()):
        raise NacreError(f"rank must be 0 or more, for layers among {', '.join(layers)}; got {rank}")
    return {name: min(given.get(name, layer.rank), layer.rank) for name, layer in layers.items()}
