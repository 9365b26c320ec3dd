"""What a new store begins with: a network, and how its pictures are to be prepared. Nothing is written yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.images.examples import side_for
from nacre.images.opened import BASES, CHANNELS, NETWORK, Opened, drawn_backbone
from nacre.images.recipe import METHOD, METHOD_ON_A_BASE
from nacre.learner import Learner
from nacre.networks import NETWORKS, PRETRAINED, Processor, by_name, processor
from nacre.networks.registry import NAMES
from nacre.scenarios.given import Given
from nacre.scenarios.preprocessing import Preprocessing
from nacre.space.continuing import PREPROCESSING
from nacre.trees import explained

DEFAULT_NETWORK = "conv5"
_USUAL_SIDE = 224  # of what pretrained networks have seen, where neither processor nor configuration says it
BaseKept = Literal["store", "external"]


@dataclass(frozen=True)
class Beginning:
    """A network that no store holds yet, and how it wants its pictures."""

    network: str
    side: int
    seed: int
    processor: Processor | None = None  # None: mean and deviation are those of the first task's pictures
    backbone: nn.Module | None = None  # a pretrained one; None: drawn from the seed
    options: Mapping[str, Any] = field(default_factory=dict)  # of its space

    @property
    def pretrained(self) -> bool:
        return self.backbone is not None

    def prepares(self, pixels: Tensor) -> Preprocessing:
        """How the store will prepare pictures, of which these are the first to train on."""
        if self.processor is None:
            return Preprocessing.fitted(self.side, pixels)
        return Preprocessing.said(self.side, self.processor.mean, self.processor.std)

    def opened(self, preprocessing: Preprocessing) -> Opened:
        """A store of no task, in memory."""
        backbone = self.backbone if self.backbone is not None else drawn_backbone(self.network, self.seed)
        method = METHOD_ON_A_BASE if self.pretrained else METHOD
        learner = Learner(backbone, method, seed=self.seed, **self.options)
        learner.knowledge.facts |= {NETWORK: self.network, PREPROCESSING: preprocessing.to_json()}
        return Opened(learner, preprocessing, self.network)

    @property
    def words(self) -> str:
        """What is done to pictures, and who said so."""
        normal = "mean and deviation as its image processor says"
        if self.processor is None:
            normal = "no image processor is saved with it, so mean and deviation are those of these pictures"
        return f"{self.network}: pictures of {self.side} x {self.side} pixels, {normal}"


def begin(network: str, pictures: Given, size: int | None, base: BaseKept | None, seed: int | None) -> Beginning:
    """A network by its name for a first task; None is the default. Refused where it cannot take that size."""
    if not network.startswith(PRETRAINED):
        if network not in NETWORKS:
            raise NacreError(f"no network is called {network!r}; the networks are {NAMES}")
        smallest = NETWORKS[network].smallest
        if size is not None and size < smallest:
            raise NacreError(f"{network} takes pictures of {smallest} pixels or more; got --size {size}")
        return Beginning(network, size or side_for(pictures, smallest), seed or 0)
    chosen = by_name(network)
    name = str(chosen.options["source"])
    said = processor(name.removeprefix(PRETRAINED))
    side = size or (said and said.side) or _side_of(chosen.backbone) or _USUAL_SIDE
    _check_side(name, chosen.backbone, side)
    return Beginning(name, side, seed or 0, said, chosen.backbone, {**chosen.options, "base": BASES[base or "store"]})


def _side_of(backbone: nn.Module) -> int | None:
    """What a model's configuration says of its pictures."""
    said = getattr(backbone.config, "image_size", None)
    sides = set(said) if isinstance(said, list | tuple) else {said}
    (side,) = sides if len(sides) == 1 else (None,)
    return side if isinstance(side, int) else None


def _check_side(name: str, backbone: nn.Module, side: int) -> None:
    """Tries it now: later it would be after every picture has been decoded."""
    pictures = torch.zeros(1, CHANNELS, side, side)
    with explained(f"{name} cannot take pictures of {side} pixels, say another --size;", pictures), torch.no_grad():
        backbone(pictures)
