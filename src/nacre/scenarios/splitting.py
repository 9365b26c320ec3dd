"""Which classes make a task, which training images are held out, which network a scenario is learnt with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.errors import WrongUsage
from nacre.networks import NETWORKS
from nacre.scenarios.choices import Choices, ClassOrder
from nacre.scenarios.scenario import Scenario, ScenarioTask

Groups = Mapping[str, Sequence[int]]  # the classes of every task, by its name
MakeTask = Callable[[str, Sequence[int]], ScenarioTask]
_DEFAULT = "conv5"


def consecutive(classes: int, size: int) -> Groups:
    """Neighbouring labels, named by the first and the last: a name as short for any data set, in order when sorted.

    >>> consecutive(10, 5)
    {'0-4': [0, 1, 2, 3, 4], '5-9': [5, 6, 7, 8, 9]}
    """
    digits = len(str(classes - 1))
    firsts = range(0, classes, size)
    return {f"{at:0{digits}d}-{at + size - 1:0{digits}d}": list(range(at, at + size)) for at in firsts}


def drawn(classes: int, size: int, seed: int) -> Groups:
    """A permutation of the classes, cut into tasks; their order is drawn with it, so they are named by their place."""
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(seed)).tolist()
    digits = len(str(classes // size - 1))
    return {f"random-{at // size:0{digits}d}": order[at : at + size] for at in range(0, classes, size)}


def by_superclass(labels: Tensor, superclasses: Tensor, names: Sequence[str]) -> Groups:
    """The classes below each superclass."""
    groups = {name: sorted(set(labels[superclasses == at].tolist())) for at, name in enumerate(names)}
    return {name: classes for name, classes in groups.items() if classes}


def of_classes(
    name: str, choices: Choices, groups: Groups, make: MakeTask, network: Chosen, facts: Mapping[str, Any]
) -> Scenario:
    """A scenario whose tasks are groups of classes of one data set; where they are random, a seed draws them anew."""
    if choices.class_order == "random":
        draw = _Draw(make, sum(map(len, groups.values())), len(next(iter(groups.values()))))
        return Scenario(name, draw(0), network.backbone, network.head, facts, draw)
    tasks = [make(*group) for group in groups.items()]
    facts = {**facts, "classes": {task.name: list(task.classes) for task in tasks}}
    return Scenario(name, tasks, network.backbone, network.head, facts)


@dataclass(frozen=True)
class _Draw:
    """The tasks that a seed draws."""

    make: MakeTask
    classes: int
    size: int

    def __call__(self, seed: int) -> list[ScenarioTask]:
        return [self.make(*group) for group in drawn(self.classes, self.size, seed).items()]


def hold_out(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Which examples are trained on and which are held out, the same share of every class, the same ones always.

    Every class keeps at least one to train on.

    >>> [part.tolist() for part in hold_out(torch.tensor([0, 0, 1, 1]), 0.5)]
    [[1, 2], [0, 3]]
    """
    held = torch.zeros(len(labels), dtype=torch.bool)
    draw = torch.Generator().manual_seed(0)
    for label in labels.unique().tolist() if share else []:
        found = (labels == label).nonzero()[:, 0]
        count = min(round(share * len(found)), len(found) - 1)
        held[found[torch.randperm(len(found), generator=draw)[:count]]] = True
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


@dataclass(frozen=True)
class Chosen:
    """The network of a scenario, and the side that its images are scaled up to where they are smaller."""

    name: str
    side: int
    backbone: Callable[[], nn.Module]
    head: Callable[[int], nn.Module] | None

    def enlarge(self, images: Tensor) -> Tensor:
        if images.shape[-1] >= self.side:
            return images
        return F.interpolate(images, size=(self.side, self.side), mode="bilinear", align_corners=False)


def choose_network(choices: Choices, channels: int, side: int) -> Chosen:
    """The network asked for, made for images of a size."""
    name = choices.network or _DEFAULT
    network = NETWORKS[name]
    side = max(side, network.smallest)
    head = partial(network.head, network.features(channels, side)) if network.head is not None else None
    return Chosen(name, side, partial(network.build, channels), head)


def check_order(name: str, choices: Choices, *orders: ClassOrder) -> None:
    """Refuses a class order that a scenario does not have."""
    if choices.class_order not in orders:
        raise WrongUsage(f"{name} has no class order {choices.class_order}; it has {' and '.join(orders)}")


def facts_of(choices: Choices, network: Chosen, augment: str | None, data: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of a scenario. Where the data were on this machine is no part of it."""
    return {
        "data": dict(data),
        "class_order": choices.class_order,
        "holdout": float(choices.holdout),
        "augment": augment,
        "network": network.name,
        "side": network.side,
    }
