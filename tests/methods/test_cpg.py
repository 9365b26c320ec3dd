"""CPG and PackAndExpand: they pick or use all, prune in rounds while the goal holds, grow when it is missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nacre import Learner, NacreError, Recipe
from nacre.methods import CPG, PAE
from nacre.methods.compacting import Compacting
from nacre.methods.cpg import Picks
from nacre.methods.piggyback import Scores
from nacre.space import GrowingWeights
from nacre.training import Epoch
from tests.methods.problems import Own, learner_of, normed, pictures, points, short

NAMES = {"0.weight": 96, "2.weight": 192}
BOTH = pytest.mark.parametrize("kind", [CPG, PAE])
NEVER: dict[str, Any] = {"tolerance": 100.0}  # the goal is never missed
ALWAYS: dict[str, Any] = {"tolerance": -100.0}


def weights_of(learner: Learner) -> GrowingWeights:
    assert isinstance(learner.knowledge, GrowingWeights)
    return learner.knowledge


class Seen:
    """The phases, and the weights at the end of each."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.weights: dict[str, dict[str, Tensor]] = {}

    def __call__(self, epoch: Epoch, network: nn.Module) -> None:
        self.phases.append(epoch.phase)
        self.weights[epoch.phase] = {n: network.get_parameter(f"backbone.{n}").detach().clone() for n in NAMES}


def learn(learner: Learner, axis: int, epochs: int = 6, **options: Any) -> Seen:
    seen = Seen()
    learner.learn(str(axis), points(axis), recipe=short(epochs), callbacks=[seen], **options)
    return seen


# pruning in rounds


@BOTH
def test_while_the_goal_holds_each_round_gives_up_more_of_the_free_weights(kind: type[Compacting]) -> None:
    learner = learner_of(kind(pruning=0.5, rounds=3, most=0.75, **NEVER))
    free = dict(NAMES)
    for axis in range(3):
        taken = weights_of(learner).taken(1.0)
        seen = learn(learner, axis)
        assert seen.phases[-3:] == ["prune1", "prune2", "prune3"]
        for name, count in free.items():
            for number, share in enumerate((0.25, 0.5, 0.75), start=1):
                kept = seen.weights[f"prune{number}"][name][~taken[name]].count_nonzero()
                assert kept == count - round(share * count)
        now = weights_of(learner).taken(1.0)
        for name, before in taken.items():
            assert torch.equal(now[name] & before, before)
            free[name] = int((~now[name]).sum())
            assert free[name] == round(0.75 * int((~before).sum()))


@BOTH
def test_the_smallest_go_first(kind: type[Compacting]) -> None:
    learner = learner_of(kind(pruning=0.5, rounds=1, most=0.6, **NEVER))
    seen = learn(learner, 0)
    kept = weights_of(learner).masks("0")
    for name, mask in kept.items():
        before = np.abs(seen.weights["train"][name].numpy())
        assert before[mask.numpy()].min() >= before[~mask.numpy()].max()


@BOTH
def test_a_round_that_misses_the_goal_is_taken_back_and_the_rest_retrains(kind: type[Compacting]) -> None:
    learner = learner_of(kind(pruning=0.5, rounds=3, **ALWAYS))
    seen = learn(learner, 0)
    assert seen.phases == ["train"] * 3 + ["prune1", "retrain", "retrain"]
    assert all(mask.all() for mask in weights_of(learner).masks("0").values())
    at_first = seen.weights["train"]
    for name, pruned in seen.weights["prune1"].items():
        was, now = at_first[name][pruned == 0], seen.weights["retrain"][name][pruned == 0]
        assert now.count_nonzero() == len(now) > 0
        assert (now - was).abs().max() < 0.05  # from where the round began, two epochs at a tenth of the rate


def test_what_a_round_costs_is_measured_on_the_validation_data() -> None:
    """Labels that say the opposite: training makes it worse there, so that no round holds what there was before."""
    asked: list[int] = []

    def metric(outputs: Tensor, targets: Tensor) -> float:
        asked.append(len(targets))
        return float(100 - len(asked))  # ever worse, by a point

    learner = learner_of(PAE(pruning=0.5, rounds=3, tolerance=0.5))
    seen = learn(learner, 0, val=points(1, 20), metric=metric)
    assert set(asked) == {20}
    assert seen.phases[-3:] == ["prune1", "retrain", "retrain"]


# picking


