"""A-GEM: the projected gradient never goes against the memory's, and is untouched where it need not be projected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre import NacreError
from nacre.methods import AGEM, Finetune
from nacre.methods.agem import projection
from nacre.methods.replay import Replay, add_task
from nacre.space import Memory, MultitaskNetwork, Weights
from nacre.training import Task
from nacre.training.batches import as_batches
from nacre.training.processes import Processes
from nacre.training.task import cross_entropy
from tests.methods.problems import layers, learner_of, normed, pictures, points, short

ONE = Processes(torch.device("cpu"))


def task_of(name: str, data: Any) -> Task:
    return Task(name, nn.Linear(12, 2), as_batches(data, short(), ONE), cross_entropy, short(), ONE)


def prepared(batch: int = 1000) -> tuple[MultitaskNetwork, Replay, Memory]:
    """A network for a second task, and the replay of all that is kept of the first."""
    weights = Weights(layers())
    network = weights.expand(nn.Linear(12, 2))
    network(points(0)[0])
    weights.append("a", network, memory=add_task(Memory(), task_of("a", points(0)), 20, torch.Generator()))
    network = weights.expand(nn.Linear(12, 2), earlier=True)
    return network, Replay(weights.memory, network, task_of("b", points(1)), batch), weights.memory


def flat(gradients: Any) -> Any:
    return np.concatenate([np.zeros(0), *(g.double().numpy().ravel() for g in gradients)])


def reference(network: MultitaskNetwork, memory: Memory) -> list[Tensor]:
    """The gradient of the mean loss on the memory, worked out layer by layer: the first task's biases and head."""
    kept, own = memory.tasks["a"], network.own("a")
    x = kept.inputs
    for layer in ("0", "2"):
        x = F.relu(F.linear(x, network.shared()[f"{layer}.weight"], own.private[f"{layer}.bias"]))
    loss = F.cross_entropy(own.head(x), kept.targets)
    found = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(network.parameters(), found, strict=True)]


@pytest.mark.parametrize("seed", range(6))
def test_the_projection_is_the_published_one(seed: int) -> None:
    network, replay, memory = prepared()
    r = reference(network, memory)
    draw = torch.Generator().manual_seed(seed)
    sign = -1.0 if seed % 2 else 1.0
    for parameter, along in zip(network.parameters(), r, strict=True):
        parameter.grad = torch.randn(parameter.shape, generator=draw) + sign * 20 * along
    before = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    projection(network, replay, ONE)()
    after = [parameter.grad for parameter in network.parameters()]
    g, ref = flat(before), flat(r)
    product = g @ ref
    if product >= 0:
        assert seed % 2 == 0
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True) if a is not None)
    else:
        np.testing.assert_allclose(flat(after), g - product / (ref @ ref) * ref, rtol=1e-4, atol=1e-6)
        assert flat(after) @ ref > -1e-5 * np.linalg.norm(g) * np.linalg.norm(ref)
        assert seed % 2 == 1


def test_what_had_no_gradient_takes_part_in_the_projection() -> None:
    """An earlier task's head has none from the new task's batch, but the memory has one for it."""
    network, replay, memory = prepared()
    r = reference(network, memory)
    weight = network.backbone.get_parameter("0.weight")
    for parameter, along in zip(network.parameters(), r, strict=True):
        parameter.grad = -along.clone() if parameter is weight else None
    projection(network, replay, ONE)()
    scale = float((r[0] ** 2).sum()) / float(sum((along**2).sum() for along in r))
    head = network.own("a").head.get_parameter("weight")
    at = [parameter is head for parameter in network.parameters()].index(True)
    assert head.grad is not None
    torch.testing.assert_close(head.grad, scale * r[at], rtol=1e-4, atol=1e-7)
    flat_after = [torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters()]
    assert abs(flat(flat_after) @ flat(r)) < 1e-6


