"""Task: one task as the methods and the loop see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nacre.training.batches import Batches
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