def test_cpg_picks_among_the_weights_of_earlier_tasks_and_pae_uses_all() -> None:
    for kind, picking in ((CPG, True), (PAE, False)):
        settings: dict[str, Any] = {"score_rate": 1.0} if picking else {}
        learner = learner_of(kind(pruning=0.25, most=0.5, **NEVER, **settings))
        for axis in range(3):
            before = weights_of(learner).taken(1.0)
            learn(learner, axis, epochs=8)
            masks = weights_of(learner).masks(str(axis))
            dropped = sum(int((before[name] & ~masks[name]).sum()) for name in NAMES)
            assert (dropped > 0) == (picking and axis > 0)
            network = learner.network(str(axis))
            for name, shared in weights_of(learner).shared.items():
                used = network.get_parameter(f"backbone.{name}").detach().numpy()
                np.testing.assert_array_equal(used, np.where(masks[name].numpy(), shared.numpy(), 0))


def test_what_is_picked_are_the_earlier_weights_of_high_score() -> None:
    found: dict[str, Tensor] = {}

    def look(epoch: Epoch, network: nn.Module) -> None:
        through = network.get_submodule("through")
        assert isinstance(through, Scores)
        found.update({n: s.detach().clone() for n, s in zip(through.names, through.scores, strict=True)})

    learner = learner_of(CPG(pruning=0.25, score_rate=1.0, widest=1))
    learn(learner, 0)
    taken = weights_of(learner).taken(1.0)
    learner.learn("1", points(1), recipe=short(8), callbacks=[look])
    masks = weights_of(learner).masks("1")
    for name, owned in taken.items():
        assert torch.equal(masks[name][owned], found[name][owned] > 5e-3)


def test_a_pick_has_the_gradient_of_its_mask_and_free_weights_are_always_used() -> None:
    weights = torch.tensor([[1.5, -2.0], [0.25, 4.0]])
    picks = Picks({"w": torch.tensor([[True, True], [False, False]])}, 0.01, 0.005)
    with torch.no_grad():
        picks.scores[0].copy_(torch.tensor([[0.1, 0.0], [0.1, 0.0]]))
    used = picks({"w": weights})["w"]
    assert used.tolist() == [[1.5, 0.0], [0.25, 4.0]]
    used.sum().backward()
    assert picks.scores[0].grad is not None
    assert picks.scores[0].grad.tolist() == weights.tolist()


@BOTH
def test_the_weights_of_earlier_tasks_never_move_even_under_weight_decay_and_momentum(kind: type[Compacting]) -> None:
    def decaying(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1)

    learner = learner_of(kind(goal=0.2, pruning=0.4, tolerance=5.0, widest=2.0))
    before: dict[str, Tensor] = {}
    owned: dict[str, Tensor] = {}
    for axis in range(3):
        learner.learn(str(axis), points(axis), recipe=short(5, optimizer=decaying))
        shared = weights_of(learner).shared
        for name, value in before.items():
            rows, columns = value.shape
            assert torch.equal(shared[name][:rows, :columns][owned[name]], value[owned[name]])
        before = {name: value.clone() for name, value in shared.items()}
        owned = weights_of(learner).taken(weights_of(learner).growth)


# growing


@BOTH
def test_it_grows_when_the_goal_is_missed_and_only_then(kind: type[Compacting]) -> None:
    for tolerance, growths in ((NEVER, [1.0, 1.0, 1.0]), (ALWAYS, [1.0, 1.5, 2.0])):
        learner = learner_of(kind(goal=0.2, pruning=0.2, widest=2.0, **tolerance))
        found, phases = [], []
        for axis in range(3):
            phases.append(learn(learner, axis, epochs=4 if axis else 5).phases)
            found.append(weights_of(learner).growth)
        assert found == growths
        first, second, _ = phases
        assert "goal" not in first  # what it comes to is its goal
        assert second[:2] == ["goal", "try"]
        assert ("grow1.5" in second) == (tolerance is ALWAYS)


@BOTH
def test_it_grows_again_while_the_goal_is_missed_and_epochs_and_width_allow_it(kind: type[Compacting]) -> None:
    learner = learner_of(kind(goal=0.1, pruning=0.1, widest=2.2, **ALWAYS))
    learn(learner, 0, epochs=2)
    seen = learn(learner, 1, epochs=10)
    assert seen.phases[:5] == ["goal", "try", "grow1.5", "grow2", "grow2.2"]
    assert len(seen.phases) == 10
    assert weights_of(learner).growth == 2.2
    assert learn(learner, 2, epochs=10).phases == ["train"] * 9 + ["prune1"]  # it can grow no more: no goal to reach


