"""conv5: the paper's five-layer network (Appendix A), 390,848 weights, features for a linear head."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def conv5(channels: int = 3) -> nn.Sequential:
    """Five convolutions without padding or bias; images of at least 24 x 24 pixels to features.

    >>> sum(weight.numel() for weight in conv5().parameters())
    390848
    """
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(channels, 64, 3, bias=False)),
        ("relu1", nn.ReLU()),
        ("conv2", nn.Conv2d(64, 64, 3, bias=False)),
        ("relu2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(2)),
        ("dropout2", nn.Dropout(0.15)),
        ("conv3", nn.Conv2d(64, 128, 3, bias=False)),
        ("relu3", nn.ReLU()),
        ("conv4", nn.Conv2d(128, 128, 3, bias=False)),
        ("relu4", nn.ReLU()),
        ("pool4", nn.MaxPool2d(2)),
        ("dropout4", nn.Dropout(0.15)),
        ("conv5", nn.Conv2d(128, 256, 2, bias=False)),
        ("relu5", nn.ReLU()),
        ("pool5", nn.AvgPool2d(2)),
        ("flatten", nn.Flatten()),
    ]
    return nn.Sequential(OrderedDict(layers))
