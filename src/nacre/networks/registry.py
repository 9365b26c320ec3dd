"""The networks by name: how each is built, which head it has, how small an image it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nacre.networks.conv5 import conv5
from nacre.networks.vgg16_bn import vgg16_bn, vgg16_bn_head


@dataclass(frozen=True)
class Network:
    """A backbone by its number of image channels, its head by (features, classes), the smallest side of an image."""

    build: Callable[[int], nn.Sequential]
    head: Callable[[int, int], nn.Module] | None  # None: one linear layer, which a learner makes itself
    smallest: int

    def features(self, channels: int, side: int) -> int:
        """How many features it makes of square images.

        >>> NETWORKS["conv5"].features(3, 32), NETWORKS["conv5"].features(3, 84)
        (1024, 16384)
        """
        with torch.device("meta"), torch.no_grad():
            return int(self.build(channels).eval()(torch.empty(1, channels, side, side)).shape[1])


NETWORKS: dict[str, Network] = {
    "conv5": Network(conv5, None, 24),
    "vgg16_bn": Network(vgg16_bn, vgg16_bn_head, 32),
}


def too_small(backbone: nn.Module, images: Any) -> str | None:
    """Why a network of these cannot take images, where that is because they are too small for it."""
    if not isinstance(images, Tensor) or images.dim() != 4:
        return None
    name = _name_of(backbone)
    if name is None or min(images.shape[2:]) >= NETWORKS[name].smallest:
        return None
    side = NETWORKS[name].smallest
    return (
        f"{name} takes images of {side} x {side} pixels or more, these have {images.shape[2]} x {images.shape[3]}: "
        f"scale them up, as with torch.nn.functional.interpolate(images, size=({side}, {side}), mode='bilinear')"
    )


def _name_of(backbone: nn.Module) -> str | None:
    """The network that has the same tensors under the same names."""
    tensors = {name: tensor.shape for name, tensor in backbone.state_dict().items()}
    first = next(iter(tensors.values()), None)
    if first is None or len(first) != 4:
        return None
    for name, network in NETWORKS.items():
        with torch.device("meta"):
            same = network.build(first[1]).state_dict()
        if tensors == {key: tensor.shape for key, tensor in same.items()}:
            return name
    return None