def test_while_training_no_step_goes_against_the_memory() -> None:
    products: list[float] = []
    weights_learner = learner_of(AGEM(memory=30, batch=1000))
    weights_learner.learn("a", points(0), recipe=short())
    assert isinstance(weights_learner.knowledge, Weights)
    kept = weights_learner.knowledge.memory.tasks["a"]

    def step(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return Spy(parameters, lr=0.05)

    class Spy(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            (group,) = self.param_groups
            weight0, _, weight1, _, head, head_bias = self.old(group["params"])
            hidden = F.relu(F.linear(F.relu(F.linear(kept.inputs, weight0, bias_a[0])), weight1, bias_a[1]))
            loss = F.cross_entropy(F.linear(hidden, head, head_bias), kept.targets)
            wanted = [weight0, weight1, head, head_bias, *bias_a]
            found = torch.autograd.grad(loss, wanted)
            g = [torch.zeros_like(p) if p.grad is None else p.grad for p in wanted]
            products.append(float(sum((a * b).sum() for a, b in zip(g, found, strict=True))))
            scale.append(float(sum((b**2).sum() for b in found)))
            return super().step(closure)

        @staticmethod
        def old(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
            """Backbone weights and biases of the new task, then the head of the first."""
            shapes = [tuple(p.shape) for p in parameters]
            assert shapes == [(16, 6), (16,), (12, 16), (12,), (2, 12), (2,), (16,), (12,), (2, 12), (2,)]
            bias_a[:] = parameters[6:8]
            return [*parameters[:4], *parameters[8:]]

    bias_a: list[nn.Parameter] = []
    scale: list[float] = []
    weights_learner.learn("b", points(1), recipe=short(4, optimizer=step))
    assert len(products) == 4 * 6
    assert all(product > -1e-4 * square - 1e-6 for product, square in zip(products, scale, strict=True))


def test_the_memory_holds_as_many_of_each_class_and_of_every_task() -> None:
    learner = learner_of(AGEM(memory=10))
    for axis, task in enumerate("abc"):
        learner.learn(task, points(axis), recipe=short(1))
    assert isinstance(learner.knowledge, Weights)
    memory = learner.knowledge.memory
    assert list(memory.tasks) == ["a", "b", "c"]
    for axis, kept in enumerate(memory.tasks.values()):
        x, y = points(axis)
        assert kept.targets.bincount().tolist() == [5, 5]
        for one, label in zip(kept.inputs, kept.targets, strict=True):
            (at,) = (x == one).all(1).nonzero()
            assert y[at] == label
    size = learner.knowledge.size()
    assert (size.images, size.image_bytes) == (30, 30 * (6 * 4 + 8))
    assert size.megabytes == pytest.approx(4 * (288 + 3 * 28 + 3 * 26) / 1e6)


def test_without_a_memory_it_is_finetuning() -> None:
    learners = [learner_of(method) for method in (AGEM(memory=0), Finetune())]
    for learner in learners:
        for axis, task in enumerate("ab"):
            learner.learn(task, points(axis), recipe=short())
    x, _ = points(0)
    assert torch.equal(*(learner.predict(x, task="a") for learner in learners))


def test_norm_layers_answer_for_the_memory_as_their_task_was_learnt() -> None:
    weights = Weights(normed())
    network = weights.expand(nn.Linear(12, 2))
    network(pictures(0)[0] + 3)
    weights.append("a", network, memory=add_task(Memory(), task_of("a", pictures(0)), 8, torch.Generator()))
    network = weights.expand(nn.Linear(12, 2), earlier=True)
    statistics = {name: value.clone() for name, value in network.state_dict().items() if "running" in name}
    replay = Replay(weights.memory, network, task_of("b", pictures(1)), 8)
    kept = weights.memory.tasks["a"]
    expected = F.cross_entropy(weights.network("a")(kept.inputs), kept.targets)
    torch.testing.assert_close(replay.loss(), expected, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(network.state_dict()[name], value) for name, value in statistics.items())
    assert network.backbone.get_submodule("1").training


def test_a_bad_setting_is_refused() -> None:
    with pytest.raises(NacreError, match=r"^AGEM\.memory is a whole number from 0; got 1\.5$"):
        AGEM(memory=1.5)  # type: ignore[arg-type]
    with pytest.raises(NacreError, match=r"^AGEM\.batch is a whole number from 1; got 0$"):
        AGEM(batch=0)
