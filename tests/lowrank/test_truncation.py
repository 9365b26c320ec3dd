"""Compression: by energy, by rank, by budget; against numpy's SVD in float64 and brute force."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nacre import Factors, NacreError, SharedSpace, compress
from nacre.lowrank import full_rank, prepare, rank_at_energy
from nacre.space import Network

FLOAT32 = 1e-6  # a factor's rounding to float32, over a few dozen additions, relative to the matrix's norm
energies = st.one_of(st.sampled_from([0.0, 1e-5, 0.01, 0.1, 0.5, 0.9, 1.0]), st.floats(0, 1))


def drawn(out: int, rest: int, rank: int, seed: int) -> Factors:
    """Factors as training leaves them: U and V not orthogonal, s of any sign and of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    U, s, V = (torch.randn(shape, generator=generator) for shape in ((out, rank), (rank,), (rest, rank)))
    return Factors(U, s * torch.logspace(0, -2, rank)[torch.randperm(rank, generator=generator)], V)


def matrix(factors: Factors) -> np.ndarray:
    U, s, V = (part.detach().numpy().astype(np.float64) for part in (factors.U, factors.s, factors.V))
    product: np.ndarray = U @ np.diag(s) @ V.T
    return product


def norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix))


def network_with(*layers: Factors) -> Network:
    """An expanded network whose layers are matrices of these factors' shapes, by the names "0", "1", ..."""
    backbone = nn.Sequential(*(nn.Linear(layer.shape[1], layer.shape[0]) for layer in layers))
    network = SharedSpace(backbone).expand(nn.Linear(layers[-1].shape[0], 2))
    network.load_factors({str(index): layer for index, layer in enumerate(layers)})
    return network


def compressed(layer: Factors, energy: float, *, exact: bool = True) -> Factors:
    network = network_with(layer)
    compress(network, energy=energy, exact=exact)
    return network.factors()["0"]


def tail(values: np.ndarray, kept: int) -> float:
    """The energy of all but the largest `kept` values."""
    return float((np.sort(np.abs(values))[::-1][kept:] ** 2).sum())


def assert_smallest_rank_that_holds(values: np.ndarray, energy: float, kept: int) -> None:
    """Up to rounding where the sum lies on the border itself."""
    total = tail(values, 0)
    if total == 0:
        assert kept == 0
        return
    assert tail(values, kept) <= energy * total + 1e-9 * total, "too few are kept"
    assert kept == 0 or tail(values, kept - 1) > energy * total - 1e-9 * total, "fewer would do"


# by energy


@settings(deadline=None, max_examples=150)
@given(st.lists(st.floats(-100, 100, width=32), max_size=12), energies)
def test_the_rank_kept_is_the_smallest_that_holds_the_energy(values: list[float], energy: float) -> None:
    kept = rank_at_energy(torch.tensor(values), energy)
    assert_smallest_rank_that_holds(np.array(values, dtype=np.float64), energy, kept)


@pytest.mark.parametrize(
    ("energy", "kept"), [(0.0, 3), (0.03, 3), (1 / 26, 2), (0.3, 2), (10 / 26, 1), (0.9, 1), (1.0, 0)]
)
def test_ranks_worked_by_hand(energy: float, kept: int) -> None:
    """s^2 = 16, 9, 1 of 26, in another order and with a sign."""
    assert rank_at_energy(torch.tensor([1.0, 0.0, 4.0, -3.0]), energy + 1e-12 * (0 < energy < 1)) == kept


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 8), st.integers(1, 8), st.integers(1, 10), st.integers(0, 999), st.sampled_from([1e-5, 0.01, 0.2])
)
def test_cut_error_is_the_discarded_energy(out: int, rest: int, rank: int, seed: int, energy: float) -> None:
    """Eckart-Young: no matrix of that rank is nearer, and the squared error is the sum of the squares given up."""
    layer = drawn(out, rest, rank, seed)
    whole = matrix(layer)
    values = np.linalg.svd(whole, compute_uv=False)
    cut = compressed(layer, energy)
    assert_smallest_rank_that_holds(np.concatenate([values, np.zeros(1)]), energy, cut.rank)
    error = norm(whole - matrix(cut))
    assert error == pytest.approx(np.sqrt(tail(values, cut.rank)), abs=FLOAT32 * norm(whole))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 10), st.integers(0, 999))
def test_the_exact_form_is_the_svd_of_the_same_matrix(out: int, rest: int, rank: int, seed: int) -> None:
    layer = drawn(out, rest, rank, seed)
    exact = prepare(layer)
    whole = matrix(layer)
    scale = norm(whole)
    np.testing.assert_allclose(matrix(exact), whole, atol=FLOAT32 * scale)
    values = exact.s.numpy().astype(np.float64)
    np.testing.assert_allclose(values, np.linalg.svd(whole, compute_uv=False)[: exact.rank], atol=FLOAT32 * scale)
    assert (np.diff(values) <= 0).all()
    assert (values >= 0).all()
    for part in (exact.U.double().numpy(), exact.V.double().numpy()):
        np.testing.assert_allclose(part.T @ part, np.eye(exact.rank), atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(0, 999), energies)
