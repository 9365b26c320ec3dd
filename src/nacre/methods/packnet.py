"""PackNet: each task prunes most of the weights that it trained, and the pruned ones are the next task's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nacre.methods.checks import check_share
from nacre.methods.holding import Masks, hold, largest
from nacre.methods.method import WeightsMethod
from nacre.space import MultitaskNetwork, Weights
from nacre.training import Task, fit


@dataclass(frozen=True)
class PackNet(WeightsMethod):
    """PackNet (Mallya and Lazebnik, 2018).

    prune: the share of the free weights of each layer that a task gives up, smallest magnitudes first.
    retrain: the share of the epochs that trains on what was kept.

    >>> PackNet(prune=0.5).epochs(15)
    (10, 15)
    """

    prune: float = 0.75
    retrain: float = 1 / 3

    name: ClassVar[str] = "packnet"
    title: ClassVar[str] = "PackNet"

    def learn(self, weights: Weights, task: Task) -> None:
        network = weights.expand(task.head)
        taken = taken_by_earlier(weights, network)
        middle, end = self.epochs(task.recipe.epochs)
        fit(network, task, epochs=range(middle), after_step=hold(network.shared(), taken))
        kept = self.pruned(network, taken)  # the others are 0 now, and free for later tasks
        still = {name: ~kept[name] for name in kept}
        fit(network, task, phase="retrain", epochs=range(middle, end), after_step=hold(network.shared(), still))
        masks = {name: taken[name] | kept[name] for name in kept}
        weights.append(task.name, network, classes=task.classes, masks=masks)

    def epochs(self, count: int) -> tuple[int, int]:
        """The epoch before which weights are pruned, and the last."""
        return max(1, count - round(self.retrain * count)), count

    @torch.no_grad()
    def pruned(self, network: MultitaskNetwork, taken: Masks) -> dict[str, Tensor]:
        """Sets the smallest free weights of every layer to 0, and gives which of the free ones are kept."""
        kept = {}
        for name, weight in network.shared().items():
            free = ~taken[name].to(weight.device)
            count = int(free.sum())
            kept[name] = largest(weight, free, count - round(self.prune * count))
            weight[free & ~kept[name]] = 0.0
        return {name: mask.cpu() for name, mask in kept.items()}

    def __post_init__(self) -> None:
        check_share(self, "prune")
        check_share(self, "retrain")


def taken_by_earlier(weights: Weights, network: MultitaskNetwork) -> dict[str, Tensor]:
    """Which weights earlier tasks own: a task answers with its own and all those of the tasks before it."""
    if weights.tasks:
        return weights.masks(weights.tasks[-1])
    return {name: torch.zeros(weight.shape, dtype=torch.bool) for name, weight in network.shared().items()}
