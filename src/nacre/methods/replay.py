"""Replay: examples of earlier tasks, drawn from a memory, through the network that learns the next one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from nacre.space import Examples, Memory, MultitaskNetwork
from nacre.space.layout import is_norm
from nacre.training import Task
from nacre.training.batch import Batches
from nacre.training.step import channels_last, to_float32
from nacre.trees import Tree, between, joined, leaves, map_leaves

Slot = tuple[str, Tree]  # a task and one of its examples


class Replay:
    """Draws examples from a memory and works out the loss of the network on them, each with its own task's head.

    An example's norm layers answer with the statistics that its task was learnt with: a few examples have none of their
    own, and this is how the task will be asked.
    """

    def __init__(self, memory: Memory, network: MultitaskNetwork, task: Task, batch: int) -> None:
        device = task.processes.device
        self._network, self._task, self._batch = network, task, batch
        self._tasks = [
            (name, Examples(*(map_leaves(lambda leaf: leaf.to(device), part) for part in (kept.inputs, kept.targets))))
            for name, kept in memory.tasks.items()
        ]
        self._of = torch.cat([torch.full((len(kept),), at) for at, (_, kept) in enumerate(self._tasks)])
        self._start = [int((self._of < at).sum()) for at in range(len(self._tasks))]

    def loss(self) -> Tensor:
        """The mean loss over a batch drawn from the memory, without putting anything back."""
        drawn = torch.randperm(len(self._of))[: self._batch]  # from the epoch's own generator
        # of the same tasks in every process, so that the same parameters have gradients to be averaged
        drawn = torch.tensor(self._task.processes.agree(drawn.tolist()))
        total: Tensor = torch.zeros((), device=self._task.processes.device)
        with self._as_in_training():
            for at, (name, kept) in enumerate(self._tasks):
                chosen = drawn[self._of[drawn] == at] - self._start[at]
                if len(chosen):
                    total = total + self._loss(name, kept, chosen) * (len(chosen) / len(drawn))
        return total

    def _loss(self, name: str, kept: Examples, chosen: Tensor) -> Tensor:
        inputs, targets = (
            map_leaves(lambda leaf: leaf[chosen.to(leaf.device)], p) for p in (kept.inputs, kept.targets)
        )
        if self._task.recipe.augment is not None:
            draws = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
            inputs = self._task.recipe.augment(inputs, draws)
        if self._task.recipe.lays_channels_last(self._task.processes.device):
            inputs = map_leaves(channels_last, inputs)
        outputs = map_leaves(to_float32, self._network.answer(name, inputs))
        return self._task.loss(outputs, targets)

    @contextlib.contextmanager
    def _as_in_training(self) -> Iterator[None]:
        """In the precision of the recipe, the norm layers alone as in evaluation."""
        device, recipe = self._task.processes.device, self._task.recipe
        norms = [module for module in self._network.backbone.modules() if is_norm(module) and module.training]
        for module in norms:
            module.eval()
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=recipe.autocasts(device), cache_enabled=False):
                yield
        finally:
            for module in norms:
                module.train()


def all_of(batches: Batches) -> Examples:
    """A task's training examples, on the CPU."""
    parts = [map_leaves(lambda leaf: leaf.to("cpu"), [inputs, targets]) for inputs, targets in batches.in_order()]
    return Examples(*joined(parts))


def reservoir(memory: Memory, task: Task, size: int, generator: torch.Generator) -> Memory:
    """Vitter's algorithm R goes on over a task's examples: every one seen so far is kept with equal chance."""
    slots: list[Slot] = [(name, one) for name, kept in memory.tasks.items() for one in _singly(kept)]
    seen = memory.seen
    for inputs, targets in task.train.in_order():
        examples = map_leaves(lambda leaf: leaf.to("cpu"), [inputs, targets])
        for at in range(len(next(leaves(examples)))):
            place = len(slots) if len(slots) < size else int(torch.randint(seen + 1, (), generator=generator))
            if place < size:
                slots[place : place + 1] = [(task.name, between(examples, at, at + 1))]
            seen += 1
    return Memory(_by_task(slots, [*memory.tasks, task.name]), seen)


def _singly(kept: Examples) -> Iterator[Tree]:
    for at in range(len(kept)):
        yield between([kept.inputs, kept.targets], at, at + 1)


def _by_task(slots: list[Slot], names: list[str]) -> Mapping[str, Examples]:
    found = {name: [one for owner, one in slots if owner == name] for name in names}
    return {name: Examples(*joined(ones)) for name, ones in found.items() if ones}


def add_task(memory: Memory, task: Task, size: int, generator: torch.Generator) -> Memory:
    """The memory with so many examples of one more task, equally many of each class where targets are classes."""
    examples = all_of(task.train)
    chosen = _evenly(examples, torch.randperm(len(examples), generator=generator))[:size]
    kept = Examples(*(map_leaves(lambda leaf: leaf[chosen], part) for part in (examples.inputs, examples.targets)))
    return Memory({**memory.tasks, task.name: kept}, memory.seen + len(examples))


def _evenly(examples: Examples, order: Tensor) -> Tensor:
    """An order in which the classes take turns."""
    targets = examples.targets
    if not isinstance(targets, Tensor) or targets.dim() != 1 or targets.is_floating_point():
        return order
    turn = torch.zeros(len(order), dtype=torch.long)
    for number in targets.unique():
        of_class = targets[order] == number
        turn[of_class] = torch.arange(int(of_class.sum()))
    return order[turn.argsort(stable=True)]
