"""Fewer bits: how far a number moves, that it moves once only, and how many bytes that takes; worked out in numpy."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import nacre
from nacre.errors import NacreError
from nacre.lowrank import Dtype, Factors, decode, encode, rounded, rounded_factors, stored_bytes
from nacre.lowrank.encoding import column_bytes

FEWER: tuple[Dtype, ...] = ("bfloat16", "int8")
TINY = 2.0**-126 * 128  # below this a whole vector becomes zero


@st.composite
def matrices(draw: st.DrawFn) -> Tensor:
    """Entries of any size that float32 knows, rows and columns of very different sizes, zeros and empty ones."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(0, 5))
    numbers = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, -0.0, 1e-45, 1.5e-36, 127.5, 1.0])
    values = draw(st.lists(numbers, min_size=rows * columns, max_size=rows * columns))
    return torch.tensor(values, dtype=torch.float32).view(rows, columns)


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().numpy().tobytes())


@settings(deadline=None, max_examples=300)
@given(matrices(), st.sampled_from([0, 1]))
def test_an_int8_number_moves_by_half_a_step_of_its_vector_at_most(matrix: Tensor, axis: int) -> None:
    exact, found = matrix.numpy().astype(np.float64), rounded(matrix, "int8", axis).numpy().astype(np.float64)
    largest = np.abs(exact).max(1 - axis, keepdims=True, initial=0.0)
    # a step is the largest entry over 127, rounded to 8 bits
    bound = np.where(largest < TINY, largest, largest / 127 * (1 + 2.0**-8) / 2)
    assert (np.abs(found - exact) <= bound * (1 + 1e-6)).all()


@settings(deadline=None, max_examples=300)
@given(matrices())
def test_a_bfloat16_number_keeps_eight_bits(matrix: Tensor) -> None:
    exact, found = matrix.numpy().astype(np.float64), rounded(matrix, "bfloat16", 1).numpy().astype(np.float64)
    assert (np.abs(found - exact) <= np.maximum(np.abs(exact) * 2.0**-8, 2.0**-133)).all()
    assert (found.astype(np.float32).view(np.uint32) & 0xFFFF == 0).all()


@settings(deadline=None, max_examples=300)
@given(matrices(), st.sampled_from(FEWER), st.sampled_from([0, 1]))
def test_what_was_decoded_encodes_to_the_same_bytes_again(matrix: Tensor, dtype: Dtype, axis: int) -> None:
    encoded = encode(matrix, dtype, axis)
    again = encode(decode(encoded, axis), dtype, axis)
    assert again.values.dtype == encoded.values.dtype
    assert torch.equal(again.values, encoded.values)
    assert (again.scales is None) == (encoded.scales is None)
    if again.scales is not None and encoded.scales is not None:
        assert torch.equal(again.scales, encoded.scales)
    once = rounded(matrix, dtype, axis)
    assert bits(rounded(once, dtype, axis)) == bits(once)


@settings(deadline=None, max_examples=100)
@given(matrices(), st.sampled_from(FEWER), st.sampled_from([0, 1]))
def test_the_bytes_are_those_that_are_said(matrix: Tensor, dtype: Dtype, axis: int) -> None:
    encoded = encode(matrix, dtype, axis)
    scales = b"" if encoded.scales is None else bytes(encoded.scales.view(torch.int16).numpy().tobytes())
    values = encoded.values if dtype == "int8" else encoded.values.view(torch.int16)
    held = len(bytes(values.numpy().tobytes())) + len(scales)
    assert held == encoded.bytes == stored_bytes(matrix.numel(), matrix.shape[axis], dtype)


@pytest.mark.parametrize("dtype", get_args(Dtype))
def test_one_column_of_factors_costs_what_its_tensors_take(dtype: Dtype) -> None:
    U, s, V = torch.randn(64, 1), torch.rand(1), torch.randn(27, 1)
    assert column_bytes(64, 27, dtype) == encode(U, dtype, 1).bytes + s.nbytes + encode(V, dtype, 1).bytes


def test_columns_of_very_different_sizes_do_not_disturb_each_other() -> None:
    factors = Factors(
        torch.randn(30, 3) * torch.tensor([1e6, 1.0, 1e-6]), torch.tensor([3.0, 2.0, 1.0]), torch.randn(9, 3)
    )
    found = rounded_factors(factors, "int8")
    for column in range(3):
        off = (found.U[:, column] - factors.U[:, column]).norm() / factors.U[:, column].norm()
        assert off < 0.01
    assert bits(found.s) == bits(factors.s)


def test_float32_is_left_as_it_is() -> None:
    factors = Factors(torch.randn(4, 2), torch.rand(2), torch.randn(5, 2))
    found = rounded_factors(factors, "float32")
    assert bits(found.U) == bits(factors.U)
    assert bits(found.V) == bits(factors.V)


@pytest.mark.parametrize(("dtype", "columns"), [("float32", 10), ("bfloat16", 20), ("int8", 38)])
def test_a_budget_pays_for_more_columns_in_fewer_bits(dtype: Dtype, columns: int) -> None:
    network = nacre.SharedSpace(nn.Linear(100, 100)).expand(nn.Linear(100, 2), rank=100)
    nacre.compress(network, budget=8040, dtype=dtype)  # a column costs 804, 404 or 208 bytes
    costs = {"float32": 804, "bfloat16": 404, "int8": 208}
    assert network.factors()["weight"].rank == 8040 // costs[dtype]
    assert abs(8040 // costs[dtype] - columns) <= 1


def test_another_type_is_refused_by_name() -> None:
    network = nacre.SharedSpace(nn.Linear(4, 3)).expand(nn.Linear(3, 2))
    for refused in ("float16", None, 8, torch.int8):
        with pytest.raises(NacreError, match="dtype= is 'float32', 'bfloat16', 'int8'; got"):
            nacre.compress(network, rank=1, dtype=refused)  # type: ignore[arg-type]
        with pytest.raises(NacreError, match=r"CACL\.head_dtype is"):
            nacre.CACL(head_dtype=refused)  # type: ignore[arg-type]
