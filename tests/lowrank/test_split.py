"""A layer as two: the same numbers in float64, and fewer multiplications exactly where it is said, as torch counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from nacre.lowrank import Factors
from nacre.lowrank.split import least, pays, split, splits

LINE, IMAGE, VOLUME = (2, 6, 9), (2, 6, 7, 8), (2, 6, 5, 4, 6)
LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(9, 5), LINE),
    (nn.Linear(9, 5, bias=False), LINE),
    (nn.Conv1d(6, 4, 3, 2, 1, 2, 2, False, "reflect"), LINE),
    (nn.Conv2d(6, 9, 3, padding="same"), IMAGE),
    (nn.Conv2d(6, 9, (3, 2), (1, 2), (1, 0), (1, 2), 3, True, "circular"), IMAGE),
    (nn.Conv2d(6, 6, 3, groups=6), IMAGE),
    (nn.Conv3d(6, 4, (1, 2, 3), padding="valid", padding_mode="replicate"), VOLUME),
    (nn.ConvTranspose1d(6, 4, 3, 2, 1, 1, 2, False, 2), LINE),
    (nn.ConvTranspose2d(6, 4, (3, 2), (2, 1), (1, 0), (1, 0), 2, True, (2, 1)), IMAGE),
    (nn.ConvTranspose2d(6, 3, 3), IMAGE),
    (nn.ConvTranspose3d(6, 4, 2, 2), VOLUME),
]


def drawn(module: Any, rank: int) -> Factors:
    rows, rest = module.weight.flatten(1).shape
    draw = torch.Generator().manual_seed(rank)
    parts = (
        torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((rows, rank), (rank,), (rest, rank))
    )
    return Factors(*parts)


@pytest.mark.parametrize(("module", "shape"), LAYERS, ids=[str(module) for module, _ in LAYERS])
@pytest.mark.parametrize("rank", [1, 3])
def test_two_layers_compute_what_one_does(module: Any, shape: tuple[int, ...], rank: int) -> None:
    module, factors = module.double().eval(), drawn(module, rank)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        module.weight.copy_(factors.weight().view_as(module.weight))
        two = split(module, factors)
        torch.testing.assert_close(two(x), module(x), rtol=1e-10, atol=1e-10)
    assert not two.training
    assert [type(part).__module__.partition(".")[0] for part in two.modules()] == ["torch"] * 3


def multiplications(module: nn.Module, x: Tensor) -> int:
    """As torch counts them, operator by operator."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(x)
    return int(counter.get_total_flops()) // 2


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 2, 3]), st.integers(1, 40), st.sampled_from([1, 2]))
def test_it_pays_exactly_where_torch_counts_fewer(inputs: int, out: int, size: int, rank: int, groups: int) -> None:
    module = nn.Conv2d(groups * inputs, groups * out, size, groups=groups, bias=False)
    x = torch.zeros(1, groups * inputs, 5, 5)
    two = split(module, Factors(torch.ones(groups * out, rank), torch.ones(rank), torch.ones(inputs * size**2, rank)))
    assert pays(module, rank) == (multiplications(two, x) < multiplications(module, x))


@pytest.mark.parametrize("rank", [1, 4, 5, 6, 20])
def test_it_pays_for_linear_layers_as_torch_counts(rank: int) -> None:
    module, x = nn.Linear(12, 10, bias=False), torch.zeros(3, 12)
    two = split(module, Factors(torch.ones(10, rank), torch.ones(rank), torch.ones(12, rank)))
    assert pays(module, rank) == (multiplications(two, x) < multiplications(module, x))


def test_nothing_pays_at_rank_0_and_layers_of_ones_own_are_left_alone() -> None:
    class Own(nn.Linear):
        pass

    assert not pays(nn.Linear(4, 4), 0)
    assert not splits(Own(3, 3))
    assert not splits(nn.MultiheadAttention(4, 2))
    assert not splits(nn.Embedding(3, 3))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 4), st.integers(1, 4))
def test_the_fewest_columns_are_the_rank_of_the_matrix(out: int, rest: int, rank: int, times: int) -> None:
    """Also where several tasks lie side by side in one subspace."""
    draw = torch.Generator().manual_seed(out + 10 * rest + 100 * rank)
    basis, right = torch.randn(out, rank, generator=draw), torch.randn(rest, rank, generator=draw)
    mixes = [torch.randn(rank, rank, generator=draw, dtype=torch.float64) for _ in range(times)]
    U = torch.cat([(basis.double() @ mix).float() for mix in mixes], 1)
    V = right.repeat(1, times)
    whole = Factors(U, torch.ones(rank * times), V)
    found = least(whole)
    exact = (U.double() @ V.double().T).numpy()
    torch.testing.assert_close(found.weight().double(), torch.from_numpy(exact), rtol=1e-4, atol=1e-4)
    values = torch.linalg.svdvals(torch.from_numpy(exact))
    assert found.rank == int((values > 1e-6 * values[:1]).sum()) <= min(out, rest)
