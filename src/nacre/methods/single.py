"""Single: one dense network for each task, the paper's Baseline_UB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nacre.methods.method import SpaceMethod
from nacre.space import SharedSpace
from nacre.training import Task, fit


@dataclass(frozen=True)
class Single(SpaceMethod):
    """No sharing, no factors: the upper bound in accuracy and in size."""

    name: ClassVar[str] = "single"
    title: ClassVar[str] = "single"

    def learn(self, space: SharedSpace, task: Task) -> None:
        network = space.expand(task.head, dense=True)
        fit(network, task)
        space.append(task.name, network, classes=task.classes)
