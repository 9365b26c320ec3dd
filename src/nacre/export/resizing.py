"""Scaling pictures of any size within a graph, to the grey levels that Pillow's bilinear filter gives."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_STEPS = 2**22  # Pillow's weights are whole multiples of its inverse


class Bilinear(nn.Module):
    """Whole pictures, uint8 [batch, channels, any height, any width], scaled to height x width; grey levels as float32.

    Pillow's algorithm for 8 bits: the width first, then the height, each rounded to whole grey levels. A new pixel is
    the mean of those around its centre, weighted by a triangle that widens with the reduction. All in float64, where
    the sums are exact.

    >>> Bilinear(1, 2)(torch.tensor([[[[0, 10, 20, 33], [0, 10, 20, 35]]]], dtype=torch.uint8))
    tensor([[[[ 7., 25.]]]])
    """

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, pixels: Tensor) -> Tensor:
        across, down = weights(pixels.shape[3], self.width), weights(pixels.shape[2], self.height)
        narrowed = _rounded(pixels.double() @ across)
        return _rounded(down.T @ narrowed).float()


def weights(extent: int, side: int) -> Tensor:
    """What each of `extent` pixels in a row counts for each of `side` new ones, [extent, side].

    >>> weights(4, 2).T
    tensor([[0.4286, 0.4286, 0.1429, 0.0000],
            [0.0000, 0.1429, 0.4286, 0.4286]], dtype=torch.float64)
    """
    middles = torch.arange(extent, dtype=torch.float64) + 0.5
    scale = (middles[-1] + 0.5) / side  # not extent / side: as a tensor it stays in a traced graph
    centres = (torch.arange(side, dtype=torch.float64) + 0.5) * scale
    apart = (middles[:, None] - centres).abs() * (1 / scale.clamp(min=1))
    triangle = (1 - apart).clamp(min=0)
    return torch.floor(triangle / triangle.sum(0) * _STEPS + 0.5) / _STEPS


def _rounded(levels: Tensor) -> Tensor:
    """Halves go up; the weights of a pixel may add up to a little more than 1."""
    return torch.floor(levels + 0.5).clamp(0, 255)
