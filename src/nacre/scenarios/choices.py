"""Choices: what a user may choose about a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from nacre.errors import WrongUsage
from nacre.networks import NETWORKS

ClassOrder = Literal["consecutive", "random", "superclass"]


@dataclass(frozen=True)
class Choices:
    """What may be chosen of the data and the network; the defaults are the published protocol's."""

    # folder with parquet below the hub's names (DIR/uoft-cs/cifar100/train*.parquet) or with pictures
    # (DIR/miniimagenet/train/CLASS/PICTURE.jpg); what it lacks comes from the Hugging Face hub
    data: Path | None = None
    class_order: ClassOrder = "consecutive"  # a task's classes: neighbouring labels, drawn by the seed, a superclass's
    holdout: float = 0.0  # share of every class's training images that is kept out of training (ScenarioTask.val)
    augment: bool = True  # crop and mirror training images where the published code does
    network: str | None = None  # conv5 (the default) or vgg16_bn

    def __post_init__(self) -> None:
        if self.data is not None:
            object.__setattr__(self, "data", Path(self.data))
        if self.class_order not in get_args(ClassOrder):
            raise WrongUsage(f"the class order is {_either(get_args(ClassOrder))}; got {self.class_order!r}")
        if not isinstance(self.holdout, int | float) or not 0 <= self.holdout < 1:
            raise WrongUsage(f"the holdout is a share of the training images, from 0 to below 1; got {self.holdout!r}")
        if self.network is not None and self.network not in NETWORKS:
            raise WrongUsage(f"the network is {_either(tuple(NETWORKS))}; got {self.network!r}")


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
