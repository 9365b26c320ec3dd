"""Scenario: an ordered stream of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError, WrongUsage
from nacre.trees import Tree

Examples = tuple[Tensor, Tensor]  # inputs, class numbers from 0
Made = Examples | Callable[[], Examples]
Augment = Callable[[Tree, torch.Generator], Tree]


class ScenarioTask:
    """One task's data; `classes` are the names behind the class numbers."""

    def __init__(
        self,
        name: str,
        train: Made,
        test: Made,
        classes: Sequence[str],
        augment: Augment | None = None,
        val: Made | None = None,
    ) -> None:
        """train, test, val: inputs and class numbers, or a function that makes them whenever they are asked for.

        augment: changes a training batch, as Recipe.augment does. val: what was held out of training, to choose by.
        """
        self.name, self.classes, self.augment = name, tuple(classes), augment
        self._train, self._test, self._val = train, test, val

    @property
    def train(self) -> Examples:
        return _made(self._train)

    @property
    def test(self) -> Examples:
        return _made(self._test)

    @property
    def val(self) -> Examples | None:
        return _made(self._val) if self._val is not None else None

    def __repr__(self) -> str:
        return f"ScenarioTask({self.name!r}, classes={self.classes!r})"


def _made(examples: Made) -> Examples:
    return examples() if callable(examples) else examples


@dataclass(frozen=True)
class Scenario:
    """Tasks in the order they are learnt, and the network they are learnt with. Any list of tasks makes one.

    backbone: makes the backbone. head: makes a task's head of its number of classes; None: one linear layer.
    facts:    what a record should say of it, as JSON: data, class order, holdout, augmentation, network.
    draw:     for a scenario whose seed draws which classes make a task: its tasks, from a seed.

    >>> def parity(bit):
    ...     x = torch.arange(64)[:, None].bitwise_and(torch.tensor([1, 2, 4])).gt(0)
    ...     return x.float(), x[:, bit].long()
    >>> tasks = [ScenarioTask(f"bit {bit}", parity(bit), parity(bit), ("off", "on")) for bit in range(3)]
    >>> scenario = Scenario("bits", tasks, lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU()))
    >>> [task.name for task in scenario.first(2).ordered(seed=1).tasks]
    ['bit 1', 'bit 0']
    """

    name: str
    tasks: Sequence[ScenarioTask]
    backbone: Callable[[], nn.Module]
    head: Callable[[int], nn.Module] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[int], Sequence[ScenarioTask]] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))
        names = [task.name for task in self.tasks]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise NacreError(f"{self.name}: every task has a name of its own; {', '.join(twice)} stands there twice")
        if not names:
            raise NacreError(f"{self.name}: a scenario has at least one task")

    def first(self, count: int | None) -> Scenario:
        """The first `count` tasks."""
        if count is not None and not 1 <= count <= len(self.tasks):
            raise WrongUsage(f"{self.name} has {len(self.tasks)} tasks; got --tasks {count}")
        return self._of(self.tasks[:count])

    def ordered(self, seed: int) -> Scenario:
        """The same tasks in an order drawn from a seed; or as many that the seed draws the classes of, too."""
        if self.draw is not None:
            return self._of(self.draw(seed)[: len(self.tasks)], drawn=True)
        order = torch.randperm(len(self.tasks), generator=torch.Generator().manual_seed(seed))
        return self._of([self.tasks[index] for index in order.tolist()])

    def _of(self, tasks: Sequence[ScenarioTask], *, drawn: bool = False) -> Scenario:
        """Other tasks; the record says their classes where it said these tasks', or now that they are drawn."""
        facts = dict(self.facts)
        if drawn or "classes" in facts:
            facts["classes"] = {task.name: list(task.classes) for task in tasks}
        return replace(self, tasks=tasks, facts=facts)
