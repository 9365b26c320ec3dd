"""PackNet: the share that was asked for is pruned, freed weights alone move, a task answers with all up to its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nacre import Learner, NacreError
from nacre.methods import PackNet
from nacre.methods.holding import hold, largest
from nacre.space import Weights
from nacre.training import Epoch
from tests.methods.problems import layers, learner_of, points, short

NAMES = {"0.weight": 96, "2.weight": 192}


def weights_of(learner: Learner) -> Weights:
    assert isinstance(learner.knowledge, Weights)
    return learner.knowledge


@pytest.mark.parametrize("prune", [0.0, 0.5, 0.75, 0.9, 1.0])
def test_each_task_keeps_its_share_of_the_weights_that_were_free_in_every_layer(prune: float) -> None:
    learner = learner_of(PackNet(prune=prune))
    free = dict(NAMES)
    taken = {name: torch.zeros(()) for name in NAMES}
    for axis in range(3):
        learner.learn(str(axis), points(axis), recipe=short())
        masks = weights_of(learner).masks(str(axis))
        for name in NAMES:
            own = int(masks[name].sum()) - int(taken[name].sum())
            assert own == free[name] - round(prune * free[name])
            free[name] -= own
            assert torch.equal(masks[name] & taken[name].bool(), taken[name].bool().expand_as(masks[name]))
            taken[name] = masks[name]
            assert weights_of(learner).shared[name][~masks[name]].count_nonzero() == 0


def test_the_weights_kept_are_the_largest_that_the_task_trained() -> None:
    found: dict[str, dict[str, Tensor]] = {}

    def look(epoch: Epoch, network: nn.Module) -> None:
        found[epoch.phase] = {n: network.get_parameter(f"backbone.{n}").detach().clone() for n in NAMES}

    learner = learner_of(PackNet(prune=0.75, retrain=0.5))
    learner.learn("a", points(0), recipe=short(4), callbacks=[look])
    learner.learn("b", points(1), recipe=short(4), callbacks=[look])
    first, second = (weights_of(learner).masks(task) for task in "ab")
    for name in NAMES:
        before = np.abs(found["train"][name].numpy())
        own = (second[name] & ~first[name]).numpy()
        lost = ~second[name].numpy()
        assert before[own].min() >= before[lost].max()
        assert found["retrain"][name].numpy()[lost].sum() == 0


def test_freed_weights_alone_move_even_under_weight_decay_and_momentum() -> None:
    def decaying(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1)

    seen: list[dict[str, Tensor]] = []

    def look(_: Epoch, network: nn.Module) -> None:
        seen.append({n: network.get_parameter(f"backbone.{n}").detach().clone() for n in NAMES})

    learner = learner_of(PackNet(prune=0.5))
    learner.learn("a", points(0), recipe=short(optimizer=decaying))
    masks, before = weights_of(learner).masks("a"), weights_of(learner).shared
    learner.learn("b", points(1), recipe=short(6, optimizer=decaying), callbacks=[look])
    own = weights_of(learner).masks("b")
    for name in NAMES:
        for values in seen:
            assert torch.equal(values[name][masks[name]], before[name][masks[name]])
        free = ~masks[name]
        assert (seen[0][name][free] != before[name][free]).any()
        for values in seen[4:]:  # retraining: the last two epochs
            assert values[name][~own[name]].count_nonzero() == 0
        moved = own[name] & free
        assert (seen[-1][name][moved] != seen[3][name][moved]).any()


def test_a_task_answers_with_its_own_weights_and_those_of_earlier_tasks() -> None:
    learner = learner_of(PackNet())
    for axis in range(3):
        learner.learn(str(axis), points(axis), recipe=short())
    shared = weights_of(learner).shared
    for axis in range(3):
        masks, network = weights_of(learner).masks(str(axis)), learner.network(str(axis))
        for name in NAMES:
            expected = np.where(masks[name].numpy(), shared[name].numpy(), 0)
            np.testing.assert_array_equal(network.get_parameter(f"backbone.{name}").detach().numpy(), expected)


def test_the_size_by_hand() -> None:
    learner = learner_of(PackNet())
    for axis in range(2):
        learner.learn(str(axis), points(axis), recipe=short())
    size = learner.knowledge.size()
    assert (size.weights, size.private, size.heads) == (96 + 192, 2 * (16 + 12), 2 * (12 * 2 + 2))
    assert size.mask_bits == 2 * (96 + 192)
    assert size.megabytes_without_masks == 4 * (288 + 56 + 52) / 1e6
    assert size.megabytes == pytest.approx((4 * (288 + 56 + 52) + 72) / 1e6)
    one = learner.knowledge.size("1")
    assert (one.weights, one.mask_bits, one.private, one.heads) == (0, 288, 28, 26)


def test_the_epochs_are_shared_out_and_retraining_has_a_rate_of_its_own() -> None:
    phases: list[tuple[str, int]] = []
    learner = learner_of(PackNet(retrain=1 / 3))
    learner.learn("a", points(0), recipe=short(6), callbacks=[lambda e, _: phases.append((e.phase, e.epoch))])
    assert phases == [*(("train", at) for at in (1, 2, 3, 4)), ("retrain", 5), ("retrain", 6)]
    for retrain, before in ((1.0, 1), (0.0, 4), (0.5, 2)):
        training, retraining = PackNet(retrain=retrain, retrain_rate=0.2).recipes(short(4, schedule="cosine"))
        assert (training.epochs, retraining.epochs) == (before, 4)
        assert (training.learning_rate, training.schedule) == (0.01, "cosine")
        assert [retraining.learning_rate * retraining.rate_at(at) for at in range(4)] == [0.01 * 0.2] * 4


def test_of_equal_magnitudes_the_first_are_largest() -> None:
    values, among = torch.tensor([1.0, -2.0, 2.0, 2.0, 5.0]), torch.tensor([True, True, True, True, False])
    assert largest(values, among, 2).tolist() == [False, True, True, False, False]
    assert largest(values, among, 0).any().item() is False
    with pytest.raises(NacreError, match="5 numbers are to be chosen among 4"):
        largest(values, among, 5)


def test_what_is_held_is_put_back_to_the_bit() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -0.0, 0.5]))
    put_back = hold({"w": weight}, {"w": torch.tensor([True, True, False])})
    with torch.no_grad():
        weight.add_(1)
    put_back()
    assert weight.detach().numpy().tobytes() == torch.tensor([1.0, -0.0, 1.5]).numpy().tobytes()


@pytest.mark.parametrize("setting", [{"prune": 1.1}, {"prune": "half"}, {"retrain": -0.1}, {"retrain": True}])
def test_a_bad_setting_is_refused(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(NacreError, match=rf"^PackNet\.{name} is a number from 0 to 1; got "):
        PackNet(**setting)


def test_where_nothing_is_free_a_task_learns_what_is_its_own() -> None:
    learner = learner_of(PackNet(prune=0.0), layers())
    learner.learn("a", points(0), recipe=short())
    before = weights_of(learner).shared
    learner.learn("b", points(1), recipe=short())
    assert all(torch.equal(weights_of(learner).shared[name], before[name]) for name in NAMES)
    learnt = [learner.network(task).get_parameter("backbone.0.bias") for task in "ab"]
    assert not torch.equal(*learnt)