def test_the_inexact_cut_is_the_papers_own_step(rank: int, seed: int, energy: float) -> None:
    """Columns sorted by |s|, signs moved into U, the smallest k by the trained s itself; nothing orthogonalised."""
    layer = drawn(5, 7, rank, seed)
    U, s, V = (part.numpy() for part in (layer.U, layer.s, layer.V))
    cut = compressed(layer, energy, exact=False)
    assert_smallest_rank_that_holds(s.astype(np.float64), energy, cut.rank)
    order = sorted(range(rank), key=lambda column: -abs(s[column]))[: cut.rank]
    np.testing.assert_array_equal(cut.s.detach().numpy(), np.abs(s)[order])
    np.testing.assert_array_equal(cut.U.detach().numpy(), U[:, order] * np.sign(s)[order])
    np.testing.assert_array_equal(cut.V.detach().numpy(), V[:, order])


def test_the_exact_cut_is_nearer_than_the_inexact_one_where_columns_are_not_orthogonal() -> None:
    column = torch.tensor([[1.0], [0.0]])
    layer = Factors(torch.cat([column, column], 1), torch.tensor([1.0, -1.0]), torch.eye(2)[:, :1].repeat(1, 2))
    assert compressed(layer, 0.1).rank == 0, "the two columns cancel: the matrix is zero"
    assert compressed(layer, 0.1, exact=False).rank == 2


def test_without_energy_to_give_up_the_matrix_stays() -> None:
    layer = drawn(6, 9, 4, seed=1)
    for exact in (True, False):
        cut = compressed(layer, 0.0, exact=exact)
        np.testing.assert_allclose(matrix(cut), matrix(layer), atol=FLOAT32 * norm(matrix(layer)))


def test_an_all_zero_layer_has_rank_zero_and_the_network_still_runs_and_learns() -> None:
    zero = Factors(torch.randn(5, 3), torch.zeros(3), torch.randn(4, 3))
    network = network_with(zero, drawn(3, 5, 2, seed=0))
    compress(network, energy=1e-5)
    factors = network.factors()
    assert factors["0"].rank == 0
    assert factors["1"].rank > 0
    network.eval()
    x = torch.randn(6, 4)
    bias = network.get_parameter("backbone.0.bias")
    assert torch.equal(network.backbone.get_submodule("0")(x), bias.expand(6, 5))
    network(x).sum().backward()
    assert bias.grad is not None


def test_the_cut_factors_are_trainable_and_independent_of_the_ones_before() -> None:
    network = network_with(drawn(5, 4, 3, seed=0))
    before = network.factors()["0"]
    compress(network, rank=2)
    after = network.factors()["0"]
    assert all(part.requires_grad and part.is_leaf for part in (after.U, after.s, after.V))
    with torch.no_grad():
        before.s.fill_(100)
    assert after.s.max() < 100
    named = dict(network.named_parameters())
    assert named["backbone.0.parametrizations.weight.0.s"] is after.s


# by rank


def test_by_rank_every_layer_keeps_at_most_so_many_of_the_largest() -> None:
    layers = [drawn(6, 6, 4, seed=1), drawn(6, 6, 2, seed=2)]
    network = network_with(*layers)
    compress(network, rank=3)
    cut = network.factors()
    assert [layer.rank for layer in cut.values()] == [3, 2]
    values = np.linalg.svd(matrix(layers[0]), compute_uv=False)
    np.testing.assert_allclose(cut["0"].s.detach().numpy(), values[:3], rtol=1e-5)


def test_by_rank_for_named_layers_the_others_keep_theirs() -> None:
    network = network_with(*(drawn(6, 6, 4, seed) for seed in range(3)))
    compress(network, rank={"1": 0, "2": 9})
    assert [layer.rank for layer in network.factors().values()] == [4, 0, 4]


# by budget


def bytes_of(layers: Mapping[str, Factors]) -> int:
    return sum(part.numel() * part.element_size() for f in layers.values() for part in (f.U, f.s, f.V))


def least_loss(values: Sequence[np.ndarray], prices: Sequence[int], budget: int) -> float:
    """The smallest energy that can be lost within a budget, by trying every choice of ranks."""
    choices = itertools.product(*(range(len(each) + 1) for each in values))
    return min(
        sum(tail(each, kept) for each, kept in zip(values, ranks, strict=True))
        for ranks in choices
        if sum(kept * price for kept, price in zip(ranks, prices, strict=True)) <= budget
    )


