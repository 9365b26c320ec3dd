"""Picture sets: what is known of each, and what its pictures are once they are decoded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SPLITS = ("train", "test")


@dataclass(frozen=True)
class PictureSet:
    """A set of pictures as its authors and the hub have it, and the numbers that normalise it.

    name:     the hub's name, and the folder below --data; `folder` is another name that is looked for there.
    revision: the commit on the hub; None where the hub does not hold the set in the form that papers use.
    below:    the folder of the parquet files within the repository.
    padding:  pixels of black that make its pictures as large as those of the scenario's other sets.
    resized:  pictures of other sizes are scaled to side x side; where it is False they are refused.
    own:      a user's pictures: of any mode and upside down, some broken, labelled by their Source.
    """

    name: str
    classes: int
    side: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    revision: str | None = None
    below: str = "."
    folder: str | None = None
    image: str = "image"
    label: str = "label"
    superclass: str | None = None
    padding: int = 0
    resized: bool = False
    own: bool = False

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 pictures [n, channels, h, w] to what a network reads, grey ones in three channels."""
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        padded = F.pad(pixels, (self.padding,) * 4).expand(-1, 3, -1, -1)
        return padded.float().div_(255).sub_(mean).div_(std)

    def black(self) -> tuple[float, ...]:
        """What normalisation makes of a black pixel, to the last bit."""
        pixel = torch.zeros(1, self.channels, 1, 1, dtype=torch.uint8)
        return tuple(self.normalise(pixel)[0, :, 0, 0].tolist())


@dataclass(frozen=True)
class Part:
    """The decoded training or test pictures: uint8 [n, channels, side, side], class numbers int64 [n]."""

    images: Tensor
    labels: Tensor
    superclasses: Tensor | None = None


@dataclass(frozen=True)
class Pictures:
    """A decoded set."""

    train: Part
    test: Part
    classes: tuple[str, ...]
    superclasses: tuple[str, ...]
    duplicates: int  # test pictures that are also training pictures, pixel for pixel
    scaled: int  # pictures that had another size
    broken: tuple[str, ...] = ()  # of a user's own: what was skipped, and why
