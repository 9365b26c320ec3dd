"""Augmentation of a whole batch at once, on its device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.trees import shapes


@dataclass(frozen=True)
class CropFlip:
    """Every image on its own: padded and cropped back at a place drawn, mirrored or not.

    fill: what is padded with, one number or one for each channel. On normalised images black is (0 - mean) / std.

    >>> CropFlip()(torch.zeros(8, 3, 32, 32), torch.Generator()).shape
    torch.Size([8, 3, 32, 32])
    """

    padding: int = 4
    flip: bool = True
    fill: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        if type(self.padding) is not int or self.padding < 0:
            raise NacreError(f"CropFlip.padding is a whole number of pixels from 0; got {self.padding!r}")

    def __call__(self, images: Tensor, draw: torch.Generator) -> Tensor:
        if not isinstance(images, Tensor) or images.dim() != 4:
            raise NacreError(f"CropFlip takes images (batch, channels, height, width); got {shapes(images)}")
        count, _, height, width = images.shape
        rows = self._window(count, height, draw)
        columns = self._window(count, width, draw)
        if self.flip:
            mirrored = torch.rand(count, generator=draw) < 0.5
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        padded = self._padded(images).permute(0, 2, 3, 1)  # channels last: an index moves whole pixels
        which = torch.arange(count, device=images.device)[:, None, None]
        rows, columns = rows.to(images.device), columns.to(images.device)
        return padded[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    def _padded(self, images: Tensor) -> Tensor:
        count, channels, height, width = images.shape
        if len(self.fill) not in (1, channels):
            raise NacreError(
                f"CropFlip.fill has one number, or one for each of {channels} channels; got {len(self.fill)}"
            )
        if not self.padding:
            return images
        around = self.padding
        padded = images.new_empty(count, channels, height + 2 * around, width + 2 * around)
        for channel in range(channels):
            padded[:, channel] = self.fill[channel % len(self.fill)]
        padded[:, :, around : around + height, around : around + width] = images
        return padded

    def _window(self, count: int, extent: int, draw: torch.Generator) -> Tensor:
        """For each image the positions it keeps along one side, [count, extent]."""
        first = torch.randint(0, 2 * self.padding + 1, (count, 1), generator=draw)
        return first + torch.arange(extent)
