"""Where the training of a task begins: the truncated SVD of weights, or the authors' random draw."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nacre import NacreError, SharedSpace, Start
from nacre.lowrank import Factors, full_rank


def truncated(matrix: np.ndarray, rank: int) -> np.ndarray:
    """The best approximation at a rank, by numpy."""
    U, s, Vh = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    product: np.ndarray = U[:, :rank] * s[:rank] @ Vh[:rank]
    return product


def assert_is_the_svd(factors: Factors, matrix: np.ndarray, rank: int) -> None:
    assert factors.rank == rank
    np.testing.assert_allclose(factors.weight().detach().numpy(), truncated(matrix, rank), atol=1e-6)
    values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)[:rank]
    np.testing.assert_allclose(factors.s.detach().numpy(), values, rtol=1e-5, atol=1e-6)
    for part in (factors.U.detach().double().numpy(), factors.V.detach().double().numpy()):
        np.testing.assert_allclose(part.T @ part, np.eye(rank), atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(9, 6), nn.Conv2d(4, 6, 3), nn.ConvTranspose1d(8, 5, 4), nn.Linear(1, 3), nn.Conv1d(6, 6, 3, groups=6)],
    ids=str,
)
def test_the_first_residual_is_the_truncated_svd_of_the_backbones_own_weights(layer: nn.Module) -> None:
    weight = layer.get_parameter("weight").detach()
    matrix = weight.flatten(1).numpy()
    out, rest = matrix.shape
    network = SharedSpace(nn.Sequential(layer)).expand(nn.Linear(4, 2))
    assert_is_the_svd(network.factors()["0"], matrix, max(1, out * rest // (out + rest + 1)))
    shared = network.get_buffer("backbone.0.parametrizations.weight.original")
    assert not shared.any(), "on base='zero' nothing is beneath the first task"


def test_a_rank_given_replaces_the_papers_r() -> None:
    weight = torch.randn(6, 9)
    ranks: list[Any] = [0, 1, 6, np.int64(3)]
    for rank in ranks:
        assert_is_the_svd(Start().first_factors(weight, rank), weight.numpy(), rank)
    assert Start().first_factors(weight, 50).rank == 6, "there are no more singular values"
    assert Start("random").first_factors(weight, 50).rank == 6


@pytest.mark.parametrize("later", [1.0, 0.25])
def test_later_factors_are_the_scaled_svd_of_an_ordinary_initialisation(later: float) -> None:
    torch.manual_seed(3)
    drawn = Start(later=later).later_factors(6, 9)
    torch.manual_seed(3)
    ordinary = torch.empty(6, 9).uniform_(-1, 1).numpy() / math.sqrt(9)
    rank = full_rank(6, 9)
    assert_is_the_svd(Factors(drawn.U, drawn.s / later, drawn.V), ordinary, rank)


def test_on_a_frozen_backbone_the_first_task_starts_like_a_later_one() -> None:
    space = SharedSpace(nn.Sequential(nn.Linear(9, 6)), base="backbone")
    head = nn.Linear(6, 2)
    torch.manual_seed(5)
    network = space.expand(head, start=Start(later=0.5))
    torch.manual_seed(5)
    expected = Start(later=0.5).later_factors(6, 9)
    assert torch.equal(network.factors()["0"].weight(), expected.weight())


def test_with_later_zero_a_task_begins_at_the_shared_solution_and_can_leave_it() -> None:
    space = SharedSpace(nn.Sequential(nn.Linear(9, 6)))
    space.append("one", space.expand(nn.Linear(6, 2)))
    learnt = space.network("one").get_parameter("backbone.0.weight")
    network = space.expand(nn.Linear(6, 2), start=Start(later=0.0))
    weight: torch.Tensor = network.backbone.get_submodule("0").weight  # type: ignore[assignment]
    assert torch.equal(weight, learnt)
    weight.square().sum().backward()
    s = network.get_parameter("backbone.0.parametrizations.weight.0.s")
    assert s.grad is not None
    assert s.grad.abs().min() > 0


def test_random_factors_are_drawn_as_in_the_published_code() -> None:
    """Kaiming-normal U [out, r] and V^T [r, rest] (variance 2 / columns), standard normal s; every task alike."""
    torch.manual_seed(0)
    out, rest = 300, 500
    rank = full_rank(out, rest)
    for factors in (Start("random").first_factors(torch.zeros(out, rest)), Start("random").later_factors(out, rest)):
        assert (factors.shape, factors.rank) == ((out, rest), rank)
        for part, variance in ((factors.U, 2 / rank), (factors.V, 2 / rest), (factors.s, 1.0)):
            values = part.double().numpy().ravel()
            deviations = 5 * math.sqrt(2 / values.size)  # five standard deviations of a sample variance
            assert values.var() == pytest.approx(variance, rel=deviations)
            assert abs(values.mean()) < 5 * math.sqrt(variance / values.size)


def test_random_factors_do_not_look_at_the_backbone() -> None:
    torch.manual_seed(1)
    one = Start("random").first_factors(torch.zeros(6, 9))
    torch.manual_seed(1)
    other = Start("random").first_factors(torch.ones(6, 9))
    assert torch.equal(one.weight(), other.weight())


@pytest.mark.parametrize("rank", [-1, 2.5])
def test_a_rank_that_is_no_count_is_refused(rank: float) -> None:
    for start in (Start(), Start("random")):
        with pytest.raises(NacreError, match=f"0 or more; got {rank}"):
            start.first_factors(torch.zeros(3, 4), rank)  # type: ignore[arg-type]
        with pytest.raises(NacreError, match=f"0 or more; got {rank}"):
            start.later_factors(3, 4, rank)  # type: ignore[arg-type]


def test_an_unknown_start_is_refused() -> None:
    with pytest.raises(NacreError, match="got 'zeros'"):
        Start("zeros")  # type: ignore[arg-type]
    with pytest.raises(NacreError, match=r"later >= 0; got .*-1"):
        Start(later=-1)
