"""PackNet: each task prunes most of the weights that it trained, and the pruned ones are the next task's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from nacre.methods.checks import check_number, check_share
from nacre.methods.holding import hold, prune
from nacre.methods.method import WeightsMethod
from nacre.space import MultitaskNetwork, Weights
from nacre.training import Recipe, Task, fit


@dataclass(frozen=True)
class PackNet(WeightsMethod):
    """PackNet (Mallya and Lazebnik, 2018).

    prune: the share of the free weights of each layer that a task gives up, smallest magnitudes first.
    retrain: the share of the epochs that trains on what was kept, at `retrain_rate` of the learning rate.

    >>> [recipe.epochs for recipe in PackNet().recipes(Recipe(epochs=15))]
    [10, 15]
    """

    prune: float = 0.75
    retrain: float = 1 / 3
    retrain_rate: float = 0.1

    name: ClassVar[str] = "packnet"
    title: ClassVar[str] = "PackNet"

    def learn(self, weights: Weights, task: Task) -> None:
        network = weights.expand(task.head)
        taken = taken_by_earlier(weights, network)
        first, then = self.recipes(task.recipe)
        fit(network, replace(task, recipe=first), after_step=hold(network.shared(), taken))
        kept = prune(network.shared(), taken, self.prune)  # the others are 0 now, and free for later tasks
        still = hold(network.shared(), {name: ~mask for name, mask in kept.items()})
        rest = range(first.epochs, then.epochs)
        fit(network, replace(task, recipe=then), phase="retrain", epochs=rest, after_step=still)
        masks = {name: taken[name] | kept[name] for name in kept}
        weights.append(task.name, network, classes=task.classes, masks=masks)

    def recipes(self, recipe: Recipe) -> tuple[Recipe, Recipe]:
        """How a task is trained up to the pruning, and from there to the last epoch.

        Each has a schedule of its own: at the end of one for both, the rate would be too low to retrain with.
        """
        before = max(1, recipe.epochs - round(self.retrain * recipe.epochs))
        rate = recipe.learning_rate * self.retrain_rate
        return replace(recipe, epochs=before), replace(recipe, learning_rate=rate, schedule="constant")

    def __post_init__(self) -> None:
        check_share(self, "prune")
        check_share(self, "retrain")
        check_number(self, "retrain_rate", least=1e-9)


def taken_by_earlier(weights: Weights, network: MultitaskNetwork) -> dict[str, Tensor]:
    """Which weights earlier tasks own: a task answers with its own and all those of the tasks before it."""
    if weights.tasks:
        return weights.masks(weights.tasks[-1])
    return {name: torch.zeros(weight.shape, dtype=torch.bool) for name, weight in network.shared().items()}
