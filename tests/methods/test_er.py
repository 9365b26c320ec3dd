"""ER: the reservoir is uniform over the stream and within its budget; what is replayed is learnt with its own head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.methods import ER, Finetune
from nacre.methods.replay import Replay, reservoir
from nacre.space import Memory, Weights
from nacre.training import Task
from nacre.training.batches import as_batches
from nacre.training.processes import Processes
from nacre.training.task import cross_entropy
from tests.methods.problems import layers, learner_of, points, short

ONE = Processes(torch.device("cpu"))


def task_of(name: str, data: tuple[Tensor, Tensor]) -> Task:
    return Task(name, nn.Linear(12, 2), as_batches(data, short(), ONE), cross_entropy, short(), ONE)


def test_the_reservoir_is_uniform_over_the_stream() -> None:
    """Each of 60 examples of three tasks is kept equally often: chi-square over 400 streams, 59 degrees of freedom."""
    size, streams, counts = 15, 400, np.zeros(60)
    lengths = {"a": 10, "b": 30, "c": 20}
    for seed in range(streams):
        draw, memory, begun = torch.Generator().manual_seed(seed), Memory(), 0
        for name, length in lengths.items():
            x = torch.arange(begun, begun + length)[:, None].float()
            memory = reservoir(memory, task_of(name, (x, torch.zeros(length, dtype=torch.long))), size, draw)
            begun += length
            assert memory.seen == begun
            assert memory.images == min(size, begun)
            assert len({float(one) for kept in memory.tasks.values() for one in kept.inputs}) == min(size, begun)
        for kept in memory.tasks.values():
            counts[kept.inputs[:, 0].long().numpy()] += 1
    expected = streams * size / 60
    statistic = float(((counts - expected) ** 2 / expected).sum())
    # draws of one stream exclude each other, so the statistic is chi-square times 1 - 15/60; 99.9 % of it is below
    assert statistic / (1 - size / 60) < 98.3
    assert counts.min() > 0


@pytest.mark.parametrize("size", [0, 1, 7, 500])
def test_the_memory_never_exceeds_its_budget(size: int) -> None:
    learner = learner_of(ER(memory=size))
    for axis, task in enumerate("abc"):
        learner.learn(task, points(axis), recipe=short(1))
        known = learner.knowledge.size()
        assert known.images == min(size, 48 * (axis + 1))
        assert known.image_bytes == known.images * (6 * 4 + 8)
        assert known.megabytes == pytest.approx(4 * (288 + (axis + 1) * (28 + 26)) / 1e6)


def test_what_is_kept_are_examples_with_their_own_labels() -> None:
    learner = learner_of(ER(memory=20))
    for axis, task in enumerate("abc"):
        learner.learn(task, points(axis), recipe=short(1))
    assert isinstance(learner.knowledge, Weights)
    for task, kept in learner.knowledge.memory.tasks.items():
        x, y = points("abc".index(task))
        for one, label in zip(kept.inputs, kept.targets, strict=True):
            (at,) = (x == one).all(1).nonzero()
            assert y[at] == label


def test_the_replayed_loss_is_the_mean_over_examples_each_with_its_own_head() -> None:
    weights = Weights(layers())
    memory, draw = Memory(), torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        heads = [nn.Linear(12, 2) for _ in range(4)]  # so that no two losses are alike by chance
    for axis, name in enumerate("abc"):
        network = weights.expand(heads[axis])
        network(points(axis)[0])
        memory = reservoir(memory, task_of(name, points(axis)), 24, draw)
        weights.append(name, network, memory=memory)
    network = weights.expand(heads[3], earlier=True)
    losses = [
        F.cross_entropy(weights.network(name)(kept.inputs), kept.targets, reduction="none").detach()
        for name, kept in memory.tasks.items()
    ]
    assert len(losses) == 3
    whole = Replay(memory, network, task_of("d", points(3)), 24).loss()
    torch.testing.assert_close(whole, torch.cat(losses).mean(), rtol=1e-5, atol=1e-6)
    part = Replay(memory, network, task_of("d", points(3)), 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = [part.loss().item() for _ in range(300)]
    distances = (torch.tensor(drawn)[:, None] - torch.cat(losses)).abs()  # [draws, examples]
    assert float(distances.amin(1).max()) < 1e-6
    assert len(distances.argmin(1).unique()) == 24


def test_it_forgets_less_than_finetuning_and_trains_old_heads_too() -> None:
    accuracies = {}
    for method in (ER(memory=100), Finetune()):
        learner = learner_of(method)
        learner.learn("a", points(0, 200), recipe=short(10))
        head = learner.network("a").get_submodule("head").get_parameter("weight")
        for axis, task in ((1, "b"), (2, "c")):
            learner.learn(task, points(axis, 200), recipe=short(10))
        changed = not torch.equal(learner.network("a").get_submodule("head").get_parameter("weight"), head)
        assert changed == isinstance(method, ER)
        accuracies[method.name] = learner.evaluate(points(0, 200), task="a")
    assert accuracies["er"] > accuracies["finetune"]
