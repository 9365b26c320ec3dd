"""The networks by name: how each is built, which head it has, how small an image it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.networks.conv5 import conv5
from nacre.networks.pretrained import FEATURES, located, pretrained
from nacre.networks.resnet import resnet18, resnet50
from nacre.networks.vgg16_bn import vgg16_bn, vgg16_bn_head
from nacre.networks.vit_tiny import vit_tiny

PRETRAINED = "hf:"  # and then a name on the hub, or a folder


@dataclass(frozen=True)
class Network:
    """A backbone by its number of image channels, its head by (features, classes), the smallest side of an image."""

    build: Callable[[int], nn.Module]
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
    "resnet18": Network(resnet18, None, 1),
    "resnet50": Network(resnet50, None, 1),
    "vit_tiny": Network(vit_tiny, None, 8),
}
NAMES = f"{', '.join(NETWORKS)}, and {PRETRAINED}NAME or {PRETRAINED}FOLDER for a pretrained one of transformers"


@dataclass(frozen=True)
class Chosen:
    """What a network's name stands for: a backbone, and the options of a learner or a space that belong to it."""

    backbone: nn.Module
    options: dict[str, Any] = field(default_factory=dict)
    head: Callable[[int, int], nn.Module] | None = None  # by (features, classes); None: one linear layer


def by_name(name: str, channels: int = 3) -> Chosen:
    """The backbone that a name stands for: one of NETWORKS, or `hf:` and a pretrained model of transformers.

    >>> chosen = by_name("conv5", channels=1)  # Learner(chosen.backbone, CACL(), **chosen.options)
    >>> chosen.options
    {}
    """
    if name.startswith(PRETRAINED):
        options = {"base": "backbone", "source": known_as(name), "features": FEATURES}
        return Chosen(pretrained(name.removeprefix(PRETRAINED)), options)
    if name not in NETWORKS:
        raise NacreError(f"no network is called {name!r}; the networks are {NAMES}")
    return Chosen(NETWORKS[name].build(channels), {}, NETWORKS[name].head)


def known_as(name: str) -> str:
    """A network's name as a store remembers it: a folder by its whole path.

    >>> known_as("conv5"), known_as("hf:microsoft/resnet-18")
    ('conv5', 'hf:microsoft/resnet-18')
    """
    return PRETRAINED + located(name.removeprefix(PRETRAINED)) if name.startswith(PRETRAINED) else name


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
    first = next((shape for name, shape in tensors.items() if name.endswith("weight")), None)
    if first is None or len(first) != 4:
        return None
    for name, network in NETWORKS.items():
        with torch.device("meta"):
            same = network.build(first[1]).state_dict()
        if tensors == {key: tensor.shape for key, tensor in same.items()}:
            return name
    return None