@settings(deadline=None, max_examples=60)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3),
    share=st.floats(0, 1.2),
    seed=st.integers(0, 999),
    exact=st.booleans(),
)
def test_a_budget_is_kept_and_loses_no_more_than_one_rank_above_the_least(
    shapes: list[tuple[int, int]], share: float, seed: int, exact: bool
) -> None:
    layers = [drawn(out, rest, min(4, out, rest), seed + at) for at, (out, rest) in enumerate(shapes)]
    network = network_with(*layers)
    budget = int(share * bytes_of(network.factors()))
    compress(network, budget=budget, exact=exact)
    cut = network.factors()
    assert bytes_of(cut) <= budget
    values = [np.linalg.svd(matrix(f), compute_uv=False) if exact else f.s.double().numpy() for f in layers]
    values = [np.sort(np.abs(each))[::-1][: layer.rank] for each, layer in zip(values, layers, strict=True)]
    prices = [4 * (out + rest + 1) for out, rest in shapes]
    ranks = [layer.rank for layer in cut.values()]
    lost = sum(tail(each, kept) for each, kept in zip(values, ranks, strict=True))
    total = sum(tail(each, 0) for each in values)
    one_rank = max((each[kept] ** 2 for each, kept in zip(values, ranks, strict=True) if kept < len(each)), default=0.0)
    assert lost <= least_loss(values, prices, budget) + one_rank + 1e-9 * total
    left = budget - bytes_of(cut)
    room = [
        price
        for each, kept, price in zip(values, ranks, prices, strict=True)
        if kept < len(each) and each[kept] ** 2 > 1e-9 * total
    ]
    assert all(price > left for price in room), "another rank would have fitted"


def test_a_budget_worked_by_hand() -> None:
    """Layer 0 costs 28 bytes a rank, layer 1 52: by energy a byte the order is 0, 1, 0 (all but the last fit)."""
    cheap = Factors(torch.eye(3)[:, :2], torch.tensor([3.0, 1.0]), torch.eye(3)[:, :2])
    dear = Factors(torch.eye(6)[:, :2], torch.tensor([2.0, 1.0]), torch.eye(6)[:, :2])
    for budget, ranks in ((27, [0, 0]), (28, [1, 0]), (79, [2, 0]), (80, [1, 1]), (107, [1, 1]), (108, [2, 1])):
        backbone = nn.ModuleList([nn.Linear(3, 3), nn.Linear(6, 6)])
        network = SharedSpace(backbone).expand(nn.Linear(6, 2))
        network.load_factors({"0": cheap, "1": dear})
        compress(network, budget=budget)
        assert [layer.rank for layer in network.factors().values()] == ranks, budget


# what is refused


def test_exactly_one_measure_must_be_given() -> None:
    network = network_with(drawn(3, 3, 1, seed=0))
    for energy, rank, budget in ((None, None, None), (0.1, 1, None), (None, 1, 8), (0.1, 1, 8)):
        with pytest.raises(NacreError, match="exactly one of energy=, rank= and budget="):
            compress(network, energy=energy, rank=rank, budget=budget)


@pytest.mark.parametrize("energy", [-0.1, 1.5, float("nan")])
def test_an_energy_that_is_no_share_is_refused(energy: float) -> None:
    network = network_with(drawn(3, 3, 1, seed=0))
    with pytest.raises(NacreError, match=f"from 0 to 1; got {energy}"):
        compress(network, energy=energy)


def test_a_refused_compression_changes_nothing() -> None:
    network = network_with(drawn(3, 3, 2, seed=0), drawn(3, 3, 2, seed=1))
    before = {name: layer.detach() for name, layer in network.factors().items()}
    for budget in (-4, float("nan"), "4"):
        with pytest.raises(NacreError, match=f"bytes, 0 or more; got {budget}"):
            compress(network, budget=budget)  # type: ignore[arg-type]
    with pytest.raises(NacreError, match=r"for layers among 0, 1; got \{'conv': 1\}"):
        compress(network, rank={"conv": 1})
    with pytest.raises(NacreError, match="rank must be 0 or more"):
        compress(network, rank=-1)
    with torch.no_grad():
        network.factors()["1"].V[0, 0] = float("nan")
    for exact in (True, False):
        with pytest.raises(NacreError, match="layer '1' hold numbers that are not finite"):
            compress(network, energy=0.1, exact=exact)
    after = network.factors()
    assert torch.equal(after["0"].weight(), before["0"].weight())
    assert torch.equal(after["1"].U, before["1"].U)


def test_full_rank_factors_of_any_matrix_lose_nothing_by_the_cut() -> None:
    """At r the factors cost no more than the matrix; more singular values there are not to give up at energy 0."""
    weight = torch.randn(7, 3) @ torch.randn(3, 9)
    backbone = nn.Sequential(nn.Linear(9, 7))
    with torch.no_grad():
        backbone[0].weight.copy_(weight)  # type: ignore[operator]
    network = SharedSpace(backbone).expand(nn.Linear(7, 2))
    assert network.factors()["0"].rank == full_rank(7, 9) == 3
    compress(network, energy=0)
    np.testing.assert_allclose(matrix(network.factors()["0"]), weight.double().numpy(), atol=1e-5)
