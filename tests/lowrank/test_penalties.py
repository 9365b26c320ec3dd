"""Orthogonality and Hoyer against their formulas in numpy float64, and their gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nacre import Factors, SharedSpace, hoyer, orthogonality
from nacre.lowrank import hoyer_of, orthogonality_of


def drawn(out: int, rest: int, rank: int, seed: int = 0) -> Factors:
    generator = torch.Generator().manual_seed(seed)
    return Factors(*(torch.randn(shape, generator=generator) for shape in ((out, rank), (rank,), (rest, rank))))


def of_values(s: Tensor) -> Factors:
    """U and V do not matter to Hoyer."""
    return Factors(s.new_zeros(1, len(s)), s, s.new_zeros(1, len(s)))


def gram_error(part: Tensor) -> float:
    """|P^T P - I|_F^2 in float64."""
    P = part.detach().numpy().astype(np.float64)
    return float(((P.T @ P - np.eye(P.shape[1])) ** 2).sum())


def expanded(*ranks: int, seed: int = 0) -> tuple[nn.Module, list[Factors]]:
    """A network of linear layers whose factors have the given ranks, and those factors."""
    torch.manual_seed(seed)
    layers = [nn.Linear(5, 5) for _ in ranks]
    network = SharedSpace(nn.Sequential(*layers)).expand(nn.Linear(5, 2))
    given = {str(index): drawn(5, 5, rank, seed + index) for index, rank in enumerate(ranks)}
    network.load_factors(given)
    return network, list(given.values())


@settings(deadline=None, max_examples=40)
@given(out=st.integers(1, 6), rest=st.integers(1, 6), rank=st.integers(1, 8), seed=st.integers(0, 99))
def test_orthogonality_of_a_layer_is_the_formula(out: int, rest: int, rank: int, seed: int) -> None:
    layer = drawn(out, rest, rank, seed)
    squared = (gram_error(layer.U) + gram_error(layer.V)) / rank**2
    plain = (np.sqrt(gram_error(layer.U)) + np.sqrt(gram_error(layer.V))) / rank**2
    assert orthogonality_of([layer]).item() == pytest.approx(squared, rel=1e-5)
    assert orthogonality_of([layer], squared=False).item() == pytest.approx(plain, rel=1e-5)


def test_orthogonality_worked_by_hand() -> None:
    # U^T U - I = diag(3, 0), V^T V - I = [[0, 1], [1, 1]]
    layer = Factors(
        torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.ones(2), torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    )
    assert orthogonality_of([layer]).item() == pytest.approx((9 + 3) / 4)
    assert orthogonality_of([layer], squared=False).item() == pytest.approx((3 + 3**0.5) / 4)


def test_with_more_columns_than_rows_the_published_code_takes_the_gram_matrix_of_the_rows() -> None:
    layer = drawn(3, 6, 4)
    rows = gram_error(layer.U.T) / 3**2
    columns = gram_error(layer.V) / 4**2
    assert orthogonality_of([layer], smaller=True).item() == pytest.approx(rows + columns, rel=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-1e3, 1e3, width=32).filter(lambda value: value == 0 or abs(value) > 1e-3), min_size=1))
def test_hoyer_of_a_layer_is_the_formula(values: list[float]) -> None:
    s = np.array(values, dtype=np.float64)
    expected = np.abs(s).sum() / np.linalg.norm(s) if s.any() else 0.0
    assert hoyer_of([of_values(torch.tensor(values))]).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1.0, 1e30])
def test_hoyer_does_not_depend_on_the_scale_of_s(scale: float) -> None:
    s = torch.tensor([3.0, -4.0, 0.0])
    assert hoyer_of([of_values(s * scale)]).item() == pytest.approx(7 / 5, rel=1e-4)


def test_hoyer_is_one_at_rank_one_and_the_root_of_r_where_all_are_equal() -> None:
    assert hoyer_of([of_values(torch.tensor([0.0, -5.0, 0.0]))]).item() == pytest.approx(1)
    assert hoyer_of([of_values(torch.full((9,), -0.3))]).item() == pytest.approx(3)


def test_the_penalties_of_a_network_are_the_sums_over_its_layers() -> None:
    network, layers = expanded(3, 1, 0, 5)
    layers = [layer for layer in layers if layer.rank]
    errors = sum((gram_error(layer.U) + gram_error(layer.V)) / layer.rank**2 for layer in layers)
    roots = sum((gram_error(layer.U) ** 0.5 + gram_error(layer.V) ** 0.5) / layer.rank**2 for layer in layers)
    ratios = sum(float(np.abs(s).sum() / np.linalg.norm(s)) for s in (layer.s.double().numpy() for layer in layers))
    assert orthogonality(network).item() == pytest.approx(errors, rel=1e-5)
    assert orthogonality(network, squared=False).item() == pytest.approx(roots, rel=1e-5)
    assert hoyer(network).item() == pytest.approx(ratios, rel=1e-5)


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("smaller", [True, False])
def test_gradient_of_orthogonality(squared: bool, smaller: bool) -> None:
    layers = [drawn(3, 6, 4), drawn(5, 2, 1), drawn(4, 4, 2)]
    parts = [part.double().requires_grad_() for layer in layers for part in (layer.U, layer.V)]

    def value(*parts: Tensor) -> Tensor:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return orthogonality_of([Factors(U, U[0], V) for U, V in pairs], squared=squared, smaller=smaller)

    assert torch.autograd.gradcheck(value, parts)


def test_gradient_of_hoyer() -> None:
    values = [[0.7, -1.3, 2.0, -0.01], [-5.0], [1e-3, 1e3]]
    singular = [torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in values]
    assert torch.autograd.gradcheck(lambda *each: hoyer_of(map(of_values, each)), singular)


def test_hoyer_and_its_gradient_are_zero_where_every_s_is_zero() -> None:
    s = torch.zeros(4, requires_grad=True)
    value = hoyer_of([of_values(s)])
    value.backward()
    assert value.item() == 0
    assert s.grad is not None
    assert torch.equal(s.grad, torch.zeros(4))


def test_the_unsquared_norm_has_a_finite_gradient_at_orthonormal_factors() -> None:
    eye = torch.eye(5)[:, :3].clone().requires_grad_()
    value = orthogonality_of([Factors(eye, torch.ones(3), eye)], squared=False)
    value.backward()
    assert value.item() == 0
    assert eye.grad is not None
    assert torch.equal(eye.grad, torch.zeros(5, 3))


@pytest.mark.parametrize("penalty", [orthogonality, hoyer, lambda network: orthogonality(network, squared=False)])
def test_layers_of_rank_zero_add_nothing_and_break_no_backward(penalty: Callable[[nn.Module], Tensor]) -> None:
    with_empty, _ = expanded(3, 0)
    without, _ = expanded(3)
    value = penalty(with_empty)
    value.backward()
    assert value.item() == penalty(without).item()
    empty, _ = expanded(0, 0)
    nothing = penalty(empty)
    nothing.backward()
    assert nothing.item() == 0


def test_penalties_of_a_network_without_factors_are_zero() -> None:
    plain = nn.Linear(3, 2)
    assert orthogonality(plain).item() == hoyer(plain).item() == 0


def test_penalties_stay_float32_under_autocast() -> None:
    network, _ = expanded(3, 4)
    outside = [orthogonality(network), hoyer(network)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = [orthogonality(network), hoyer(network)]
    for one, other in zip(outside, inside, strict=True):
        assert other.dtype == torch.float32
        assert torch.equal(one, other)


def test_penalties_reach_into_a_compiled_network() -> None:
    network, _ = expanded(3, 4)
    compiled = cast(nn.Module, torch.compile(network, backend="eager"))
    assert orthogonality(compiled).item() == orthogonality(network).item() > 0
    assert hoyer(compiled).item() == hoyer(network).item() > 0


def test_penalties_touch_the_new_factors_only() -> None:
    """Not the head, not a bias, not the frozen sum."""
    network, _ = expanded(3, 4)
    (orthogonality(network) + hoyer(network)).backward()
    reached = {name.rsplit(".", 1)[1] for name, tensor in network.named_parameters() if tensor.grad is not None}
    assert reached == {"U", "s", "V"}
