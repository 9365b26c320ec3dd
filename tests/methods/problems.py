"""Small problems that every method can learn: two classes that an input's numbers decide, or small pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nacre import Learner, Recipe


def points(axis: int, count: int = 48) -> tuple[Tensor, Tensor]:
    """Six numbers each; the class is the sign of one of them."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(axis))
    return x, (x[:, axis] > 0).long()


def pictures(axis: int, count: int = 24) -> tuple[Tensor, Tensor]:
    """Pictures of 8 x 8 pixels with 256 levels a channel; the class is which half of them is brighter."""
    draw = torch.Generator().manual_seed(axis)
    levels = torch.randint(0, 192, (count, 3, 8, 8), generator=draw)
    y = torch.arange(count) % 2
    levels[:, axis % 3] += 63 * (torch.arange(8) // 4 == y[:, None]).long()[:, :, None]
    return levels.float().div_(255).sub_(0.5).div_(0.25), y


def layers() -> nn.Module:
    return drawn(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU()))


def normed() -> nn.Module:
    """A small relative of vgg16_bn."""
    return drawn(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
    )  # fmt: skip


def drawn(module: nn.Module) -> nn.Module:
    """The same weights whatever was drawn before."""
    with torch.no_grad():
        for number, layer in enumerate(module.modules()):
            if isinstance(layer, nn.Linear | nn.Conv2d):
                for parameter in layer.parameters():
                    parameter.uniform_(-0.4, 0.4, generator=torch.Generator().manual_seed(number))
    return module


def short(epochs: int = 3, **more: Any) -> Recipe:
    return Recipe(epochs=epochs, **{"batch_size": 8, "learning_rate": 0.01, "precision": "float32", **more})


def learner_of(method: Any, backbone: nn.Module | None = None, **options: Any) -> Learner:
    return Learner(backbone if backbone is not None else layers(), method, device="cpu", progress=False, **options)


class Own(nn.Module):
    """A network that is no chain of torch's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output
