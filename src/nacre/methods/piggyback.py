"""Piggyback: each task learns which weights of one fixed network it uses, one bit a weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from nacre.methods.checks import check_number
from nacre.methods.method import WeightsMethod
from nacre.space import Weights
from nacre.training import Task, fit


@dataclass(frozen=True)
class Piggyback(WeightsMethod):
    """Piggyback (Mallya, Davis and Lazebnik, 2018) on the first task's dense network.

    A weight is used where its score is above `threshold`; scores start at `score`, so that at first all are used.
    rate: what the learning rate is multiplied by for the scores.
    """

    threshold: float = 5e-3
    score: float = 1e-2
    rate: float = 0.1

    name: ClassVar[str] = "piggyback"
    title: ClassVar[str] = "Piggyback"

    def learn(self, weights: Weights, task: Task) -> None:
        if not weights.tasks:
            network = weights.expand(task.head)
            fit(network, task)
            weights.append(task.name, network, classes=task.classes)
            return
        scores = Scores({name: weights.kinds[name][1] for name in weights.trained}, self.score, self.threshold)
        network = weights.expand(task.head, through=scores)
        for weight in network.shared().values():
            weight.requires_grad_(False)
        fit(network, task, rates=dict.fromkeys(scores.parameters(), self.rate))
        weights.append(task.name, network, classes=task.classes, keep=True, masks=scores.masks())

    def __post_init__(self) -> None:
        check_number(self, "threshold", least=-1.0, most=1.0)
        check_number(self, "score", least=-1.0, most=1.0)
        check_number(self, "rate")


class Scores(nn.Module):
    """A score for every shared weight; the weights of low score count as 0. The gradient passes the threshold by."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], score: float, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.names = tuple(shapes)
        self.scores = nn.ParameterList([torch.full(tuple(shape), score) for shape in shapes.values()])

    def forward(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: shared[name] * (mask + (score - score.detach()))  # exactly the mask, with the score's gradient
            for (name, mask), score in zip(self.masks().items(), self.scores, strict=True)
        }

    def masks(self) -> dict[str, Tensor]:
        return {name: score.detach() > self.threshold for name, score in zip(self.names, self.scores, strict=True)}
