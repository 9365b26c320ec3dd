"""Joint: every task is learnt together with all earlier ones, from the beginning. The upper bound of one network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from nacre.methods.method import WeightsMethod
from nacre.methods.replay import all_of
from nacre.space import Memory, OfTask, Weights
from nacre.training import Task, fit
from nacre.training.batch import Batch, Batches
from nacre.training.held import Held
from nacre.training.seeding import generator
from nacre.trees import Tree


@dataclass(frozen=True)
class Joint(WeightsMethod):
    """Trains anew on the examples of all tasks so far, all of which it keeps."""

    name: ClassVar[str] = "joint"
    title: ClassVar[str] = "joint"

    def learn(self, weights: Weights, task: Task) -> None:
        network = weights.expand(task.head, earlier=True, fresh=True)
        earlier = [
            Held(kept.inputs, kept.targets, task.recipe, task.processes) for kept in weights.memory.tasks.values()
        ]
        fit(network, replace(task, train=Together(task.train, earlier)))
        memory = Memory({**weights.memory.tasks, task.name: all_of(task.train)}, weights.memory.seen)
        weights.append(task.name, network, classes=task.classes, memory=memory)


class Together:
    """The batches of several tasks in a drawn order; each batch is of one task, whose head and norm layers it meets."""

    def __init__(self, newest: Batches, earlier: list[Held]) -> None:
        self._newest, self._earlier = newest, earlier

    @property
    def examples(self) -> int | None:
        return _total([part.examples for part in (self._newest, *self._earlier)])

    @property
    def batches(self) -> int | None:
        return _total([part.batches for part in (self._newest, *self._earlier)])

    def epoch(self, *seed: object) -> Iterator[Batch]:
        streams = [iter(part.epoch(*seed, at)) for at, part in enumerate(self._earlier)] + [
            iter(self._newest.epoch(*seed))
        ]
        draws = generator(*seed, "together")
        left = torch.tensor([float(part.examples or 1) for part in (*self._earlier, self._newest)])
        while left.any():
            at = int(torch.multinomial(left, 1, generator=draws))
            batch = next(streams[at], None)
            if batch is None:
                left[at] = 0
                continue
            left[at] = max(float(left[at]) - batch.examples, 1e-9)  # until its stream has ended
            yield batch if at == len(self._earlier) else replace(batch, inputs=OfTask(torch.tensor(at), batch.inputs))

    def in_order(self) -> Iterator[tuple[Tree, Tree]]:
        for at, part in enumerate(self._earlier):
            for inputs, targets in part.in_order():
                yield OfTask(torch.tensor(at), inputs), targets
        yield from self._newest.in_order()

    def first(self) -> tuple[Tree, Tree]:
        return self._newest.first()

    def expect_classes(self, count: int) -> None:
        self._newest.expect_classes(count)


def _total(counts: list[int | None]) -> int | None:
    return None if None in counts else sum(count for count in counts if count is not None)
