"""Preprocessing: what is done to every picture before a network reads it. A store remembers it for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.scenarios.decoding import decode_picture
from nacre.scenarios.pictures import PictureSet

_CHUNK = 64
_MOST = 8192  # pixels a side: a forged store takes no more memory than this
_FLAT = 1e-2  # pictures of a single colour have no deviation to divide by
_FIXED = {"kind": "picture", "mode": "RGB", "resize": "bilinear", "scale": 255}


@dataclass(frozen=True)
class Preprocessing:
    """Upright, in RGB, the whole picture scaled to side x side pixels, divided by 255, less the mean, by the deviation.

    >>> Preprocessing(32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)).max()
    tensor(2.)
    """

    side: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @staticmethod
    def fitted(side: int, pixels: Tensor) -> Preprocessing:
        """With the mean and deviation of some pictures, uint8 [n, 3, side, side], to four digits."""
        count = pixels.numel() / 3
        total, squares = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for part in pixels.split(_CHUNK):
            scaled = part.double().div_(255)
            total += scaled.sum((0, 2, 3))
            squares += scaled.square_().sum((0, 2, 3))
        mean = total / count
        std = (squares / count - mean.square()).clamp_min(0).sqrt().clamp_min(_FLAT)
        return Preprocessing(side, _three(mean.tolist()), _three(std.tolist()))

    @staticmethod
    def said(side: int, mean: Sequence[float], std: Sequence[float]) -> Preprocessing:
        """With a mean and deviation that are known, to four digits."""
        said = Preprocessing(side, _three(mean), _three(std))
        if min(said.std) <= 0:
            raise NacreError(f"pixels from 0 to 1 are divided by a deviation of 0.0001 or more; got {tuple(std)}")
        return said

    def pictures(self, name: str = "pictures", classes: int = 0) -> PictureSet:
        """Pictures of any size and mode that are prepared in this way."""
        return own_pictures(name, classes, self.side, self.mean, self.std)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Decoded pictures, uint8 [n, 3, side, side], as a network reads them."""
        return self.pictures().normalise(pixels)

    def decode(self, data: bytes, name: str) -> Tensor:
        """A picture file's pixels, uint8 [3, side, side]; a NacreError that names it where it is broken."""
        pixels, _ = decode_picture(data, name, self.pictures())
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy())

    def to_json(self) -> dict[str, Any]:
        return {**_FIXED, "size": [self.side, self.side], "mean": list(self.mean), "std": list(self.std)}

    @staticmethod
    def from_json(data: Any, where: str) -> Preprocessing:
        """What a store says; refused where it says something that this nacre does not do."""
        try:
            read = Preprocessing(data["size"][0], _three(data["mean"]), _three(data["std"]))
            if type(read.side) is int and 0 < read.side <= _MOST and min(read.std) > 0 and read.to_json() == data:
                return read
        except (KeyError, IndexError, TypeError, ValueError):
            pass
        raise NacreError(
            f"{where} prepares its pictures as {data!r:.300}, which this nacre cannot: install a newer one"
        )


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    """A number for each colour, to four digits."""
    red, green, blue = (round(float(value), 4) for value in values)
    return red, green, blue


def own_pictures(
    name: str, classes: int, side: int, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
) -> PictureSet:
    """A user's pictures of any size and mode, as squares of a side."""
    return PictureSet(name, classes, side, 3, mean, std, resized=True, own=True)