@BOTH
def test_the_epochs_are_those_of_the_recipe_whatever_happens(kind: type[Compacting]) -> None:
    for epochs, tolerances in ((1, [{}]), (3, [ALWAYS]), (7, [NEVER, ALWAYS, {}])):
        for tolerance in tolerances:
            learner = learner_of(kind(goal=0.2, widest=3.0, **tolerance))
            for axis in range(2):
                assert len(learn(learner, axis, epochs).phases) == epochs


def test_the_goal_is_the_accuracy_of_a_network_of_the_tasks_own() -> None:
    """As many epochs, drawn afresh, every weight free: what `goal` trains stands on no earlier task."""
    learner = learner_of(PAE(goal=0.25, pruning=0.25, **NEVER))
    learn(learner, 0, epochs=4)
    taken = weights_of(learner).taken(1.0)
    seen = learn(learner, 1, epochs=4)
    shared = weights_of(learner).shared
    for name, mask in taken.items():
        assert not (seen.weights["goal"][name][mask] == shared[name][mask]).any()
        assert torch.equal(seen.weights["try"][name][mask], shared[name][mask])


@BOTH
def test_a_task_interrupted_while_it_grows_goes_on_to_the_same_bits(kind: type[Compacting], tmp_path: Path) -> None:
    class Halt(Exception):
        pass

    method = kind(goal=0.17, pruning=0.34, rounds=2, widest=2.0, **ALWAYS)
    whole, halted = learner_of(method, normed()), learner_of(method, normed())
    for learner in (whole, halted):
        learner.learn("a", pictures(0), recipe=short(2))
    expected = whole.learn("b", pictures(1), recipe=short(6))
    phases = [epoch.phase for epoch in expected.history]
    assert phases == ["goal", "try", "grow1.5", "grow2", "prune1", "retrain"]
    halted.save(tmp_path / "s")
    for last in phases:

        def halt(epoch: Epoch, _: nn.Module, last: str = last) -> None:
            if epoch.phase == last:
                raise Halt

        resumed = Learner.load(tmp_path / "s", device="cpu", progress=False)
        with pytest.raises(Halt):
            resumed.learn("b", pictures(1), recipe=short(6), checkpoint=tmp_path / "c", callbacks=[halt])
        assert weights_of(resumed).growth == 1.0
    resumed = Learner.load(tmp_path / "s", device="cpu", progress=False)
    resumed.learn("b", pictures(1), recipe=short(6), checkpoint=tmp_path / "c")
    ours, theirs = (each.network("b").state_dict() for each in (resumed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    resumed.save(tmp_path / "s")
    assert not list((tmp_path / "c").glob("*.safetensors"))


# refused


def test_a_backbone_that_cannot_be_widened_is_refused_unless_nothing_is_to_grow() -> None:
    message = r"^CPG grows: a Own cannot be widened: .* torch's own layers\. With widest=1 it does not$"
    with pytest.raises(NacreError, match=message):
        learner_of(CPG(), Own())
    for kind in (CPG, PAE):
        learner = learner_of(kind(widest=1), Own())
        for axis in range(2):
            learner.learn(str(axis), points(axis), recipe=short())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"goal": 2}, "goal is a number from 0 to 1; got 2"),
        ({"most": -1}, "most is a number from 0 to 1; got -1"),
        ({"rounds": 0}, "rounds is a whole number from 1; got 0"),
        ({"widest": 0.5}, r"widest is a number from 1 to 1e\+06; got 0\.5"),
        ({"growth": 0}, r"growth is a number from 0\.01; got 0"),
    ],
)
@BOTH
def test_a_bad_setting_is_refused(kind: type[Compacting], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(NacreError, match=rf"^{kind.__name__}\.{message}$"):
        kind(**settings)


def test_bad_scores_are_refused() -> None:
    with pytest.raises(NacreError, match=r"^CPG\.score_rate is a number from 0; got -1$"):
        CPG(score_rate=-1)


def test_the_epochs_are_shared_out() -> None:
    method, recipe = Compacting(), Recipe(epochs=15)
    assert (method.epochs_of_goal(recipe), method.epochs_of_pruning(recipe)) == (2, 5)
    assert list(method.shares(recipe)) == [(0.19, 1, 4), (0.38, 1, 3), (0.57, 1, 2), (0.76, 1, 1), (0.95, 1, 0)]
    assert Compacting(goal=0.5).epochs_of_goal(recipe) == 0  # no room for two of them
    assert [epochs for _, epochs, _ in method.shares(Recipe(epochs=200))] == [6, 7, 7, 6, 7, 7, 6, 7, 7, 7]
