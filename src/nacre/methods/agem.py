"""A-GEM: a gradient that would raise the loss on a memory of earlier tasks is projected until it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nacre.methods.checks import check_count
from nacre.methods.method import WeightsMethod
from nacre.methods.replay import Replay, add_task
from nacre.space import MultitaskNetwork, Weights
from nacre.training import Task, fit
from nacre.training.processes import Processes
from nacre.training.seeding import generator
from nacre.training.step import Hook


@dataclass(frozen=True)
class AGEM(WeightsMethod):
    """Averaged gradient episodic memory (Chaudhry et al., 2019).

    memory: examples kept of every task. batch: how many of them the reference gradient is worked out on.
    """

    memory: int = 65
    batch: int = 256

    name: ClassVar[str] = "agem"
    title: ClassVar[str] = "A-GEM"

    def learn(self, weights: Weights, task: Task) -> None:
        network = weights.expand(task.head, earlier=True)
        replay = Replay(weights.memory, network, task, self.batch) if weights.memory.images else None
        fit(network, task, after_backward=projection(network, replay, task.processes) if replay else None)
        draw = generator(task.seed, task.name, "memory")
        memory = add_task(weights.memory, task, self.memory, draw)
        weights.append(task.name, network, classes=task.classes, memory=memory)

    def __post_init__(self) -> None:
        check_count(self, "memory")
        check_count(self, "batch", least=1)


def projection(network: MultitaskNetwork, replay: Replay, processes: Processes) -> Hook:
    """An `after_backward`: the gradient g becomes g - (g.r / r.r) r where g.r < 0, r being the memory's gradient."""

    def project() -> None:
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        reference = torch.autograd.grad(replay.loss(), trained, allow_unused=True)
        processes.average(along for along in reference if along is not None)
        product, square = dot([p.grad for p in trained], reference), dot(reference, reference)
        if product < 0:
            for parameter, along in zip(trained, reference, strict=True):
                if along is not None:
                    new = -(product / square).to(along) * along
                    parameter.grad = new if parameter.grad is None else parameter.grad + new

    return project


def dot(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> Tensor:
    """The product of two gradients, as one long vector each; what has none is 0."""
    products = [(x.double() * y.double()).sum() for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return torch.stack(products).sum() if products else torch.zeros(())
