"""How pictures become inputs: what the store says of it, and the part that fits into a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.export.resizing import Bilinear
from nacre.space import SharedSpace
from nacre.space.continuing import PREPROCESSING


def preprocessing_of(space: SharedSpace) -> Mapping[str, Any] | None:
    """What the store says of how pictures become inputs; None where it says nothing.

    JSON with "mean" and "std", one number a channel for pixels from 0 to 1; with "resize": "bilinear" and "size",
    height and width, pictures of other sizes are scaled to that one. Whatever else it says is written beside an
    exported file and is not part of a graph.
    """
    said = space.facts.get(PREPROCESSING)
    return said if isinstance(said, Mapping) else None


class Normalise(nn.Module):
    """Pixels 0..255 of any type, [batch, channels, height, width], as a network takes them."""

    def __init__(self, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(std).view(-1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        mean, std = self.get_buffer("mean"), self.get_buffer("std")
        return (pixels.float() - mean) / std


def with_preprocessing(network: nn.Module, said: Mapping[str, Any] | None, task: str) -> nn.Module:
    """The network behind first steps that take pixels as they are in a picture; of any size, where the store scales."""
    if said is None:
        raise NacreError(f"the store does not say how pictures become the inputs of {task!r}: export without that step")
    try:
        first: list[nn.Module] = []
        if scales(said):
            height, width = said["size"]
            first.append(Bilinear(int(height), int(width)))
        first.append(Normalise([float(value) for value in said["mean"]], [float(value) for value in said["std"]]))
    except (KeyError, TypeError, ValueError) as error:
        raise NacreError(
            f"the preprocessing of {task!r} has no mean and std for each channel, or no size: {said!r:.80}"
        ) from error
    return nn.Sequential(*first, network).eval()


def scales(said: Mapping[str, Any]) -> bool:
    """Whether pictures of any size become those that the network takes."""
    return said.get("resize") == "bilinear"
