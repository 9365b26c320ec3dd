"""Early stopping: looks at the validation data after each epoch and keeps the best network."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from nacre.training.batch import Batches
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
        assert self._task.val is not None
        value = score(network, self._task, self._task.val)
        if value > self.highest:
            self.highest, self.waited, self.best = value, 0, cpu_copy(network)
        else:
            self.waited += 1
        self.over = self.waited >= self._task.recipe.patience
        return value

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep, beside the best network."""
        highest = self.highest if math.isfinite(self.highest) else None
        return {"highest": highest, "waited": self.waited, "over": self.over}

    def restore(self, state: dict[str, Any], best: dict[str, Tensor]) -> None:
        self.highest = -math.inf if state["highest"] is None else state["highest"]
        self.waited, self.over, self.best = state["waited"], state["over"], best or None


def score(network: nn.Module, task: Task, batches: Batches) -> float:
    """What networks are compared by, higher is better: the task's metric, else accuracy, else the loss below 0."""
    with seeded(task.seed, task.name, "validation"):  # whatever is drawn: the same after every epoch
        if task.metric is not None:
            return float(task.processes.agree(measure(network, batches, task.metric)))
        found = evaluate(network, batches, task.loss)
    value = found.accuracy if found.accuracy is not None else -float(found.loss or 0)
    return float(task.processes.agree(value))
