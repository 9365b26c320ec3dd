"""Early stopping: looks at the validation data after each epoch and keeps the best network."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from nacre.training.checkpoint import cpu_copy
from nacre.training.evaluation import evaluate, measure
from nacre.training.seeding import seeded
from nacre.training.task import Task


class Watch:
    """What validation has shown so far, and whether training is over."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.best: dict[str, Tensor] | None = None
        self.highest = -math.inf
        self.waited = 0
        self.over = False

    def look(self, network: nn.Module) -> float:
        with seeded(self._task.seed, self._task.name, "validation"):  # whatever is drawn: the same after every epoch
            value = float(self._task.processes.agree(self._value(network)))
        if value > self.highest:
            self.highest, self.waited, self.best = value, 0, cpu_copy(network)
        else:
            self.waited += 1
        self.over = self.waited >= self._task.recipe.patience
        return value

    def _value(self, network: nn.Module) -> float:
        assert self._task.val is not None
        if self._task.metric is not None:
            return measure(network, self._task.val, self._task.metric)
        found = evaluate(network, self._task.val, self._task.loss)
        return found.accuracy if found.accuracy is not None else -float(found.loss or 0)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep, beside the best network."""
        highest = self.highest if math.isfinite(self.highest) else None
        return {"highest": highest, "waited": self.waited, "over": self.over}

    def restore(self, state: dict[str, Any], best: dict[str, Tensor]) -> None:
        self.highest = -math.inf if state["highest"] is None else state["highest"]
        self.waited, self.over, self.best = state["waited"], state["over"], best or None
