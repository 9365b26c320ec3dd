"""A batch with a task for every example: answered as each task alone would, in order, by many threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nacre import Learner, NacreError, Recipe

CLASSES = {"a": 2, "b": 3, "c": 2, "d": 5, "e": 4, "f": 2}  # more tasks than a learner keeps networks
QUICK = Recipe(epochs=1, batch_size=16)


def learnt(features: Any = None, module: nn.Module | None = None, named: bool = False) -> Learner:
    torch.manual_seed(0)
    backbone = module or nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    learner = Learner(backbone, device="cpu", progress=False, features=features)
    for name, classes in CLASSES.items():
        x, y = torch.randn(30, 6), torch.arange(30) % classes
        learner.learn(name, train=({"x": x} if named else x, y), recipe=QUICK)
    return learner


@pytest.fixture(scope="module")
def learner() -> Learner:
    return learnt()


@settings(max_examples=30, deadline=None)
@given(tasks=st.lists(st.sampled_from([*CLASSES]), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_each_example_gets_the_bits_of_a_batch_of_its_task_alone(learner: Learner, tasks: list[str], seed: int) -> None:
    x = torch.randn(len(tasks), 6, generator=torch.Generator().manual_seed(seed))
    logits = learner.predict(x, task=tasks)
    assert [len(row) for row in logits] == [CLASSES[task] for task in tasks]
    for task in set(tasks):
        which = torch.tensor([name == task for name in tasks])
        alone = learner.network(task)(x[which]).detach()
        assert torch.equal(torch.stack([row for row, mine in zip(logits, which, strict=True) if mine]), alone)


def test_one_task_named_for_every_example_is_the_whole_batch(learner: Learner) -> None:
    x = torch.randn(7, 6)
    assert torch.equal(torch.stack(learner.predict(x, task=["b"] * 7)), learner.predict(x, task="b"))


def test_inputs_with_names_are_taken_apart_too() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 5)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"features": self.layer(x)}

    learner = learnt("features", Named(), named=True)
    x = torch.randn(5, 6)
    tasks = ["d", "a", "d", "a", "b"]
    logits = learner.predict({"x": x}, task=tasks)
    assert [len(row) for row in logits] == [5, 2, 5, 2, 3]
    assert torch.equal(torch.stack([logits[0], logits[2]]), learner.predict({"x": x[[0, 2]]}, task="d"))


def test_many_threads_ask_one_learner_and_get_the_same_bits(learner: Learner) -> None:
    names = [*CLASSES]
    batches = [torch.randn(12, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(24)]
    asked = [[names[(seed + at) % len(names)] for at in range(12)] for seed in range(24)]
    wanted = [learner.predict(x, task=tasks) for x, tasks in zip(batches, asked, strict=True)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda at: learner.predict(batches[at % 24], task=asked[at % 24]), range(96)))
    for at, rows in enumerate(found):
        assert all(torch.equal(one, other) for one, other in zip(rows, wanted[at % 24], strict=True))


def test_several_networks_are_plain_and_each_its_own(learner: Learner) -> None:
    networks = learner.networks(["d", "a"])
    assert [*networks] == ["d", "a"]
    x = torch.randn(4, 6)
    for task, network in networks.items():
        assert torch.equal(network(x), learner.predict(x, task=task))
    tensors = [tensor.data_ptr() for network in networks.values() for tensor in network.state_dict().values()]
    assert len(set(tensors)) == len(tensors)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (["a", "z"], "no task is called 'z'; the tasks are 'a', 'b', 'c', 'd', 'e', 'f'"),
        (["a", None], "say which task with task="),
        (["a"], r"a list of tasks names one for each example; got 1 for float32\[2, 6\]"),
        ([], r"a list of tasks names one for each example; got 0 for float32\[2, 6\]"),
        (3, "no task is called 3; the tasks are"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(learner: Learner, task: Any, message: str) -> None:
    with pytest.raises(NacreError, match=message):
        learner.predict(torch.randn(2, 6), task=task)


def test_networks_takes_a_list(learner: Learner) -> None:
    names: Any = "a"
    with pytest.raises(NacreError, match="several tasks are a list of their names; got 'a'"):
        learner.networks(names)
