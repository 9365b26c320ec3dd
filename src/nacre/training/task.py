"""Task: one task as the methods and the loop see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.training.batch import Batches
from nacre.training.processes import Processes
from nacre.training.recipe import Recipe

Loss = Callable[[Any, Any], Tensor]
Metric = Callable[[Any, Any], float]


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to; callbacks get it, checkpoints and records keep it."""

    task: str
    phase: str
    epoch: int  # from 1
    epochs: int
    last: bool  # of its phase
    loss: float
    accuracy: float | None  # per cent of the training examples, where targets are class numbers
    val: float | None  # what early stopping watches, higher is better
    seconds: float
    images: int
    measures: Mapping[str, float] = field(default_factory=dict)  # what the method reports: orthogonality, rank

    def to_json(self) -> dict[str, Any]:
        """As JSON, which has no number that is not finite: null stands for it."""
        measures = {name: _finite(value) for name, value in self.measures.items()}
        return {**asdict(self), "val": _finite(self.val), "measures": measures}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


Callback = Callable[[Epoch, nn.Module], bool | None]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss where none is given, for class numbers of any integer type."""
    return F.cross_entropy(outputs, targets.long())


def check_function(name: str, given: object) -> None:
    if given is not None and not callable(given):
        raise NacreError(f"{name}= is a function of (outputs, targets); got {given!r:.80}")


def check_settings(recipe: object, loss: object, metric: object, callbacks: object) -> None:
    """Refuses what no training could use, before any data are read."""
    if not isinstance(recipe, Recipe):
        raise NacreError(f"recipe= is a nacre.Recipe; got {recipe!r:.80}")
    check_function("loss", loss)
    check_function("metric", metric)
    if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
        raise NacreError(f"callbacks= is a list of functions of (epoch, network); got {callbacks!r:.80}")


@dataclass(frozen=True)
class Task:
    """A task to learn: its name, its head, its data, and how it is to be trained."""

    name: str
    head: nn.Module
    train: Batches
    loss: Loss
    recipe: Recipe
    processes: Processes
    seed: int = 0
    val: Batches | None = None
    metric: Metric | None = None
    classes: tuple[str, ...] | None = None
    callbacks: tuple[Callback, ...] = ()  # one that returns True ends the phase
    checkpoint: Path | None = None  # folder
    progress: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)  # what a checkpoint must agree with, beside the recipe
    history: list[Epoch] = field(default_factory=list)  # filled as the task is learnt
