"""Streams of tasks, by name; in Python any list of tasks makes one."""

from collections.abc import Callable

from nacre.scenarios.augment import CropFlip
from nacre.scenarios.choices import Choices
from nacre.scenarios.cifar100 import cifar100
from nacre.scenarios.digits import digits
from nacre.scenarios.five_datasets import five_datasets
from nacre.scenarios.miniimagenet import miniimagenet
from nacre.scenarios.scenario import Scenario, ScenarioTask

SCENARIOS: dict[str, Callable[[Choices], Scenario]] = {
    "digits": digits,
    "cifar100": cifar100,
    "miniimagenet": miniimagenet,
    "five-datasets": five_datasets,
}

__all__ = [
    "SCENARIOS",
    "Choices",
    "CropFlip",
    "Scenario",
    "ScenarioTask",
    "cifar100",
    "digits",
    "five_datasets",
    "miniimagenet",
]
