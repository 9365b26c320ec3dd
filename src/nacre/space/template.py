"""The backbone that a space hands out copies of: fresh, with summed weights in place, or with trainable factors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.lowrank import Start, attach
from nacre.networks import too_small
from nacre.space.layout import Layout, counters, install, tensors
from nacre.space.plain import Features, pick
from nacre.trees import Tree, apply, explained

Ranks = int | Mapping[str, int] | None


class Template:
    """A backbone that nobody trains, and the layout of its tensors. A loaded one may have shapes but no numbers."""

    def __init__(self, backbone: nn.Module, layout: Layout) -> None:
        self.module = backbone.eval()
        self.layout = layout
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(name not in layout.fixed)

    def weights(self) -> dict[str, Tensor]:
        """The factorised weights that the backbone came with, by layer."""
        present = tensors(self.module)
        return {name: present[layer.tensors[0]].detach() for name, layer in self.layout.layers.items()}

    def everything(self) -> dict[str, Tensor]:
        """All tensors that the backbone came with, by name."""
        present = tensors(self.module)
        return {name: present[name].detach() for name in self.layout.everything}

    def fresh(self, *, renew: bool) -> nn.Module:
        """A copy as it came; with `renew`, every layer that knows how to draws its tensors anew."""
        backbone = copy.deepcopy(self.module)
        empty = any(tensor.is_meta for tensor in tensors(backbone).values())
        if empty:
            backbone = backbone.to_empty(device="cpu")
        if empty or renew:
            for module in backbone.modules():
                if callable(reset := getattr(module, "reset_parameters", None)):
                    reset()
                elif empty:  # learnt tensors that belong to no layer, as positions do
                    for parameter in module._parameters.values():
                        if parameter is not None:
                            nn.init.trunc_normal_(parameter, std=0.02)
        if empty and not renew:  # a dense base that was loaded without the rest of its backbone
            known = {name: value for name, value in tensors(self.module).items() if not value.is_meta}
            install(backbone, {name: value.detach().clone() for name, value in known.items()})
        return backbone

    def assemble(self, sums: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> nn.Module:
        """A copy with these weights, by layer, and these other tensors, by name."""
        backbone = copy.deepcopy(self.module)
        values = {self.layout.layers[name].tensors[0]: weight for name, weight in sums.items()} | dict(others)
        install(backbone, {name: value.clone() for name, value in values.items()} | counters(backbone))
        return backbone

    def probe(self, features: Features, device: torch.device, inputs: Tree) -> Any:
        """What an untaught copy makes of inputs."""
        with torch.random.fork_rng(devices=[]):  # a loaded backbone draws weights here, one in memory has its own
            backbone = self.fresh(renew=False).to(device).eval()
        refused = explained("the backbone cannot take inputs", inputs, lambda: too_small(backbone, inputs))
        with refused, torch.no_grad():
            return pick(features, apply(backbone, inputs))

    def factorise(self, backbone: nn.Module, ranks: Ranks, start: Start, *, first: bool) -> None:
        """Freezes the weights of a copy and puts new factors on them; `first`: in place of them."""
        layers = self.layout.layers
        wanted = dict(ranks) if isinstance(ranks, Mapping) else dict.fromkeys(layers, ranks)
        unknown = set(wanted) - set(layers)
        if unknown:
            raise NacreError(f"rank names no layer {', '.join(sorted(unknown))}; they are {', '.join(layers)}")
        weights = tensors(backbone)
        for name, layer in layers.items():
            shared = weights[layer.tensors[0]].detach()
            if first:
                factors = start.first_factors(shared, wanted.get(name))
                shared = torch.zeros_like(shared)
            else:
                factors = start.later_factors(*layer.matrix, wanted.get(name))
            attach(backbone, layer, shared, factors)
