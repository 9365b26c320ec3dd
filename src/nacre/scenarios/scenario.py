"""Scenario: an ordered stream of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError

Examples = tuple[Tensor, Tensor]  # inputs, class numbers from 0


@dataclass(frozen=True)
class ScenarioTask:
    """One task's data; `classes` are the names behind the class numbers."""

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    augment: Callable[[Any, torch.Generator], Any] | None = None


@dataclass(frozen=True)
class Scenario:
    """Tasks in the order they are learnt, and the backbone they are learnt with."""

    name: str
    tasks: tuple[ScenarioTask, ...]
    backbone: Callable[[], nn.Module]
    head: Callable[[int], nn.Module] | None = None  # makes a head for so many classes; linear without it
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON for the record

    def first(self, count: int | None) -> Scenario:
        """The first `count` tasks."""
        if count is not None and not 1 <= count <= len(self.tasks):
            raise NacreError(f"{self.name} has {len(self.tasks)} tasks; got --tasks {count}")
        return replace(self, tasks=self.tasks[:count])

    def ordered(self, seed: int) -> Scenario:
        """The same tasks in an order drawn from a seed."""
        order = torch.randperm(len(self.tasks), generator=torch.Generator().manual_seed(seed))
        return replace(self, tasks=tuple(self.tasks[index] for index in order.tolist()))
