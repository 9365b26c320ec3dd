"""Choices: what a user may choose about a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from nacre.errors import NacreError
from nacre.networks import NETWORKS

ClassOrder = Literal["consecutive", "random", "superclass"]


@dataclass(frozen=True)
class Choices:
    """What may be chosen; the defaults are the published protocol's.

    data:        a folder with local parquet below the hub's names (DIR/uoft-cs/cifar100/*.parquet), or with folders of
                 images (DIR/miniimagenet/train/CLASS/PICTURE); the Hugging Face hub for what it does not hold.
    class_order: which classes make a task: neighbouring labels; drawn from the seed; or those of one superclass.
    holdout:     the share of every class's training images that is kept out of training, `ScenarioTask.val`.
    augment:     whether training images are cropped and mirrored as the published code does for the set.
    network:     a name in nacre.networks.NETWORKS; conv5 if None.
    """

    data: Path | None = None
    class_order: ClassOrder = "consecutive"
    holdout: float = 0.0
    augment: bool = True
    network: str | None = None

    def __post_init__(self) -> None:
        if self.data is not None:
            object.__setattr__(self, "data", Path(self.data))
        if self.class_order not in get_args(ClassOrder):
            raise NacreError(f"the class order is {_either(get_args(ClassOrder))}; got {self.class_order!r}")
        if not isinstance(self.holdout, int | float) or not 0 <= self.holdout < 1:
            raise NacreError(f"the holdout is a share of the training images, from 0 to below 1; got {self.holdout!r}")
        if self.network is not None and self.network not in NETWORKS:
            raise NacreError(f"the network is {_either(tuple(NETWORKS))}; got {self.network!r}")


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
