"""A task's pictures, decoded and split: what is trained on, what is tested on, what was skipped."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from nacre.scenarios import cache
from nacre.scenarios.decoding import count_duplicates
from nacre.scenarios.given import Given, check_classes
from nacre.scenarios.pictures import Part
from nacre.scenarios.preprocessing import Preprocessing, own_pictures
from nacre.scenarios.reading import sides
from nacre.scenarios.splitting import hold_out

SIDES = (32, 64)  # of a new store, unless told or unless its network takes no pictures as small
_LOOKED_AT = 100


@dataclass(frozen=True)
class Examples:
    """Decoded pictures, uint8, and which of them are for what."""

    train: Part
    test: Part
    classes: tuple[str, ...]
    digest: str  # of all files and labels that were given
    skipped: tuple[str, ...]
    notes: tuple[str, ...]


def read(given: Given, name: str, side: int, share: float, seed: int) -> Examples:
    """Decodes what was given and splits a test share off where no test pictures were given."""
    source = given.source
    pictures, digest = cache.load(source, own_pictures(name, len(source.classes), side))
    train, test = pictures.train, pictures.test
    without = f", without {len(pictures.broken)} that cannot be read," if pictures.broken else ""
    check_classes(f"{source.root}{without}", source.classes, _names(train, source.classes))
    if not given.tested:
        kept, held = hold_out(train.labels, share, seed=seed, least=1)
        train, test = _rows(train, kept), _rows(train, held)
    notes = list(given.notes)
    if untested := sorted(set(source.classes) - set(_names(test, source.classes))) if len(test.labels) else []:
        notes.append(f"no test picture is of {', '.join(untested)}")
    if same := count_duplicates(train.images, test.images):
        notes.append(f"{same} of {len(test.labels)} test pictures are training pictures too, pixel for pixel")
    return Examples(train, test, source.classes, digest, pictures.broken, tuple(notes))


def _names(part: Part, classes: tuple[str, ...]) -> list[str]:
    return [classes[label] for label in part.labels.tolist()]


def _rows(part: Part, rows: Tensor) -> Part:
    return Part(part.images[rows], part.labels[rows])


def side_for(given: Given, smallest: int) -> int:
    """The side of a new store's pictures: as large as most of the first task's are, within reason."""
    usual = median(sides(given.source, _LOOKED_AT) or [SIDES[-1]])
    fitting = [side for side in SIDES if side >= max(smallest, min(usual, SIDES[-1]))]
    return fitting[0] if fitting else smallest


class Prepared(Dataset[Any]):
    """Decoded pictures as a network reads them, a batch at a time: as bytes they take a quarter of the memory."""

    def __init__(self, part: Part, preprocessing: Preprocessing) -> None:
        self._part, self._preprocessing = part, preprocessing

    def __len__(self) -> int:
        return len(self._part.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, chosen: list[int]) -> list[tuple[Tensor, Tensor]]:
        rows = torch.tensor(chosen)
        return list(zip(self._preprocessing(self._part.images[rows]), self._part.labels[rows], strict=True))

    def first(self, count: int) -> Tensor:
        """A few pictures from all over, as one batch."""
        rows = torch.linspace(0, len(self) - 1, min(count, len(self))).round().long()
        return self._preprocessing(self._part.images[rows])
