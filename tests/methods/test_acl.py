"""ACL: reversed gradients, the difference loss, what is replayed, and private parts that never change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre import Learner, NacreError
from nacre.methods import ACL
from nacre.methods.acl import PartedWeights, Parts, difference, discriminator, reversed_gradient
from nacre.methods.replay import Replay
from nacre.networks import vgg16_bn_head
from nacre.training import Epoch, Task
from nacre.training.batches import as_batches
from nacre.training.processes import Processes
from nacre.training.task import cross_entropy
from tests.methods.problems import layers, learner_of, normed, pictures, points, short

ONE = Processes(torch.device("cpu"))


def weights_of(learner: Learner) -> PartedWeights:
    assert isinstance(learner.knowledge, PartedWeights)
    return learner.knowledge


def task_of(axis: int) -> Task:
    recipe = short()
    return Task(str(axis), nn.Linear(12, 2), as_batches(points(axis), recipe, ONE), cross_entropy, recipe, ONE)


def prepared(tasks: int = 1) -> tuple[Parts, PartedWeights]:
    """The network of one more task, after some."""
    learner = learner_of(ACL())
    for axis in range(tasks):
        learner.learn(str(axis), points(axis), recipe=short())
    weights = weights_of(learner)
    private = weights.new_part(0.25)
    network = weights.expand(weights.widened(nn.Linear(12, 2), private), earlier=True)
    earlier = {name: weights.beside(name) for name in weights.tasks}
    return Parts(network, private, earlier, discriminator(12, tasks + 2)), weights


# the losses


def test_a_reversed_gradient_leaves_the_numbers_alone() -> None:
    x = torch.randn(100, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = reversed_gradient(x, 0.05)
    assert torch.equal(y, x)
    slope = torch.linspace(-1, 1, 100)
    (y * slope).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, -0.05 * slope)


def test_the_shared_part_gets_the_discriminators_gradient_turned_around_and_the_discriminator_its_own() -> None:
    parts, _ = prepared()
    x, _ = points(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts(x)
        ACL(adversary=0.05, difference=0.0).penalty(parts, None)().backward()
        torch.manual_seed(0)
        noise = torch.randn(48, 12)
    shared, judge = list(parts.network.shared().values()), list(parts.discriminator.parameters())

    told = F.cross_entropy(parts.discriminator(parts.network.backbone(x)), torch.full((48,), 2))  # noise, task 0, this
    faked = F.cross_entropy(parts.discriminator(noise), torch.zeros(48, dtype=torch.long))
    for weight, along in zip(shared, torch.autograd.grad(told, shared, retain_graph=True), strict=True):
        assert along.any()
        torch.testing.assert_close(weight.grad, -0.05 * along, rtol=1e-3, atol=1e-8)
    for parameter, along in zip(judge, torch.autograd.grad(told + faked, judge), strict=True):
        torch.testing.assert_close(parameter.grad, along, rtol=1e-3, atol=1e-7)
    assert not any(parameter.grad.any() for parameter in parts.private.parameters() if parameter.grad is not None)


def test_the_difference_is_the_squared_norm_of_shared_times_private_features() -> None:
    draw = np.random.default_rng(0)
    S, P = draw.normal(size=(7, 5)), draw.normal(size=(7, 3))
    centred = [part - part.mean(0) for part in (S, P)]
    scaled = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in centred]
    expected = np.linalg.norm(scaled[0].T @ scaled[1], "fro") ** 2 / 7**2
    assert float(difference(torch.from_numpy(S), torch.from_numpy(P))) == pytest.approx(expected, rel=1e-4)


def test_the_difference_is_0_where_no_shared_feature_goes_along_with_a_private_one() -> None:
    S = torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [1.0, -1.0]])
    P = torch.tensor([[1.0, 0.5], [1.0, 0.5], [-1.0, -0.5], [-1.0, -0.5]])
    assert float(difference(S, P)) < 1e-12
    assert float(difference(S, S)) > 0.1
    assert float(difference(P[:, :1], P + 3)) == pytest.approx(1.0, rel=1e-4)  # a constant is none of it


def test_the_difference_reaches_both_parts() -> None:
    parts, _ = prepared()
    gradients = []
    for weight in (0.0, 1.0):
        parts.zero_grad()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            parts(points(1)[0])
            ACL(adversary=0.0, difference=weight).penalty(parts, None)().backward()
        of = [parts.network.shared()["0.weight"].grad, next(iter(parts.private.parameters())).grad]
        gradients.append([gradient is not None and bool(gradient.any()) for gradient in of])
    assert gradients == [[False, False], [True, True]]


# what is replayed


def test_an_earlier_task_is_answered_with_its_private_part_its_head_and_the_shared_part_of_now() -> None:
    parts, weights = prepared(2)
    x, _ = points(5)
    for task in weights.tasks:
        torch.testing.assert_close(parts.answer(task, x), weights.network(task)(x))
    with torch.no_grad():
        for weight in parts.network.shared().values():
            weight.add_(0.1)
    own = parts.network.own("0")
    values = {**parts.network.shared(), **own.private}
    shared = torch.func.functional_call(parts.network.backbone, values, (x,))
    expected = own.head(torch.cat([shared, weights.beside("0")(x)], 1))
    torch.testing.assert_close(parts.answer("0", x), expected)


def test_the_replayed_loss_trains_the_shared_part_alone() -> None:
    parts, weights = prepared(2)
    Replay(weights.memory, parts, task_of(2), 64).loss().backward()
    moved = {name for name, parameter in parts.named_parameters() if parameter.grad is not None}
    assert moved == {"network.backbone.0.weight", "network.backbone.2.weight"}


def test_examples_of_the_memory_are_told_apart_by_task() -> None:
    parts, weights = prepared(2)
    x, _ = points(2)
    parts(x)
    Replay(weights.memory, parts, task_of(2), 20).loss()
    places, shared, private = parts.encoded()
    assert sorted(places.tolist()) == [*sorted(places[48:].tolist()), *[3] * 48]
    assert set(places[48:].tolist()) == {1, 2}
    assert (len(places), shared.shape, private.shape) == (68, (68, 12), (68, 3))
    parts(x)
    assert parts.encoded()[0].tolist() == [3] * 48  # of this step alone


def test_the_memory_holds_as_many_of_each_class_and_of_every_task() -> None:
    learner = learner_of(ACL(memory=10))
    for axis in range(3):
        learner.learn(str(axis), points(axis), recipe=short(1))
    memory = weights_of(learner).memory
    assert [kept.targets.bincount().tolist() for kept in memory.tasks.values()] == [[5, 5]] * 3
    assert learner.knowledge.size().images == 30


def test_it_learns_without_a_memory() -> None:
    learner = learner_of(ACL(memory=0))
    for axis in range(2):
        learner.learn(str(axis), points(axis), recipe=short())
    assert learner.knowledge.size().images == 0


def test_the_discriminator_learns_at_a_tenth_of_the_rate() -> None:
    """Adam moves a number by about its rate in a step."""
    seen: list[list[Tensor]] = []

    def look(_: Epoch, network: nn.Module) -> None:
        assert isinstance(network, Parts)
        modules = (network.discriminator, network.private, network.network.backbone)
        seen.append([torch.cat([p.detach().clone().flatten() for p in module.parameters()]) for module in modules])

    learner = learner_of(ACL())
    learner.learn("a", points(0), recipe=short(2, batch_size=48, schedule="constant"), callbacks=[look])
    judge, private, shared = (float((after - before).abs().max()) for before, after in zip(*seen, strict=True))
    assert 0.5e-3 < judge < 1.5e-3
    assert min(private, shared) > 5e-3


# what is kept


@pytest.mark.parametrize("pictured", [False, True], ids=["layers", "norm layers"])
def test_what_is_private_to_a_task_never_changes_while_the_shared_part_does(pictured: bool) -> None:
    learner = learner_of(ACL(), normed() if pictured else layers())
    data = pictures if pictured else points
    learner.learn("a", data(0), recipe=short())
    weights = weights_of(learner)

    def kept() -> dict[str, Tensor]:
        record = weights.record("a")
        return {**record.private, **record.extra, **{f"head.{n}": p for n, p in record.head.state_dict().items()}}

    before, shared = {name: value.clone() for name, value in kept().items()}, weights.shared
    for axis, task in ((1, "b"), (2, "c")):
        learner.learn(task, data(axis), recipe=short())
    assert {name: value.numpy().tobytes() for name, value in kept().items()} == {
        name: value.numpy().tobytes() for name, value in before.items()
    }
    assert any(name.startswith("private/") for name in before)
    assert all(not torch.equal(weights.shared[name], shared[name]) for name in shared)
    assert any(not torch.equal(weights.extra("b")[name], weights.extra("a")[name]) for name in weights.extra("a"))


def test_a_task_answers_by_what_its_head_makes_of_shared_and_private_features() -> None:
    learner = learner_of(ACL(width=0.5))
    learner.learn("a", points(0), recipe=short())
    weights, (x, _) = weights_of(learner), points(5)
    extra, own = weights.extra("a"), weights.record("a")
    features = []
    for start, found in (("", {**weights.shared, **own.private}), ("private/", extra)):
        hidden = x
        for at in ("0", "2"):
            hidden = F.relu(F.linear(hidden, found[f"{start}{at}.weight"], found[f"{start}{at}.bias"]))
        features.append(hidden)
    assert [part.shape[1] for part in features] == [12, 6]
    torch.testing.assert_close(learner.predict(x, task="a"), own.head(torch.cat(features, 1)).detach())


def test_the_head_given_keeps_what_it_reads_of_the_shared_part() -> None:
    weights = weights_of(learner_of(ACL(), nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten())))
    private = weights.new_part(0.25)  # 2 units
    head = vgg16_bn_head(8 * 4, 5)  # at 2 x 2 places
    wider = weights.widened(head, private)
    first = wider.get_submodule("fc1")
    assert isinstance(first, nn.Linear)
    assert (first.in_features, first.out_features) == (32 + 8, 32)
    assert torch.equal(first.weight[:, :32], head.get_parameter("fc1.weight"))
    assert torch.equal(first.get_parameter("bias"), head.get_parameter("fc1.bias"))
    assert torch.equal(wider.get_parameter("fc2.weight"), head.get_parameter("fc2.weight"))
    assert head.get_parameter("fc1.weight").shape == (32, 32)


def test_to_give_a_network_draws_nothing() -> None:
    learner = learner_of(ACL(), normed())
    learner.learn("a", pictures(0), recipe=short(1))
    before = torch.random.get_rng_state()
    learner.network("a")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_size_by_hand() -> None:
    learner = learner_of(ACL(width=0.25))
    for axis in range(2):
        learner.learn(str(axis), points(axis), recipe=short(1))
    size = learner.knowledge.size()
    private = 6 * 4 + 4 + 4 * 3 + 3
    assert (size.weights, size.extra, size.heads) == (288, 2 * private, 2 * (2 * (12 + 3) + 2))
    assert size.megabytes == pytest.approx(4 * (288 + 2 * 28 + 2 * private + 2 * 32) / 1e6)
    assert (size.learning, size.images) == (0, 2 * 48)  # 65 are asked for, a task has 48; no discriminator is kept


# refused


def test_a_network_that_is_no_chain_is_refused_at_once() -> None:
    with pytest.raises(NacreError, match=r"needs a chain: .*; 1 is LayerNorm"):
        learner_of(ACL(), nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)))


def test_a_bad_setting_is_refused() -> None:
    settings: dict[str, Any] = {"adversary": -1, "difference": "x", "width": 2, "memory": -1, "batch": 0}
    for name, value in settings.items():
        with pytest.raises(NacreError, match=rf"^ACL\.{name} is a "):
            ACL(**{name: value})
