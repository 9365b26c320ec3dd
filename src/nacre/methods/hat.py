"""HAT: each task learns gates for the units; what stands between units that earlier tasks use is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.methods.chain import Link, chain, check_chain, first_linear, head_link
from nacre.methods.checks import check_number
from nacre.methods.holding import Masks, hold
from nacre.methods.method import check_options
from nacre.space import Weights
from nacre.training import Task, fit
from nacre.training.seeding import generator

FARTHEST, COSH_OF = 6.0, 50.0  # the authors' bounds: of an embedding, and of what cosh is taken of


@dataclass(frozen=True)
class HAT:
    """Hard attention to the task (Serrà et al., 2018).

    steepest: s_max, how steep the gates are at the end of every epoch. strength: lambda, the weight of the
    regulariser. rate: what the learning rate is multiplied by for the embeddings.
    """

    steepest: float = 400.0
    strength: float = 0.75
    rate: float = 10.0

    name: ClassVar[str] = "hat"
    title: ClassVar[str] = "HAT"

    def begin(self, backbone: nn.Module, **options: Any) -> GatedWeights:
        check_options(self, options)
        weights = GatedWeights(backbone, **options)
        check_chain(backbone, weights.trained, weights.features)
        return weights

    def load(self, path: Path, **options: Any) -> GatedWeights:
        return GatedWeights.load(path, **options)

    def learn(self, weights: GatedWeights, task: Task) -> None:
        reads = weights.reads(task.head)
        taken = {name: units.to(task.processes.device) for name, units in weights.taken().items()}
        gates = Gates(weights.links, task, self.steepest)
        network = weights.expand(task.head, through=gates)
        _, reader = first_linear(network.head)
        gating = reader.register_forward_pre_hook(lambda _, features: (features[0] * gates.features(reads),))
        shared, owned = network.shared(), weights.between(taken)
        put_back = hold(shared, owned)

        def after_backward() -> None:
            leave_alone(shared, owned)
            gates.compensate()

        def after_step() -> None:
            put_back()
            gates.advance()

        fit(
            network,
            task,
            penalty=lambda: self.strength * regulariser(gates.units(), taken),
            after_backward=after_backward,
            after_step=after_step,
            rates=dict.fromkeys(gates.parameters(), self.rate),
        )
        gating.remove()
        gates.eval()
        with torch.no_grad():
            reader.weight.masked_fill_(gates.features(reads) == 0, 0.0)
        weights.append(task.name, network, classes=task.classes, extra=gates.units())

    def __post_init__(self) -> None:
        check_number(self, "steepest", least=1.0)
        check_number(self, "strength")
        check_number(self, "rate")


class Gates(nn.Module):
    """A gate for every unit, sigmoid(s e) of its embedding e; in evaluation it is open where e > 0, or shut."""

    def __init__(self, links: tuple[Link, ...], task: Task, steepest: float) -> None:
        super().__init__()
        if task.train.batches is None:
            raise NacreError("HAT anneals its gates over the batches of an epoch: give a DataLoader that has a length")
        draw = generator(task.seed, task.name, "gates")
        self.links, self.steepest, self.batches, self.step = links, steepest, task.train.batches, 0
        self.embeddings = nn.ParameterList([torch.randn(link.units, generator=draw) for link in links])

    def units(self) -> dict[str, Tensor]:
        """Each layer's gates, by the name of its weight."""
        s = self.steepness
        found = [torch.sigmoid(s * e) if self.training else (e.detach() > 0).float() for e in self.embeddings]
        return {link.weight: gate for link, gate in zip(self.links, found, strict=True)}

    def forward(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gates of a layer's units, on the columns of the next layer's weight."""
        gates = self.units()
        return {
            link.weight: shared[link.weight] * link.columns(gates[link.before], shared[link.weight].dim())
            for link in self.links
            if link.before is not None
        }

    def features(self, reads: Link) -> Tensor:
        """The last layer's gates, one a column of what reads it. [1, features]"""
        return reads.columns(self.units()[self.links[-1].weight], 2)

    @property
    def steepness(self) -> float:
        return annealed(self.step % self.batches, self.batches, self.steepest)

    def compensate(self) -> None:
        for e in self.embeddings:
            if e.grad is not None:
                e.grad *= compensation(e.detach(), self.steepness, self.steepest)

    @torch.no_grad()
    def advance(self) -> None:
        """To the next batch."""
        self.step += 1
        for e in self.embeddings:
            e.clamp_(-FARTHEST, FARTHEST)


def annealed(batch: int, batches: int, steepest: float) -> float:
    """The steepness s at a batch of an epoch, from 0: straight from 1 / s_max to s_max.

    >>> [annealed(batch, 3, 2.0) for batch in (0, 1, 2)]
    [0.5, 1.25, 2.0]
    """
    along = batch / (batches - 1) if batches > 1 else 1.0
    return 1 / steepest + (steepest - 1 / steepest) * along


def compensation(e: Tensor, s: float, steepest: float) -> Tensor:
    """What makes of the gradient through sigmoid(s e) that through s_max sigmoid(e), which vanishes nowhere near."""
    return steepest / s * (torch.cosh((s * e).clamp(-COSH_OF, COSH_OF)) + 1) / (torch.cosh(e) + 1)


def regulariser(gates: Mapping[str, Tensor], taken: Mapping[str, Tensor]) -> Tensor:
    """The share of the units that no earlier task uses which this one does."""
    used = torch.stack([(gate * (1 - taken[name])).sum() for name, gate in gates.items()]).sum()
    free = torch.stack([(1 - units).sum() for units in taken.values()]).sum()
    return used / free.clamp(min=1)


def leave_alone(shared: Mapping[str, nn.Parameter], owned: Masks) -> None:
    """Takes the gradient away where earlier tasks own both ends of a weight."""
    for name, weight in shared.items():
        if weight.grad is not None:
            weight.grad.masked_fill_(owned[name], 0.0)


class GatedWeights(Weights):
    """Weights with gates for every task: 1 for a unit that it uses, 0 for another."""

    @property
    def links(self) -> tuple[Link, ...]:
        return chain(self._template.module)

    def reads(self, head: nn.Module) -> Link:
        """The layer of a head that reads the features."""
        return head_link(self._template.module, head)

    def taken(self) -> dict[str, Tensor]:
        """Which units any task uses, by the name of their layer's weight."""
        each = [self.extra(task) for task in self.tasks]
        return {
            link.weight: torch.stack([torch.zeros(link.units), *(units[link.weight] for units in each)]).amax(0)
            for link in self.links
        }

    def masks(self, task: str) -> dict[str, Tensor]:
        """The weights between units that a task uses: what other units give does not reach them, nor the head."""
        return self.between(self.extra(task))

    def between(self, units: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights that go from some units to some of the next layer's. bool, in the shape of the weight"""
        found = {}
        for link in self.links:
            shape = self.kinds[link.weight][1]
            mask = units[link.weight].view(-1, *[1] * (len(shape) - 1)).expand(shape)
            if link.before is not None:
                mask = torch.minimum(mask, link.columns(units[link.before], len(shape)))
            found[link.weight] = mask > 0
        return found
