"""vgg16_bn: the thirteen convolutions of VGG16 with batch norm (configuration D), 512 features, and its head."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # a pool halves after each
_HIDDEN = 32


def vgg16_bn(channels: int = 3) -> nn.Sequential:
    """Images of at least 32 x 32 pixels to 512 features, averaged over whatever places five halvings leave.

    The convolutions have no bias: batch norm takes it out again, and a task would store 4,224 useless numbers.

    >>> sum(weight.numel() for weight in vgg16_bn().parameters() if weight.dim() == 4)
    14710464
    """
    layers: list[tuple[str, nn.Module]] = []
    before = channels
    for block, widths in enumerate(_BLOCKS, start=1):
        for number, width in enumerate(widths, start=1):
            layers += [
                (f"conv{block}_{number}", nn.Conv2d(before, width, 3, padding=1, bias=False)),
                (f"norm{block}_{number}", nn.BatchNorm2d(width)),
                (f"relu{block}_{number}", nn.ReLU()),
            ]
            before = width
        layers.append((f"pool{block}", nn.MaxPool2d(2)))
    layers += [("average", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]
    return nn.Sequential(OrderedDict(layers))


def vgg16_bn_head(features: int, classes: int) -> nn.Sequential:
    """The paper's head for this network: two linear layers, 32 numbers between them.

    >>> [tuple(weight.shape) for weight in vgg16_bn_head(512, 5).parameters()]
    [(32, 512), (32,), (5, 32), (5,)]
    """
    layers = (("fc1", nn.Linear(features, _HIDDEN)), ("relu1", nn.ReLU()), ("fc2", nn.Linear(_HIDDEN, classes)))
    return nn.Sequential(OrderedDict(layers))
