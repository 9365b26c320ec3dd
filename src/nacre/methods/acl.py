"""ACL: a shared part that a discriminator cannot tell tasks apart by, and beside it a private part for every task."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.methods.chain import chain, check_chain, first_linear, head_link, narrowed
from nacre.methods.checks import check_count, check_number
from nacre.methods.method import check_options
from nacre.methods.replay import Replay, add_task
from nacre.space import MultitaskNetwork, Weights
from nacre.space.layout import counters, install, tensors
from nacre.training import Penalty, Task, fit
from nacre.training.seeding import generator
from nacre.trees import Tree

HIDDEN = 175  # units of the discriminator's layers, as the authors have it
DISCRIMINATOR_RATE = 0.1  # and what its learning rate is multiplied by
_PRIVATE = "private/"


@dataclass(frozen=True)
class ACL:
    """Adversarial continual learning (Ebrahimi et al., 2020).

    adversary, difference: the weights of the two losses. width: how many units a private part's layers have, as a share
    of the shared part's. memory: examples kept of every task. batch: how many are replayed beside every batch.
    """

    adversary: float = 0.05
    difference: float = 0.1
    width: float = 0.25
    memory: int = 65
    batch: int = 64

    name: ClassVar[str] = "acl"
    title: ClassVar[str] = "ACL"

    def begin(self, backbone: nn.Module, **options: Any) -> PartedWeights:
        check_options(self, options)
        weights = PartedWeights(backbone, **options)
        check_chain(backbone, weights.trained, weights.features)
        return weights

    def load(self, path: Path, **options: Any) -> PartedWeights:
        return PartedWeights.load(path, **options)

    def learn(self, weights: PartedWeights, task: Task) -> None:
        private = weights.new_part(self.width)
        network = weights.expand(weights.widened(task.head, private), earlier=True)
        earlier = {name: weights.beside(name).to(task.processes.device) for name in weights.tasks}
        _, reads = first_linear(task.head)
        parts = Parts(network, private, earlier, discriminator(reads.in_features, len(earlier) + 2))
        replay = Replay(weights.memory, parts, task, self.batch) if weights.memory.images else None
        fit(
            parts,
            task,
            penalty=self.penalty(parts, replay),
            rates=dict.fromkeys(parts.discriminator.parameters(), DISCRIMINATOR_RATE),
        )
        extra = {_PRIVATE + name: tensor for name, tensor in own_tensors(private).items()}
        memory = add_task(weights.memory, task, self.memory, generator(task.seed, task.name, "memory"))
        weights.append(task.name, parts, classes=task.classes, extra=extra, memory=memory)

    def penalty(self, parts: Parts, replay: Replay | None) -> Penalty:
        """The replayed tasks' loss, and on all examples of the step the adversarial and the difference loss."""

        def losses() -> Tensor:
            replayed = replay.loss() if replay is not None else torch.zeros(())
            places, shared, private = parts.encoded()
            told = F.cross_entropy(parts.discriminator(reversed_gradient(shared, self.adversary)), places)
            noise = torch.randn_like(shared)
            faked = F.cross_entropy(parts.discriminator(noise), torch.zeros_like(places))
            return replayed.to(told) + told + faked + self.difference * difference(shared, private)

        return losses

    def __post_init__(self) -> None:
        for setting in ("adversary", "difference"):
            check_number(self, setting)
        check_number(self, "width", most=1.0)
        check_count(self, "memory")
        check_count(self, "batch", least=1)


