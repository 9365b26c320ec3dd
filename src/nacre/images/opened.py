"""A store that was learnt from pictures, opened with its network and its preprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.learner import Learner
from nacre.networks import NETWORKS
from nacre.scenarios.preprocessing import Preprocessing
from nacre.space import SharedSpace
from nacre.space.continuing import PREPROCESSING
from nacre.space.naming import as_path
from nacre.space.store import INDEX, read_index
from nacre.training.seeding import seeded

NETWORK = "network"  # among a space's facts: what nacre.networks.by_name knows it by
CHANNELS = 3
BASES = {"store": "backbone", "external": "external"}  # where a pretrained one is kept, and a space's word for it
_KEPT = {base: word for word, base in BASES.items()}


@dataclass(frozen=True)
class Opened:
    """A learner, and how its pictures are prepared."""

    learner: Learner
    preprocessing: Preprocessing
    network: str

    @property
    def side(self) -> int:
        return self.preprocessing.side

    @property
    def seed(self) -> int:
        return self.learner.seed

    @property
    def base(self) -> str | None:
        """Where the weights under every task are kept: in the store, or outside of it; None where there are none."""
        space = self.learner.knowledge
        return _KEPT.get(space.base) if isinstance(space, SharedSpace) else None

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
    backbone = drawn_backbone(name, facts.get("seed", 0)) if name in NETWORKS else None
    preprocessing = Preprocessing.from_json(facts[PREPROCESSING], str(store))
    return Opened(Learner.load(store, backbone=backbone), preprocessing, name)


def drawn_backbone(name: str, seed: int) -> nn.Module:
    """The same first weights whenever it is made."""
    with seeded(seed, "backbone"):
        return NETWORKS[name].build(CHANNELS)
