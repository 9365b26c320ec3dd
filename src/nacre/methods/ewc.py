"""EWC: weights that earlier tasks depend on are drawn back to where those tasks left them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nacre.methods.checks import check_count, check_number
from nacre.methods.method import WeightsMethod
from nacre.methods.replay import reservoir
from nacre.space import Memory, MultitaskNetwork, Weights
from nacre.training import Penalty, Task, fit
from nacre.training.progress import Progress
from nacre.training.seeding import generator, seeded
from nacre.training.task import cross_entropy
from nacre.trees import map_leaves, split


@dataclass(frozen=True)
class EWC(WeightsMethod):
    """Elastic weight consolidation (Kirkpatrick et al., 2017).

    strength: lambda, the weight of the penalty. samples: how many examples of a task the Fisher diagonal is taken on.
    """

    strength: float = 5000.0
    samples: int = 500

    name: ClassVar[str] = "ewc"
    title: ClassVar[str] = "EWC"

    def learn(self, weights: Weights, task: Task) -> None:
        network = weights.expand(task.head)
        fit(network, task, penalty=self.penalty(network, weights.state) if weights.tasks else None)
        values = {name: weight.detach().cpu() for name, weight in network.shared().items()}
        state = consolidated(weights.state, fisher(network, task, self.samples), values)
        weights.append(task.name, network, classes=task.classes, state=state)

    def penalty(self, network: MultitaskNetwork, state: Mapping[str, Tensor]) -> Penalty:
        """lambda / 2 times the sum over earlier tasks of F (w - w*)^2, but for what does not depend on w."""
        device = next(network.parameters()).device
        terms = [
            (weight, state[f"fisher/{name}"].to(device), state[f"centre/{name}"].to(device))
            for name, weight in network.shared().items()
        ]
        return lambda: self.strength / 2 * sum_of(F * (w - centre) ** 2 for w, F, centre in terms)

    def __post_init__(self) -> None:
        check_number(self, "strength")
        check_count(self, "samples", least=1)


def sum_of(terms: Iterator[Tensor]) -> Tensor:
    return torch.stack([term.sum() for term in terms]).sum()


def consolidated(state: Mapping[str, Tensor], new: Mapping[str, Tensor], at: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One more task's quadratic added to those of the earlier ones: a sum of quadratics is a quadratic.

    Its Fisher diagonal is the sum of theirs, its centre the mean of their weights, weighted by their Fisher diagonals.
    """
    found = {}
    for name, weight in at.items():
        old, centre = state.get(f"fisher/{name}"), state.get(f"centre/{name}")
        old, centre = (torch.zeros_like(weight), weight) if old is None or centre is None else (old, centre)
        total = old + new[name]
        found[f"fisher/{name}"] = total
        found[f"centre/{name}"] = torch.where(total > 0, (old * centre + new[name] * weight) / total, weight)
    return found


def fisher(network: MultitaskNetwork, task: Task, samples: int) -> dict[str, Tensor]:
    """The mean over examples of the squared gradient of log p(y | x); y is drawn from what the network answers.

    Where the loss is one of the user's own, that loss on the targets stands for -log p.
    """
    weights = network.shared()
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    chosen = reservoir(Memory(), task, samples, generator(task.seed, task.name, "fisher")).tasks[task.name]
    progress = Progress(task.name, "fisher", 1, 0, wanted=task.progress and task.processes.main)
    network.eval()
    with seeded(task.seed, task.name, "fisher"), contextlib.closing(progress):
        for at, (inputs, target) in enumerate(split([chosen.inputs, chosen.targets], 1)):
            outputs = network(map_leaves(lambda leaf: leaf.to(task.processes.device), inputs))
            if task.loss is cross_entropy:
                target = outputs.detach().softmax(1).multinomial(1).squeeze(1).to("cpu")
            target = map_leaves(lambda leaf: leaf.to(task.processes.device), target)
            gradients = torch.autograd.grad(task.loss(outputs, target), list(weights.values()), allow_unused=True)
            for name, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    total[name] += gradient**2
            progress.count(1)
            if progress.due():
                progress.show(0, at / len(chosen), None, None)
    return {name: (summed / len(chosen)).cpu() for name, summed in total.items()}
