"""What an epoch goes through: batches, and the part of each that is this process's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nacre.training.processes import Processes
from nacre.trees import Tree

EVALUATION_BATCH = 512  # a size that no machine decides, so that none decides the bits


@dataclass(frozen=True)
class Batch:
    """This process's part of a batch."""

    inputs: Tree
    targets: Tree
    weight: float  # of its mean loss, so that the mean over processes is that of the whole batch
    examples: int  # in the whole batch


class Batches(Protocol):
    """What an epoch goes through."""

    @property
    def examples(self) -> int | None:
        """An epoch's, where that is known."""
        ...

    @property
    def batches(self) -> int | None:
        """An epoch's, where that is known."""
        ...

    def epoch(self, *seed: object) -> Iterator[Batch]:
        """The batches of one epoch; the order follows from the seed."""
        ...

    def in_order(self) -> Iterator[tuple[Tree, Tree]]:
        """All examples once, unshuffled, whole in every process."""
        ...

    def first(self) -> tuple[Tree, Tree]:
        """A few examples, to look at."""
        ...

    def expect_classes(self, count: int) -> None:
        """Refuses, now or when it meets one, a target that is no class number below `count`."""
        ...


def batch_indices(order: Tensor, size: int) -> Iterator[Tensor]:
    """Runs of `size`; a last run of one joins the one before, for batch norm cannot learn from one example."""
    runs = list(order.split(size))
    if len(runs) > 1 and len(runs[-1]) == 1:
        runs[-2:] = [torch.cat(runs[-2:])]
    return iter(runs)


def count_batches(examples: int, size: int) -> int:
    """How many runs `batch_indices` gives.

    >>> [count_batches(examples, 4) for examples in (1, 4, 5, 6, 8, 9)]
    [1, 1, 1, 2, 2, 2]
    """
    runs = -(-examples // size)
    return runs - (runs > 1 and examples - (runs - 1) * size == 1)


def share(chosen: Tensor, processes: Processes) -> tuple[Tensor, float]:
    """This process's part of a batch and the weight of its mean; where none is left, an example of weight 0."""
    mine = chosen.tensor_split(processes.count)[processes.rank]
    if len(mine) == 0:
        return chosen[:1], 0.0
    return mine, len(mine) * processes.count / len(chosen)
