"""Scenarios in general: any list of tasks, the digits, and what may be chosen."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from nacre import Learner, NacreError, Recipe
from nacre.scenarios import SCENARIOS, Choices, Scenario, ScenarioTask


def task(name: str, **more: Any) -> ScenarioTask:
    examples = (torch.zeros(4, 3), torch.arange(4) % 2)
    return ScenarioTask(name, examples, examples, ("off", "on"), **more)


def names(scenario: Scenario) -> list[str]:
    return [task.name for task in scenario.tasks]


def test_any_list_of_tasks_is_a_scenario() -> None:
    scenario = Scenario("mine", [task(name) for name in "abcdef"], lambda: nn.Linear(3, 4))
    assert names(scenario) == list("abcdef")
    assert names(scenario.first(2)) == ["a", "b"]
    assert names(scenario.first(None)) == list("abcdef")
    assert sorted(names(scenario.ordered(0))) == list("abcdef")
    assert names(scenario.ordered(1)) == names(scenario.ordered(1))
    assert len({tuple(names(scenario.ordered(seed))) for seed in range(20)}) > 10
    assert dict(scenario.ordered(0).facts) == {}
    assert task("a").val is None


def test_examples_may_be_made_when_they_are_asked_for() -> None:
    asked = []

    def make() -> tuple[Tensor, Tensor]:
        asked.append(1)
        return torch.ones(2, 3), torch.tensor([0, 1])

    lazy = ScenarioTask("lazy", make, make, ("off", "on"), val=make)
    assert asked == []
    for part in (lazy.train, lazy.test, lazy.val):
        assert part is not None
        assert torch.equal(part[0], torch.ones(2, 3))
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("tasks", "message"), [(["a", "b", "a"], "a name of its own; a stands there twice"), ([], "at least one task")]
)
def test_tasks_that_make_no_scenario_are_refused(tasks: list[str], message: str) -> None:
    with pytest.raises(NacreError, match=message):
        Scenario("mine", [task(name) for name in tasks], lambda: nn.Linear(3, 4))


@pytest.mark.parametrize("count", [0, 6, -1])
def test_more_tasks_than_there_are_is_refused(count: int) -> None:
    with pytest.raises(NacreError, match=f"digits has 5 tasks; got --tasks {count}"):
        SCENARIOS["digits"](Choices()).first(count)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"class_order": "alphabetical"}, "consecutive, random or superclass; got 'alphabetical'"),
        ({"holdout": 1.0}, r"from 0 to below 1; got 1\.0"),
        ({"holdout": -0.1}, r"got -0\.1"),
        ({"holdout": float("nan")}, "got nan"),
        ({"network": "resnet"}, "resnet50 or vit_tiny; got 'resnet'"),
    ],
)
def test_a_choice_that_is_none_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(NacreError, match=message):
        Choices(**wrong)


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("digits", Choices(class_order="superclass"), "digits has no class order superclass; it has consecutive and"),
        ("miniimagenet", Choices(class_order="superclass"), "miniimagenet has no class order superclass"),
        ("five-datasets", Choices(class_order="random"), "five-datasets has no class order random; it has consecutive"),
        ("digits", Choices(data="."), "they take no --data"),  # type: ignore[arg-type]  # text is a path too
    ],
)
def test_a_choice_that_a_scenario_does_not_have_is_refused(name: str, chosen: Choices, message: str) -> None:
    with pytest.raises(NacreError, match=message):
        SCENARIOS[name](chosen)


# digits


def reference_digits(first: int, side: int) -> tuple[Tensor, list[int], Tensor, list[int]]:
    """One task of two digits, class after class, every fifth image for testing."""
    data = load_digits()
    images = F.interpolate(torch.tensor(data.images / 16, dtype=torch.float32)[:, None], (side, side), mode="bilinear")
    images = (images - images.mean()) / images.std()
    rows = [np.flatnonzero(data.target == digit) for digit in (first, first + 1)]
    train = [(row, number) for number, found in enumerate(rows) for at, row in enumerate(found.tolist()) if at % 5]
    test = [(row, number) for number, found in enumerate(rows) for row in found[::5].tolist()]
    rows_of = [torch.tensor([row for row, _ in part]) for part in (train, test)]
    labels_of = [[number for _, number in part] for part in (train, test)]
    return images[rows_of[0]], labels_of[0], images[rows_of[1]], labels_of[1]


@pytest.mark.parametrize(("network", "side"), [(None, 24), ("conv5", 24), ("vgg16_bn", 32)])
def test_the_digits_are_scaled_up_to_what_the_network_takes(network: str | None, side: int) -> None:
    scenario = SCENARIOS["digits"](Choices(network=network))
    assert names(scenario) == ["0-1", "2-3", "4-5", "6-7", "8-9"]
    for number, task in enumerate(scenario.tasks):
        images, labels, test_images, test_labels = reference_digits(2 * number, side)
        torch.testing.assert_close(task.train[0], images, rtol=0, atol=1e-6)
        torch.testing.assert_close(task.test[0], test_images, rtol=0, atol=1e-6)
        assert (task.train[1].tolist(), task.test[1].tolist()) == (labels, test_labels)
        assert task.classes == (str(2 * number), str(2 * number + 1))
        assert task.augment is None
    assert json.loads(json.dumps(scenario.facts))["network"] == (network or "conv5")


def test_random_digits_are_other_pairs_for_every_seed() -> None:
    scenario = SCENARIOS["digits"](Choices(class_order="random"))
    pairs = [[task.classes for task in scenario.ordered(seed).tasks] for seed in range(5)]
    for drawn in pairs:
        assert sorted(digit for pair in drawn for digit in pair) == list("0123456789")
    assert len(set(map(tuple, pairs))) == 5


def test_a_scenarios_task_is_learnt() -> None:
    scenario = SCENARIOS["digits"](Choices(holdout=0.2))
    task = scenario.tasks[0]
    learner = Learner(scenario.backbone(), device="cpu", progress=False)
    result = learner.learn(
        task.name,
        task.train,
        test=task.test,
        val=task.val,
        classes=task.classes,
        recipe=Recipe(epochs=5, batch_size=16),
    )
    assert result.accuracy is not None
    assert result.accuracy > 95
