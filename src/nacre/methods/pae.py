"""PackAndExpand: each task packs itself into the weights that are free, on top of all earlier ones; too few, and the
network expands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nacre.methods.compacting import Compacting, together
from nacre.space import GrowingWeights
from nacre.training import Task


@dataclass(frozen=True)
class PAE(Compacting):
    """Packing and expanding (Hung et al., ICMR 2019). The settings are those of `Compacting`.

    >>> PAE(widest=2.0, goal=0.2).title
    'PAE'
    """

    name: ClassVar[str] = "pae"
    title: ClassVar[str] = "PAE"

    def learn(self, weights: GrowingWeights, task: Task) -> None:
        goal = self.goal_of(weights, task)
        trained = self.trained(weights, task, goal)  # expands while the goal is missed
        own = self.pruned(trained, task)  # packs while it holds
        masks = together(trained.taken, own)  # every earlier weight is used again
        weights.append(task.name, trained.network, classes=task.classes, masks=masks)
