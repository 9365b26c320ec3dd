"""Piggyback: the first task's dense network is the base, later tasks are masks on it; the gradient passes straight."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nacre import Learner, NacreError
from nacre.methods import Finetune, Piggyback
from nacre.methods.piggyback import Scores
from nacre.space import Weights
from nacre.training import Epoch
from tests.methods.problems import learner_of, points, short

NAMES = ("0.weight", "2.weight")


def weights_of(learner: Learner) -> Weights:
    assert isinstance(learner.knowledge, Weights)
    return learner.knowledge


def test_the_first_task_is_learnt_as_by_any_dense_network() -> None:
    piggyback, dense = learner_of(Piggyback()), learner_of(Finetune())
    for learner in (piggyback, dense):
        learner.learn("a", points(0), recipe=short())
    for mine, other in zip(*(each.network("a").parameters() for each in (piggyback, dense)), strict=True):
        assert torch.equal(mine, other)
    assert weights_of(piggyback).masks("a") == {}


def test_the_base_never_changes_and_a_later_task_uses_a_part_of_it() -> None:
    learner = learner_of(Piggyback(rate=1.0))
    learner.learn("a", points(0), recipe=short())
    base = {name: value.clone() for name, value in weights_of(learner).shared.items()}
    for axis, task in ((1, "b"), (2, "c")):
        learner.learn(task, points(axis), recipe=short())
        masks = weights_of(learner).masks(task)
        for name in NAMES:
            assert torch.equal(weights_of(learner).shared[name], base[name])
            expected = np.where(masks[name].numpy(), base[name].numpy(), 0)
            used = learner.network(task).get_parameter(f"backbone.{name}").detach().numpy()
            np.testing.assert_array_equal(used, expected)
        assert any(not mask.all() for mask in masks.values())
    first, second = (weights_of(learner).masks(task) for task in "bc")
    assert any(not torch.equal(first[name], second[name]) for name in NAMES)


def test_a_weight_is_used_where_its_score_is_above_the_threshold() -> None:
    found: dict[str, Tensor] = {}

    def look(_: Epoch, network: nn.Module) -> None:
        scores = network.get_submodule("through")
        assert isinstance(scores, Scores)
        found.update({n: s.detach().clone() for n, s in zip(scores.names, scores.scores, strict=True)})

    learner = learner_of(Piggyback(rate=1.0))
    learner.learn("a", points(0), recipe=short())
    learner.learn("b", points(1), recipe=short(), callbacks=[look])
    masks = weights_of(learner).masks("b")
    assert {name: (score.numpy() > 5e-3).tolist() for name, score in found.items()} == {
        name: mask.tolist() for name, mask in masks.items()
    }


def test_the_gradient_of_a_score_is_that_of_its_mask_as_if_there_were_no_threshold() -> None:
    weights = Weights(nn.Sequential(nn.Linear(3, 2, bias=False)))
    scores = Scores({"0.weight": (2, 3)}, 1e-2, 5e-3)
    network = weights.expand(nn.Identity(), through=scores)
    with torch.no_grad():
        scores.scores[0].copy_(torch.tensor([[0.1, 0.0, 0.006], [0.005, -1.0, 0.2]]))
    x, v = torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([[0.5, -4.0]])
    outputs = network(x)
    (outputs * v).sum().backward()
    weight = weights.shared["0.weight"].numpy()
    mask = np.array([[1, 0, 1], [0, 0, 1]])  # at the threshold is not above it
    np.testing.assert_allclose(outputs.detach().numpy(), x.numpy() @ (mask * weight).T, rtol=1e-6)
    gradient = scores.scores[0].grad
    assert gradient is not None
    np.testing.assert_allclose(gradient.numpy(), (v.numpy().T @ x.numpy()) * weight, rtol=1e-5)


def test_the_size_by_hand() -> None:
    learner = learner_of(Piggyback())
    for axis in range(3):
        learner.learn(str(axis), points(axis), recipe=short())
    size = learner.knowledge.size()
    assert (size.weights, size.mask_bits) == (288, 2 * 288)  # the first task has no mask
    assert size.megabytes == pytest.approx((4 * (288 + 3 * 28 + 3 * 26) + 72) / 1e6)
    assert size.learning == 0


def test_a_bad_setting_is_refused() -> None:
    with pytest.raises(NacreError, match=r"^Piggyback\.rate is a number from 0; got -1$"):
        Piggyback(rate=-1)
    with pytest.raises(NacreError, match=r"^Piggyback\.threshold is a number from -1 to 1; got 2$"):
        Piggyback(threshold=2)
