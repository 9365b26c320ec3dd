"""Compacting: what CPG and PackAndExpand share. An accuracy goal; networks that grow to reach it, and are pruned in
rounds while they hold it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.methods.checks import check_count, check_number, check_share
from nacre.methods.holding import Masks, hold, prune
from nacre.space import GrowingWeights, MultitaskNetwork
from nacre.training import Recipe, Task, fit
from nacre.training.checkpoint import cpu_copy, load_copy
from nacre.training.recipe import Rates
from nacre.training.seeding import seeded
from nacre.training.watch import score


@dataclass(frozen=True)
class Candidate:
    """A network for a task, which weights earlier tasks own, and parameters that learn at a rate of their own."""

    network: MultitaskNetwork
    taken: Masks
    rates: Rates


@dataclass(frozen=True)
class Compacting:
    """The settings and the steps that two methods share.

    goal: the share of the epochs that a network of the task's own trains for, to say what is to be reached; a network
    has as many to reach it. Where there are too few epochs for that there is no goal, and nothing grows.
    tolerance: how far below its goal a network may stay, in points of accuracy.
    growth, widest: what a growth adds to the number of weights, and how large it may become, both in first networks.
    pruning, rounds, most: the share of the epochs that prunes, in how many rounds at most, and which share of the free
    weights the last round has given up. rate: what the learning rate is multiplied by meanwhile.
    """

    goal: float = 1 / 8
    tolerance: float = 1.0
    growth: float = 0.5
    widest: float = 1.5
    pruning: float = 1 / 3
    rounds: int = 10
    most: float = 0.95
    rate: float = 0.1

    def begin(self, backbone: nn.Module, **options: Any) -> GrowingWeights:
        weights = GrowingWeights(backbone, **options)
        try:
            _ = self.widest > 1 and weights.can_grow
        except NacreError as error:
            raise NacreError(f"{type(self).__name__} grows: {error}. With widest=1 it does not") from error
        return weights

    def load(self, path: Path, **options: Any) -> GrowingWeights:
        return GrowingWeights.load(path, **options)

    # the goal

    def goal_of(self, weights: GrowingWeights, task: Task) -> float | None:
        """What a dense network of the task's own comes to; None where nothing can grow, or for the first task."""
        epochs = self.epochs_of_goal(task.recipe)
        if not weights.tasks or not epochs or weights.growth >= self.widest or not weights.can_grow:
            return None
        with seeded(task.seed, task.name, "goal"):
            network = weights.expand(copy.deepcopy(task.head), fresh=True)
        fit(network, steady(task, epochs), phase="goal")
        return reached(network, task)

    # growing

    def trained(self, weights: GrowingWeights, task: Task, goal: float | None) -> Candidate:
        """Trains what is free beside the weights of earlier tasks; on more units, as long as the goal is missed."""
        growth, left = weights.growth, task.recipe.epochs - self.epochs_of_pruning(task.recipe)
        candidate = self.candidate(weights, task, growth)
        if goal is not None:
            epochs = self.epochs_of_goal(task.recipe)
            left -= 2 * epochs  # the goal's own, and these
            train(candidate, steady(task, epochs), "try", free(candidate.taken))
            while growth < self.widest and left >= epochs and reached(candidate.network, task) < goal - self.tolerance:
                growth, left = min(growth + self.growth, self.widest), left - epochs
                candidate = self.candidate(weights, task, growth)
                train(candidate, steady(task, epochs), f"grow{growth:g}", free(candidate.taken))
        if left:
            train(candidate, lasting(task, left), "train", free(candidate.taken))
        return candidate

    def candidate(self, weights: GrowingWeights, task: Task, growth: float) -> Candidate:
        """A network that uses all weights of earlier tasks, and draws the free ones."""
        return begun(weights, task, growth)

    # pruning

    def pruned(self, candidate: Candidate, task: Task) -> dict[str, Tensor]:
        """Gives up more and more of the free weights, training the others, while the accuracy holds; what is kept."""
        network, own = candidate.network, free(candidate.taken)
        goal = reached(network, task)
        for number, (share, epochs, left) in enumerate(self.shares(task.recipe), start=1):
            before = cpu_copy(network)
            kept = prune(network.shared(), candidate.taken, share)
            train(candidate, steady(task, epochs, self.rate), f"prune{number}", kept, picking=False)
            if reached(network, task) < goal - self.tolerance:
                load_copy(network, before)
                if left:
                    train(candidate, steady(task, left, self.rate), "retrain", own)
                break
            own = kept
        return own

    def epochs_of_goal(self, recipe: Recipe) -> int:
        """How long the goal's network trains, and one that is to reach it; 0 where there are too few for both."""
        epochs = round(self.goal * recipe.epochs)
        return epochs if 2 * epochs <= recipe.epochs - self.epochs_of_pruning(recipe) else 0

    def epochs_of_pruning(self, recipe: Recipe) -> int:
        return min(round(self.pruning * recipe.epochs), recipe.epochs - 1)

    def shares(self, recipe: Recipe) -> Iterator[tuple[float, int, int]]:
        """Of each round: the share of the free weights given up after it, its epochs, and how many are left then.

        >>> list(Compacting(pruning=0.5, most=0.9).shares(Recipe(epochs=6)))
        [(0.3, 1, 2), (0.6, 1, 1), (0.9, 1, 0)]
        """
        epochs = self.epochs_of_pruning(recipe)
        rounds = min(self.rounds, epochs)
        for number in range(1, rounds + 1):
            first, last = (epochs * at // rounds for at in (number - 1, number))
            yield round(self.most * number / rounds, 6), last - first, epochs - last

    def __post_init__(self) -> None:
        for name in ("goal", "pruning", "most"):
            check_share(self, name)
        check_number(self, "tolerance", least=-100)
        check_number(self, "growth", least=0.01)
        check_number(self, "widest", least=1, most=1e6)
        check_number(self, "rate", least=1e-9)
        check_count(self, "rounds", least=1)


def begun(
    weights: GrowingWeights, task: Task, growth: float, through: nn.Module | None = None, rate: float = 1.0
) -> Candidate:
    """A network that trains what is free, and `through` at a rate of its own."""
    with seeded(task.seed, task.name, "growth", growth):
        network = weights.grown(copy.deepcopy(task.head), growth, through)
    return Candidate(network, weights.taken(growth), dict.fromkeys(through.parameters(), rate) if through else {})


def train(candidate: Candidate, task: Task, phase: str, moving: Masks, *, picking: bool = True) -> None:
    """Trains the weights that a mask names, with norm tensors, biases and head; all others stay still to the bit."""
    network, still = candidate.network, {name: ~mask for name, mask in moving.items()}
    if network.through is not None:
        network.through.requires_grad_(picking)
    fit(network, task, phase=phase, after_step=hold(network.shared(), still), rates=candidate.rates)


def lasting(task: Task, epochs: int) -> Task:
    """The same task for so many epochs, with the schedule shortened."""
    return replace(task, recipe=replace(task.recipe, epochs=epochs))


def steady(task: Task, epochs: int, rate: float = 1.0) -> Task:
    """The same task for so many epochs, all of them at a share of the learning rate that training begins with."""
    rate *= task.recipe.learning_rate
    return replace(task, recipe=replace(task.recipe, epochs=epochs, learning_rate=rate, schedule="constant"))


def reached(network: MultitaskNetwork, task: Task) -> float:
    """The accuracy on the validation data where there are any, else on the training data."""
    return score(network, task, task.train if task.val is None else task.val)


def free(taken: Masks) -> dict[str, Tensor]:
    return {name: ~mask for name, mask in taken.items()}


def together(first: Masks, second: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: mask | second[name] for name, mask in first.items()}