class Parts(nn.Module):
    """The network of a task while it is learnt: the head reads the shared part's features and then the private part's.

    The shared part is what all tasks train; the private parts, heads and norm tensors of earlier tasks stay.
    """

    def __init__(
        self, network: MultitaskNetwork, private: nn.Module, earlier: Mapping[str, nn.Module], judge: nn.Module
    ) -> None:
        super().__init__()
        self.network, self.private, self.discriminator = network, private, judge
        network.earlier.requires_grad_(False)
        self._earlier = {name: part.requires_grad_(False) for name, part in earlier.items()}
        self._encoded: list[tuple[int, Tensor, Tensor]] = []

    @property
    def backbone(self) -> nn.Module:
        return self.network.backbone

    def forward(self, inputs: Tree) -> Any:
        self.network.look_at(inputs)
        self._encoded = []  # a step begins
        return self.network.head(self._encode(inputs, None))

    def answer(self, task: str, inputs: Tree) -> Any:
        return self.network.own(task).head(self._encode(inputs, task))

    def _encode(self, inputs: Tree, task: str | None) -> Tensor:
        shared = self.network.features(inputs, task)
        private = (self.private if task is None else self._earlier[task])(inputs)
        if self.training:
            place = 1 + (len(self._earlier) if task is None else list(self._earlier).index(task))
            self._encoded.append((place, shared.float().flatten(1), private.float().flatten(1)))
        return torch.cat([shared, private], 1)

    def encoded(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of all examples of a step: their tasks' places from 1, shared and private features."""
        places, shared, private = zip(*self._encoded, strict=True)
        counted = [torch.full((len(of_task),), place) for place, of_task in zip(places, shared, strict=True)]
        return torch.cat(counted).to(shared[0].device), torch.cat(shared), torch.cat(private)


def discriminator(features: int, classes: int) -> nn.Module:
    """Says of shared features which task they are of: 0 is noise, then the earlier tasks, then the newest."""
    return nn.Sequential(
        nn.Linear(features, HIDDEN), nn.LeakyReLU(), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, classes)
    )


def reversed_gradient(x: Tensor, share: float) -> Tensor:
    """The same numbers; the gradient that comes back is turned around, and only this share of it.

    >>> x = torch.ones(1, requires_grad=True)
    >>> y = reversed_gradient(x, 0.5)
    >>> y.backward(); y.item(), x.grad
    (1.0, tensor([-0.5000]))
    """
    return x - (1 + share) * (x - x.detach())


def difference(shared: Tensor, private: Tensor) -> Tensor:
    """|S^T P|^2 over B^2 for B examples, the features' means taken away and each example scaled to length 1."""
    S, P = (F.normalize(part - part.mean(0), dim=1, eps=1e-6) for part in (shared, private))
    products: Tensor = (S @ S.T) * (P @ P.T)  # [B, B]: the same sum as over [features, features]
    return products.mean()


def own_tensors(part: nn.Module) -> dict[str, Tensor]:
    kept = counters(part)
    return {name: tensor for name, tensor in tensors(part).items() if name not in kept}


class PartedWeights(Weights):
    """Weights of the shared part, and with every task a private part: a narrow chain of layers like the shared one."""

    def new_part(self, width: float) -> nn.Module:
        units = [max(1, round(width * link.units)) for link in chain(self._template.module)]
        return narrowed(self._template.module, units)

    def widened(self, head: nn.Module, part: nn.Module) -> nn.Module:
        """A head that reads a private part's features after those that it reads."""
        each = head_link(self._template.module, head).each
        name, layer = first_linear(head)
        more = each * chain(part)[-1].units
        wider = nn.Linear(layer.in_features + more, layer.out_features, layer.bias is not None)
        with torch.no_grad():
            wider.weight[:, : layer.in_features] = layer.weight
            if layer.bias is not None:
                wider.bias.copy_(layer.bias)
        if not name:
            return wider
        head = copy.deepcopy(head)
        head.set_submodule(name, wider)
        return head

    def beside(self, task: str) -> nn.Module:
        """The private part of a task."""
        extra = {name.removeprefix(_PRIVATE): value.clone() for name, value in self.extra(task).items()}
        with torch.device("meta"):  # draws nothing
            thinnest = narrowed(self._template.module, [1] * len(chain(self._template.module)))
            part = narrowed(self._template.module, [len(extra[link.weight]) for link in chain(thinnest)])
        install(part, extra | counters(part))
        return part.eval()
