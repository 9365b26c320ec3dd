"""PNN: a network for every task, which also hears what all earlier ones make of the input, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from nacre.methods.checks import check_number
from nacre.space import Columns
from nacre.training import Task, fit


@dataclass(frozen=True)
class PNN:
    """Progressive neural networks (Rusu et al., 2016): a column a task, adapters to the frozen columns before it.

    scale: what is heard of an earlier column is multiplied by a learnt number, at first drawn between 0 and this.
    """

    scale: float = 0.1

    name: ClassVar[str] = "pnn"
    title: ClassVar[str] = "PNN"

    def begin(self, backbone: nn.Module, **options: Any) -> Columns:
        return Columns(backbone, **options)

    def load(self, path: Path, **options: Any) -> Columns:
        return Columns.load(path, **options)

    def learn(self, columns: Columns, task: Task) -> None:
        network = columns.progress(task.head, self.scale)
        fit(network, task)
        columns.append(task.name, network, classes=task.classes, keep=bool(columns.tasks), extra=columns.own(network))

    def __post_init__(self) -> None:
        check_number(self, "scale")
