"""resnet18 and resnet50: residual networks with batch norm (He et al. 2015), 512 and 2,048 features."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from torch import nn

from nacre.networks.drawing import Drawing

if TYPE_CHECKING:
    from torch import fx

_WIDTHS = (64, 128, 256, 512)  # of the four stages; each but the first halves the image


def resnet18(channels: int = 3) -> fx.GraphModule:
    """Images of any size to 512 features; made for 64 x 64 pixels and more, since five steps halve them.

    >>> sum(weight.numel() for weight in resnet18().parameters())
    11176512
    """
    return _resnet(channels, (2, 2, 2, 2), bottleneck=False)


def resnet50(channels: int = 3) -> fx.GraphModule:
    """Images of any size to 2,048 features; the stride is in the 3 x 3 convolutions.

    >>> sum(weight.numel() for weight in resnet50().parameters())
    23508032
    """
    return _resnet(channels, (3, 4, 6, 3), bottleneck=True)


def _resnet(channels: int, depths: tuple[int, ...], *, bottleneck: bool) -> fx.GraphModule:
    net = Drawing()
    x = _convolution(net, "stem", net.input, (channels, 64), size=7, stride=2)
    x = net.layer("stem_relu", nn.ReLU(), x)
    x = net.layer("stem_pool", nn.MaxPool2d(3, 2, 1), x)
    before = 64
    for stage, (width, depth) in enumerate(zip(_WIDTHS, depths, strict=True), start=1):
        after = 4 * width if bottleneck else width
        for number in range(1, depth + 1):
            stride = 2 if stage > 1 and number == 1 else 1
            name = f"stage{stage}_{number}"
            inner = [(before, width, 1), (width, width, 3), (width, after, 1)]
            if not bottleneck:
                inner = [(before, width, 3), (width, width, 3)]
            x = _block(net, name, x, inner, stride)
            before = after
    x = net.layer("average", nn.AdaptiveAvgPool2d(1), x)
    return net.finish(net.layer("flatten", nn.Flatten(), x))


def _block(net: Drawing, name: str, x: fx.Node, inner: list[tuple[int, int, int]], stride: int) -> fx.Node:
    """Convolutions beside a way past them; `inner`: channels before and after, and the size, of each."""
    past, strided = x, next(number for number, (_, _, size) in enumerate(inner) if size == 3)
    before, after = inner[0][0], inner[-1][1]
    for number, (given, made, size) in enumerate(inner):
        if number:
            x = net.layer(f"{name}_relu{number}", nn.ReLU(), x)
        step = stride if number == strided else 1
        x = _convolution(net, f"{name}_{number + 1}", x, (given, made), size=size, stride=step)
    if stride > 1 or before != after:
        past = _convolution(net, f"{name}_past", past, (before, after), size=1, stride=stride)
    return net.layer(f"{name}_relu", nn.ReLU(), net.function(operator.add, x, past))


def _convolution(net: Drawing, name: str, x: fx.Node, channels: tuple[int, int], *, size: int, stride: int) -> fx.Node:
    """A convolution without bias and its batch norm."""
    x = net.layer(f"{name}_conv", nn.Conv2d(*channels, size, stride, size // 2, bias=False), x)
    return net.layer(f"{name}_norm", nn.BatchNorm2d(channels[1]), x)
