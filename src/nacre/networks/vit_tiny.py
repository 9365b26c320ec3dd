"""vit_tiny: the smallest vision transformer of Touvron et al. (2020), 192 features, averaged over the patches."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from nacre.networks.drawing import Drawing

if TYPE_CHECKING:
    from torch import fx

_WIDTH, _DEPTH, _HEADS, _GRID = 192, 12, 3, 14


def vit_tiny(channels: int = 3, patch: int = 8) -> fx.GraphModule:
    """Images of at least one patch, of any size, to 192 features.

    patch: the side of a patch in pixels; 8 suits images of 64 to 128 pixels, 16 those of 224.
    Positions are learnt for a grid of 14 x 14 patches and stretched to the grid that an image has. There is no class
    token: features are the mean over the patches.

    >>> sum(weight.numel() for weight in vit_tiny(patch=16).parameters())
    5524032
    """
    net = Drawing()
    x = net.layer("patches", nn.Conv2d(channels, _WIDTH, patch, patch), net.input)
    grid = (net.method("size", x, 2), net.method("size", x, 3))
    learnt = net.parameter("positions", nn.Parameter(torch.empty(1, _WIDTH, _GRID, _GRID)))
    stretched = net.function(F.interpolate, learnt, size=grid, mode="bilinear", align_corners=False)
    x = net.method("flatten", net.function(operator.add, x, stretched), 2)
    x = net.method("transpose", x, 1, 2)  # [batch, patches, width]
    for number in range(1, _DEPTH + 1):
        x = net.function(operator.add, x, _attention(net, f"block{number}", x))
        x = net.function(operator.add, x, _perceptron(net, f"block{number}", x))
    x = net.layer("norm", nn.LayerNorm(_WIDTH, 1e-6), x)
    network = net.finish(net.method("mean", x, 1))
    nn.init.trunc_normal_(network.get_parameter("positions"), std=0.02)
    return network


def _attention(net: Drawing, name: str, x: fx.Node) -> fx.Node:
    x = net.layer(f"{name}_norm1", nn.LayerNorm(_WIDTH, 1e-6), x)
    parts = []
    for part in ("query", "key", "value"):
        split = net.method("unflatten", net.layer(f"{name}_{part}", nn.Linear(_WIDTH, _WIDTH), x), 2, (_HEADS, -1))
        parts.append(net.method("transpose", split, 1, 2))  # [batch, heads, patches, width / heads]
    x = net.function(F.scaled_dot_product_attention, *parts)
    x = net.method("flatten", net.method("transpose", x, 1, 2), 2)
    return net.layer(f"{name}_out", nn.Linear(_WIDTH, _WIDTH), x)


def _perceptron(net: Drawing, name: str, x: fx.Node) -> fx.Node:
    x = net.layer(f"{name}_norm2", nn.LayerNorm(_WIDTH, 1e-6), x)
    x = net.layer(f"{name}_gelu", nn.GELU(), net.layer(f"{name}_fc1", nn.Linear(_WIDTH, 4 * _WIDTH), x))
    return net.layer(f"{name}_fc2", nn.Linear(4 * _WIDTH, _WIDTH), x)
