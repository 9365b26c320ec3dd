"""What may be asked of a task that is learnt from pictures, and what learning it came to."""

from __future__ import annotations

from dataclasses import dataclass

from nacre.errors import NacreError
from nacre.images.beginning import BaseKept
from nacre.lowrank import Dtype, check_dtype
from nacre.networks import PRETRAINED

NO_BASE = "--base says where the weights of a pretrained network are kept, --network hf:NAME_OR_FOLDER; {}"


@dataclass(frozen=True)
class Wanted:
    """What may be asked of a task that is learnt from pictures; None is the store's, or the default."""

    network: str | None = None
    size: int | None = None
    seed: int | None = None
    epochs: int | None = None
    budget: int | None = None  # bytes of the task's factors
    test_share: float = 0.2
    flip: bool = False
    label: str | None = None
    base: BaseKept | None = None  # where a pretrained network's weights are kept
    dtype: Dtype | None = None  # what the task's factors and head are stored in

    def __post_init__(self) -> None:
        if self.base not in (None, "store", "external"):
            raise NacreError(f"a base is kept in the store or external; got {self.base!r}")
        if self.base is not None and self.network is not None and not self.network.startswith(PRETRAINED):
            raise NacreError(NO_BASE.format(f"{self.network} is learnt from scratch"))
        if self.dtype is not None:
            check_dtype("the dtype", self.dtype)
        if not 0 <= self.test_share < 1:
            raise NacreError(f"the test share is a share of the pictures, from 0 to below 1; got {self.test_share:g}")
        for name, value in (("size", self.size), ("epochs", self.epochs), ("budget", self.budget)):
            if value is not None and value < 1:
                raise NacreError(f"{name}: a whole number from 1; got {value}")


@dataclass(frozen=True)
class Learnt:
    """What learning a task from pictures came to."""

    task: str
    classes: tuple[str, ...]
    trained_on: int
    tested_on: int
    accuracy: float | None  # per cent of the test pictures
    accuracy_without_budget: float | None  # of the same task learnt the same way with no budget; None without one
    ranks: dict[str, int]
    factor_bytes: int
    megabytes: float
    seconds: float
    recipe: str
    network: str
    base: str | None  # where the weights under every task are kept: "store", "external"; None where there are none
    base_megabytes: float
    unchanged: tuple[str, ...]  # earlier tasks that answered the same bits before and after
    looked_at: int  # pictures that they answered
    skipped: tuple[str, ...]
    notes: tuple[str, ...]
