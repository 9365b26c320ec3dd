"""A picture set as tasks: found, decoded once, checked for duplicates, normalised when a task asks for its part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from nacre.scenarios import cache, sources
from nacre.scenarios.augment import CropFlip
from nacre.scenarios.choices import Choices
from nacre.scenarios.pictures import Pictures, PictureSet
from nacre.scenarios.progress import say
from nacre.scenarios.scenario import Examples, ScenarioTask
from nacre.scenarios.splitting import Chosen, choose_network, hold_out


@dataclass(frozen=True)
class LoadedSet:
    """A decoded set, and what was chosen for the tasks that are made of it."""

    about: PictureSet
    pictures: Pictures
    network: Chosen
    holdout: float
    augment: CropFlip | None
    facts: dict[str, Any]

    def task(self, name: str, classes: Sequence[int]) -> ScenarioTask:
        """The task of some classes; its class numbers are their places in the list."""
        rows = self._rows("train", classes)
        kept, held = hold_out(self.pictures.train.labels[rows], self.holdout)
        return ScenarioTask(
            name,
            partial(self.examples, "train", rows[kept], classes),
            partial(self.examples, "test", self._rows("test", classes), classes),
            [self.pictures.classes[label] for label in classes],
            self.augment,
            partial(self.examples, "train", rows[held], classes) if self.holdout else None,
        )

    def examples(self, split: Literal["train", "test"], rows: Tensor, classes: Sequence[int]) -> Examples:
        part = self.pictures.train if split == "train" else self.pictures.test
        number = torch.full((self.about.classes,), -1)
        number[torch.tensor(classes)] = torch.arange(len(classes))
        images = self.network.enlarge(self.about.normalise(part.images[rows]))
        return images, number[part.labels[rows]]

    def _rows(self, split: Literal["train", "test"], classes: Sequence[int]) -> Tensor:
        part = self.pictures.train if split == "train" else self.pictures.test
        return torch.isin(part.labels, torch.tensor(classes)).nonzero()[:, 0]


def load_set(about: PictureSet, choices: Choices, augment: CropFlip | None = None) -> LoadedSet:
    """A set from wherever it is found, decoded or from the cache."""
    source = sources.find(about, choices.data)
    pictures, digest = cache.load(source, about)
    if pictures.duplicates:
        say(
            f"{about.name}: {pictures.duplicates} of {len(pictures.test.labels):,} test images are training images "
            "too, pixel for pixel; the set is used as it was published"
        )
    facts = {
        "source": source.kind,
        "revision": source.revision,
        "sha256": digest,
        "train": len(pictures.train.labels),
        "test": len(pictures.test.labels),
        "duplicates": pictures.duplicates,
        "scaled": pictures.scaled,
        "mean": list(about.mean),
        "std": list(about.std),
    }
    network = choose_network(choices, 3, about.side + 2 * about.padding)
    return LoadedSet(about, pictures, network, choices.holdout, augment if choices.augment else None, facts)
