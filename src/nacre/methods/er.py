"""ER: experience replay with a small memory that a reservoir fills (ER-RES)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nacre.methods.checks import check_count
from nacre.methods.method import WeightsMethod
from nacre.methods.replay import Replay, reservoir
from nacre.space import Weights
from nacre.training import Task, fit
from nacre.training.seeding import generator


@dataclass(frozen=True)
class ER(WeightsMethod):
    """Experience replay with tiny memories (Chaudhry et al., 2019), the reservoir of the paper's ER-RES.

    memory: examples kept of all tasks together. batch: how many of them are replayed beside every batch.
    """

    memory: int = 500
    batch: int = 64

    name: ClassVar[str] = "er"
    title: ClassVar[str] = "ER"

    def learn(self, weights: Weights, task: Task) -> None:
        network = weights.expand(task.head, earlier=True)
        replay = Replay(weights.memory, network, task, self.batch) if weights.memory.images else None
        fit(network, task, penalty=replay.loss if replay else None)
        memory = reservoir(weights.memory, task, self.memory, generator(task.seed, task.name, "memory"))
        weights.append(task.name, network, classes=task.classes, memory=memory)

    def __post_init__(self) -> None:
        check_count(self, "memory")
        check_count(self, "batch", least=1)
