"""A store that was learnt from pictures: opened with its network and its preprocessing, or begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.images.recipe import METHOD
from nacre.learner import Learner
from nacre.networks import NETWORKS
from nacre.scenarios.preprocessing import Preprocessing
from nacre.space.continuing import PREPROCESSING
from nacre.space.naming import as_path
from nacre.space.store import INDEX, read_index
from nacre.training.seeding import seeded

NETWORK = "network"  # among a space's facts: the name in nacre.networks.NETWORKS
DEFAULT_NETWORK, CHANNELS = "conv5", 3


@dataclass(frozen=True)
class Opened:
    """A learner, and how its pictures are prepared."""

    learner: Learner
    preprocessing: Preprocessing
    network: str

    def read(self, files: Sequence[str | Path]) -> Tensor:
        """Pictures of any size and mode as the network reads them, [n, 3, side, side]."""
        return self.preprocessing(torch.stack([self.pixels(Path(file)) for file in files]))

    def pixels(self, file: Path) -> Tensor:
        """A picture decoded and scaled, uint8 [3, side, side]; a NacreError that names it where that cannot be."""
        try:
            return self.preprocessing.decode(file.read_bytes(), str(file))
        except OSError as error:
            raise NacreError(f"{file} cannot be read: {error.strerror}") from error

    def head(self, task: str, classes: int) -> nn.Module | None:
        """The head that the network has; None for one linear layer, which the learner makes."""
        network = NETWORKS.get(self.network)
        if network is None or network.head is None:
            return None
        with seeded(self.learner.seed, task, "head"):
            return network.head(network.features(CHANNELS, self.preprocessing.side), classes)


def exists(store: Path) -> bool:
    return (store / INDEX).exists()


def open_store(store: str | Path) -> Opened:
    """What `nacre learn` has learnt into a folder."""
    store = as_path(store)
    facts = read_index(store)["facts"]
    if PREPROCESSING not in facts or not isinstance(name := facts.get(NETWORK), str):
        raise NacreError(
            f"{store} does not say how pictures are prepared, for it was not made by nacre learn: "
            "go on with it in Python, nacre.Learner.load"
        )
    backbone = _backbone(name, facts.get("seed", 0)) if name in NETWORKS else None
    preprocessing = Preprocessing.from_json(facts[PREPROCESSING], str(store))
    return Opened(Learner.load(store, backbone=backbone), preprocessing, name)


def smallest_side(network: str) -> int:
    """The smallest side of a picture that a network takes; refuses a name of none."""
    if network not in NETWORKS:
        raise NacreError(f"no network is called {network!r}; the networks are {', '.join(NETWORKS)}")
    return NETWORKS[network].smallest


def begin(network: str, preprocessing: Preprocessing, seed: int) -> Opened:
    """A store of no task yet; nothing is written."""
    learner = Learner(_backbone(network, seed), METHOD, seed=seed)
    learner.knowledge.facts |= {NETWORK: network, PREPROCESSING: preprocessing.to_json()}
    return Opened(learner, preprocessing, network)


def _backbone(name: str, seed: int) -> nn.Module:
    """The same first weights whenever it is made."""
    with seeded(seed, "backbone"):
        return NETWORKS[name].build(CHANNELS)
