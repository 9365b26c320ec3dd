"""Growing: weights whose layers may get more units for a later task; an earlier one keeps the first units of each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.space.layout import Kinds, kind_of, tensors
from nacre.space.multitask import MultitaskNetwork
from nacre.space.network import find_network
from nacre.space.plain import Features
from nacre.space.template import Template
from nacre.space.weights import Weights
from nacre.space.widening import widened

_MOST = 1e6
_FACT = "growth"  # of every task, in the facts that are saved along


class GrowingWeights(Weights):
    """Weights of which every task knows the first units, as many as there were when it was learnt.

    >>> weights = GrowingWeights(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> for task, growth in (("animals", 1.0), ("plants", 1.5)):
    ...     weights.append(task, weights.grown(nn.Linear(3, 2), growth))
    >>> [weights.network(task).backbone[0].out_features for task in weights.tasks]
    [8, 10]
    """

    def _begin(self, template: Template, features: Features) -> None:
        super()._begin(template, features)
        self._templates = {1.0: template}

    @property
    def growth(self) -> float:
        """About how many times as many weights there are now as at first."""
        return max(self.facts.get(_FACT, {}).values(), default=1.0)

    @property
    def can_grow(self) -> bool:
        """Whether any layer gets more units; refuses a backbone that cannot be widened at all."""
        return self._at(2.0).layout != self._template.layout

    @property
    def kinds(self) -> Kinds:
        return self._at(self.growth).layout.common

    def template_of(self, task: str) -> Template:
        return self._at(self.facts[_FACT][task])

    def _at(self, growth: float) -> Template:
        if growth not in self._templates:
            if not 1 <= growth <= _MOST:
                raise NacreError(f"a network grows to 1 to {_MOST:g} times its weights; got {growth!r}")
            self._templates[growth] = widened(self._template, growth)
        return self._templates[growth]

    def taken(self, growth: float) -> dict[str, Tensor]:
        """Which weights tasks own, by name, in the shapes of a growth."""
        kinds = self._at(growth).layout.common
        found = {name: torch.zeros(kinds[name][1], dtype=torch.bool) for name in self.trained}
        for task in self.tasks:
            for name, mask in self.masks(task).items():
                found[name][_corner(mask)] |= mask
        return found

    def grown(self, head: nn.Module, growth: float, through: nn.Module | None = None) -> MultitaskNetwork:
        """What `expand` gives, on as many units as a growth brings. What no task owns of it is drawn afresh.

        Weights that were pruned to 0 would learn nothing where a whole unit of them is 0.
        """
        network = self.expand(head, through=through)
        if self.tasks or growth != self.growth:
            backbone = self._at(growth).fresh(renew=True).to(self.device)
            values, taken = tensors(backbone), self.taken(growth)
            with torch.no_grad():
                for name, value in tensors(network.backbone).items():
                    part = values[name][_corner(value)]
                    owned = taken[name][_corner(value)].to(self.device) if name in taken else torch.tensor(True)
                    part.copy_(torch.where(owned, value, part))
            network.backbone = backbone.train()
        return network

    def append(self, name: str, network: nn.Module, **kept: Any) -> None:
        """As `Weights.append`; what has grown stays so."""
        growth = self._growth_of(find_network(network).backbone)
        with self._guard:
            super().append(name, network, **kept)
            self.facts[_FACT] = {**self.facts.get(_FACT, {}), name: growth}

    def _growth_of(self, backbone: nn.Module) -> float:
        kinds = {name: kind_of(tensor) for name, tensor in tensors(backbone).items()}
        for growth, template in self._templates.items():
            if all(kinds.get(name) == kind for name, kind in template.layout.common.items()):
                return growth
        raise NacreError("this network was expanded from other weights")


def _corner(part: Tensor) -> tuple[slice, ...]:
    """Where the first units lie in a wider tensor."""
    return tuple(slice(count) for count in part.shape)
