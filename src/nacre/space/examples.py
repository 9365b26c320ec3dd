"""Examples of earlier tasks that are kept to learn later ones with, and what they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nacre.space.container import put_together, take_apart
from nacre.trees import Tree, leaves, map_leaves

_LEVELS = 256


@dataclass(frozen=True)
class Examples:
    """Inputs and targets of one task, on the CPU."""

    inputs: Tree
    targets: Tree

    def __len__(self) -> int:
        return len(next(leaves(self.inputs)))

    @cached_property
    def stored(self) -> tuple[dict[str, Tensor], Any]:
        """As tensors and JSON; pictures that came from 8 bits a pixel take 8 bits again, to the same bits."""
        packed = map_leaves(lambda leaf: leaf.detach().to("cpu"), [self.inputs, self.targets])
        described, found = take_apart(packed)
        tensors: dict[str, Tensor] = {}
        for name, tensor in found.items():
            tensors |= {f"{name}/{part}": value for part, value in _in_levels(tensor).items()}
        return tensors, described

    @staticmethod
    def read(tensors: Mapping[str, Tensor], described: Any) -> Examples:
        parts: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            name, _, part = key.partition("/")
            parts.setdefault(name, {})[part] = tensor
        inputs, targets = put_together(described, {name: _from_levels(part) for name, part in parts.items()})
        return Examples(inputs, targets)


@dataclass(frozen=True)
class Memory:
    """The examples kept of each task, and of how many they were chosen."""

    tasks: Mapping[str, Examples] = field(default_factory=dict)
    seen: int = 0

    @property
    def images(self) -> int:
        return sum(map(len, self.tasks.values()))

    @property
    def bytes(self) -> int:
        parts = (tensor for examples in self.tasks.values() for tensor in examples.stored[0].values())
        return sum(tensor.numel() * tensor.element_size() for tensor in parts)

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the facts that make the memory again."""
        stored = {str(place): examples.stored for place, examples in enumerate(self.tasks.values())}
        tensors = {f"{place}/{key}": tensor for place, (named, _) in stored.items() for key, tensor in named.items()}
        kept = [[name, described] for name, (_, described) in zip(self.tasks, stored.values(), strict=True)]
        return tensors, {"seen": self.seen, "tasks": kept}

    @staticmethod
    def of_parts(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Memory:
        tasks = {}
        for place, (name, described) in enumerate(facts["tasks"]):
            start = f"{place}/"
            own = {key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)}
            tasks[str(name)] = Examples.read(own, described)
        return Memory(tasks, int(facts["seen"]))


def _in_levels(tensor: Tensor) -> dict[str, Tensor]:
    """A tensor as it is; pictures with at most 256 values a channel as bytes and those values."""
    if tensor.dim() == 4 and tensor.dtype == torch.float32:
        found = [torch.unique(channel, return_inverse=True) for channel in tensor.unbind(1)]
        values = [value for value, _ in found]
        lost = (tensor == 0).logical_and(tensor.signbit()).any()  # -0.0 would come back as 0.0
        if not lost and all(len(value) <= _LEVELS for value in values):
            levels = torch.zeros(len(values), _LEVELS)
            for row, value in zip(levels, values, strict=True):
                row[: len(value)] = value
            # [examples, channels, height, width]
            return {"levels": levels, "bytes": torch.stack([at.to(torch.uint8) for _, at in found], 1)}
    return {"as it is": tensor}


def _from_levels(parts: Mapping[str, Tensor]) -> Tensor:
    if "as it is" in parts:
        return parts["as it is"]
    levels, at = parts["levels"], parts["bytes"].long()
    return torch.stack([levels[channel][at[:, channel]] for channel in range(len(levels))], 1)
