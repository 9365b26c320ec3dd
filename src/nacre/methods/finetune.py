"""Finetune: every task trains on where the last one stopped. The lower bound: nothing is done against forgetting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nacre.methods.method import WeightsMethod
from nacre.space import Weights
from nacre.training import Task, fit


@dataclass(frozen=True)
class Finetune(WeightsMethod):
    """One network; each task has a head, norm tensors and biases of its own, and overwrites the weights."""

    name: ClassVar[str] = "finetune"
    title: ClassVar[str] = "finetune"

    def learn(self, weights: Weights, task: Task) -> None:
        network = weights.expand(task.head)
        fit(network, task)
        weights.append(task.name, network, classes=task.classes)
