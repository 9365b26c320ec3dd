"""Factors: one matrix as U diag(s) V^T, checked against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nacre import Factors, NacreError
from nacre.lowrank import concatenate, factor_cost, full_rank, matrix_shape

sizes = st.integers(1, 7)


def drawn(out: int, rest: int, rank: int, seed: int = 0) -> Factors:
    generator = torch.Generator().manual_seed(seed)
    return Factors(*(torch.randn(shape, generator=generator) for shape in ((out, rank), (rank,), (rest, rank))))


def dense(factors: Factors) -> np.ndarray:
    """U diag(s) V^T entry by entry in float64."""
    U, s, V = (part.detach().numpy().astype(np.float64) for part in (factors.U, factors.s, factors.V))
    matrix: np.ndarray = np.einsum("ik,k,jk->ij", U, s, V)
    return matrix


@settings(deadline=None, max_examples=40)
@given(out=sizes, rest=sizes, rank=st.integers(0, 7), seed=st.integers(0, 99))
def test_weight_is_U_diag_s_V_transposed(out: int, rest: int, rank: int, seed: int) -> None:
    factors = drawn(out, rest, rank, seed)
    assert factors.rank == rank
    assert factors.shape == (out, rest)
    assert factors.weight().shape == (out, rest)
    np.testing.assert_allclose(factors.weight().numpy(), dense(factors), rtol=1e-5, atol=1e-5)


def test_a_weight_worked_by_hand() -> None:
    factors = Factors(
        torch.tensor([[1.0, 0.0], [0.0, 2.0]]),
        torch.tensor([3.0, -1.0]),
        torch.tensor([[1.0, 1.0], [0.0, 1.0], [2.0, 0.0]]),
    )
    assert factors.weight().tolist() == [[3.0, 0.0, 6.0], [-2.0, -2.0, 0.0]]


def test_rank_zero_is_the_zero_matrix() -> None:
    factors = Factors.zero(3, 4)
    assert factors.rank == 0
    assert torch.equal(factors.weight(), torch.zeros(3, 4))


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 2), (1,), (4, 2)),
        ((3, 2), (2,), (4, 1)),
        ((3, 1), (2,), (4, 2)),
        ((3, 2), (2, 2), (4, 2)),
        ((3,), (2,), (4, 2)),
        ((3, 2), (2,), (2, 4)),
        ((3, 3, 2), (2,), (4, 2)),
        ((3, 1), (), (4, 1)),
    ],
)
def test_shapes_that_make_no_matrix_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(NacreError) as refused:
        Factors(*(torch.zeros(shape) for shape in shapes))
    assert all(str(shape) in str(refused.value) for shape in shapes)
    assert "U [out, r], s [r], V [rest, r]" in str(refused.value)


def test_concatenated_factors_are_the_sum_of_the_matrices() -> None:
    parts = [drawn(4, 5, rank, seed=rank) for rank in (2, 0, 3)]
    whole = concatenate(parts)
    assert whole.rank == 5
    np.testing.assert_allclose(whole.weight().numpy(), sum(map(dense, parts)), rtol=1e-5, atol=1e-5)
    assert torch.equal(whole.s, torch.cat([parts[0].s, parts[2].s])), "the tasks' columns stand in task order"


def test_detached_factors_share_no_storage_and_no_graph() -> None:
    U = torch.randn(3, 2, requires_grad=True)
    factors = Factors(U * 2, torch.ones(2), torch.randn(2, 4).T)
    copy = factors.detach()
    assert not copy.U.requires_grad
    assert copy.V.is_contiguous()
    before = dense(copy)
    factors.s.zero_()
    np.testing.assert_array_equal(dense(copy), before)


@pytest.mark.parametrize("shape", [(5, 3), (64, 3, 3, 3), (8, 2, 5), (4, 1, 2, 3, 2)])
def test_a_weight_tensor_is_read_as_flatten_1(shape: tuple[int, ...]) -> None:
    assert matrix_shape(shape) == tuple(torch.empty(shape).flatten(1).shape)


@settings(deadline=None, max_examples=100)
@given(out=st.integers(1, 60), rest=st.integers(1, 60))
def test_full_rank_is_the_largest_that_costs_no_more_than_dense(out: int, rest: int) -> None:
    one = Factors(torch.empty(out, 1), torch.empty(1), torch.empty(rest, 1))
    assert factor_cost(out, rest) == sum(part.numel() for part in (one.U, one.s, one.V))
    affordable = [rank for rank in range(min(out, rest) + 1) if rank * (out + rest + 1) <= out * rest]
    assert full_rank(out, rest) == max(1, affordable[-1])


@pytest.mark.parametrize(
    ("out", "rest", "rank"), [(64, 27, 18), (64, 576, 57), (128, 576, 104), (128, 1152, 115), (256, 512, 170)]
)
def test_full_ranks_of_conv5(out: int, rest: int, rank: int) -> None:
    assert full_rank(out, rest) == rank
