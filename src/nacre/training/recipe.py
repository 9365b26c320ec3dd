"""Recipe: how a task is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nacre.errors import NacreError
from nacre.trees import Tree

Precision = Literal["auto", "float32", "bfloat16"]
Augment = Callable[[Tree, torch.Generator], Tree]
Rates = Mapping[Tensor, float]


@dataclass(frozen=True)
class Recipe:
    """Epochs, optimiser, schedule, precision.

    optimizer: makes an optimiser of one's own from the trainable parameters; Adam at `learning_rate` without it.
    schedule:  "milestones" divides the rate by 10 at these shares of the epochs, "cosine" lets it fall to 0.
    precision: "auto" is bfloat16 autocast where the device has it natively, else float32.
    channels_last: the layout of images; None is wherever it was measured to be faster (with bfloat16).
    augment:   changes a batch on the device; gets the inputs and a generator to draw from.
    patience:  with val=, epochs without improvement after which training stops. The best epoch is kept.
    keep:      "auto" keeps tensors on the device if they fit; True reads a Dataset once and keeps it (only if its
               items never change); False streams.
    workers:   processes that read a Dataset.

    >>> recipe = Recipe(epochs=20, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    >>> recipe.make_optimizer(nn.Linear(2, 3).parameters()).param_groups[0]["lr"]
    0.1
    """

    epochs: int = 40
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None = None
    schedule: Literal["milestones", "cosine", "constant"] = "milestones"
    milestones: tuple[float, ...] = (0.4, 0.6, 0.9)
    precision: Precision = "auto"
    channels_last: bool | None = None
    augment: Augment | None = None
    patience: int = 10
    keep: bool | Literal["auto"] = "auto"
    workers: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("patience", 1), ("workers", 0)):
            if type(value := getattr(self, name)) is not int or value < least:
                raise NacreError(f"Recipe.{name} is a whole number from {least}; got {value!r}")
        for name in ("optimizer", "augment"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise NacreError(f"Recipe.{name} is a function; got {value!r:.80}")
        if not isinstance(self.learning_rate, int | float) or not 0 < self.learning_rate < math.inf:
            raise NacreError(f"Recipe.learning_rate is a number above 0; got {self.learning_rate!r}")
        shares = self.milestones if isinstance(self.milestones, tuple | list) else (None,)
        if not all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares):
            raise NacreError(f"Recipe.milestones are shares of the epochs, from 0 to 1; got {self.milestones!r}")
        if self.keep not in (True, False, "auto"):
            raise NacreError(f"Recipe.keep is True, False or 'auto'; got {self.keep!r}")
        if self.channels_last not in (True, False, None):
            raise NacreError(f"Recipe.channels_last is True, False or None; got {self.channels_last!r}")
        if self.schedule not in ("milestones", "cosine", "constant"):
            raise NacreError(f"Recipe.schedule is 'milestones', 'cosine' or 'constant'; got {self.schedule!r}")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise NacreError(f"Recipe.precision is 'auto', 'float32' or 'bfloat16'; got {self.precision!r}")

    def make_optimizer(self, parameters: Iterable[nn.Parameter], rates: Rates | None = None) -> Optimizer:
        """Adam, with the learning rate of some parameters multiplied; or the user's own, whose rates are its own."""
        trainable = [parameter for parameter in parameters if parameter.requires_grad and parameter.numel()]
        if not trainable:
            raise NacreError("nothing is left to train: no layer has rank left and the head has no parameters")
        if self.optimizer is not None:
            made = self.optimizer(trainable)
            if not isinstance(made, Optimizer):
                raise NacreError(f"Recipe.optimizer must give a torch Optimizer; it gave {made!r:.80}")
            return made
        groups: dict[float, list[nn.Parameter]] = {}
        for parameter in trainable:
            groups.setdefault((rates or {}).get(parameter, 1.0), []).append(parameter)
        return torch.optim.Adam(
            [{"params": group, "lr": self.learning_rate * rate} for rate, group in groups.items()],
            fused=trainable[0].device.type in ("cpu", "cuda"),
        )

    def rate_at(self, epoch: int) -> float:
        """What the learning rate is multiplied by in an epoch.

        >>> [Recipe(epochs=10).rate_at(epoch) for epoch in (3, 4)]
        [1.0, 0.1]
        """
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        passed = sum(epoch >= max(1, round(share * self.epochs)) for share in self.milestones)
        return float(0.1**passed)

    def autocasts(self, device: torch.device) -> bool:
        """Whether the forward pass runs in bfloat16."""
        return self.precision == "bfloat16" or (self.precision == "auto" and native_bfloat16(device))

    def lays_channels_last(self, device: torch.device) -> bool:
        return self.autocasts(device) if self.channels_last is None else self.channels_last


def native_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies in bfloat16 itself, not by emulation."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        told = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        return bool(told.get("avx512_bf16") or told.get("amx_bf16"))
    return False
