"""fit: the one training loop. Epochs over a task's batches, with what a method adds to the loss or the gradients."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nacre.errors import NacreError
from nacre.training.batches import Batch
from nacre.training.checkpoint import Checkpoint, cpu_copy, load_copy
from nacre.training.evaluation import correct_answers, evaluate, measure
from nacre.training.progress import Progress
from nacre.training.seeding import seeded
from nacre.training.task import Epoch, Task
from nacre.trees import leaves, map_leaves

Penalty = Callable[[], Tensor]
Hook = Callable[[], None]
Report = Callable[[], Mapping[str, float]]


def fit(
    network: nn.Module,
    task: Task,
    *,
    penalty: Penalty | None = None,
    after_backward: Hook | None = None,
    after_step: Hook | None = None,
    report: Report | None = None,
    phase: str = "train",
) -> list[Epoch]:
    """Trains a network on a task for the epochs of its recipe, and gives what each epoch came to.

    penalty:        what a method adds to the loss; worked out in float32 after the forward pass.
    after_backward: may read and change the gradients, which are those of the whole batch in every process.
    after_step:     may change the network after the optimiser has.
    report:         numbers of the method's own, once an epoch.
    phase:          names a training of several within one task ("train", then "retrain"), each with its checkpoint.
    """
    network.to(task.processes.device)
    task.processes.align(network)
    optimizer = task.recipe.make_optimizer(network.parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    checkpoint = _checkpoint(task, phase)
    watch = Watch(task)
    history = _resume(checkpoint, network, optimizer, watch)
    progress = Progress(
        task.name, phase, task.recipe.epochs, len(history), wanted=task.progress and task.processes.main
    )
    try:
        while len(history) < task.recipe.epochs and not watch.over:
            number = len(history)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * task.recipe.rate_at(number)
            with seeded(task.seed, task.name, phase, number):
                step = Step(network, task, optimizer, penalty, after_backward, after_step)
                totals, seconds = _epoch(step, task, phase, number, progress)
            history.append(_summary(network, task, phase, number, totals, seconds, watch, report))
            progress.epoch(history[-1].measures)
            stop = [callback(history[-1], network) for callback in task.callbacks]
            watch.over = task.processes.agree(watch.over or any(stop))
            if checkpoint is not None and task.processes.main:
                checkpoint.save(network, optimizer, _state(history, watch), watch.best)
    finally:
        progress.close()
    if watch.best is not None:
        load_copy(network, watch.best)
    task.processes.align(network)
    task.history.extend(history)
    return history


class Step:
    """One batch: forward, loss and penalty, backward, the optimiser's step."""

    def __init__(
        self,
        network: nn.Module,
        task: Task,
        optimizer: Optimizer,
        penalty: Penalty | None,
        after_backward: Hook | None,
        after_step: Hook | None,
    ) -> None:
        device = task.processes.device
        self._network, self._task, self._optimizer, self._penalty = network, task, optimizer, penalty
        self._after_backward, self._after_step = after_backward, after_step
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._autocasts = task.recipe.autocasts(device)
        self._channels_last = task.recipe.lays_channels_last(device)
        self._device = device

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Loss on this process's part (without penalties), and how many of its answers were right."""
        inputs = map_leaves(_channels_last, batch.inputs) if self._channels_last else batch.inputs
        with torch.autocast(self._device.type, torch.bfloat16) if self._autocasts else nullcontext():
            outputs = self._network(inputs)
        outputs = map_leaves(_to_float32, outputs) if self._autocasts else outputs
        loss = self._task.loss(outputs, batch.targets) * batch.weight
        total = loss if self._penalty is None else loss + self._penalty()
        self._optimizer.zero_grad(set_to_none=True)
        total.backward()
        self._task.processes.average_gradients(self._parameters)
        if self._after_backward is not None:
            self._after_backward()
        self._optimizer.step()
        if self._after_step is not None:
            self._after_step()
        correct = correct_answers(outputs, batch.targets)
        if correct is not None and batch.weight == 0:
            correct = torch.zeros_like(correct)
        return loss.detach(), correct


class Totals:
    """Sums over an epoch, on the device: asking for them at every batch would make it wait."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(2, dtype=torch.float64, device="cpu" if device.type == "mps" else device)
        self.examples = 0
        self.classes = True

    def add(self, loss: Tensor, correct: Tensor | None, examples: int) -> None:
        self.examples += examples
        self.classes = self.classes and correct is not None
        self._sums[0] += loss.to(self._sums) * examples
        if correct is not None:
            self._sums[1] += correct.to(self._sums)

    def means(self, task: Task) -> tuple[float, float | None]:
        """Loss and accuracy in per cent, over all processes."""
        sums = task.processes.add(self._sums.clone())
        lost, correct = sums.tolist()
        accuracy = 100 * correct / self.examples if self.classes else None
        return lost / task.processes.count / self.examples, accuracy


def _epoch(step: Step, task: Task, phase: str, number: int, progress: Progress) -> tuple[Totals, float]:
    step._network.train()
    totals, begun = Totals(task.processes.device), time.perf_counter()
    for batch in task.train.epoch(task.seed, task.name, phase, number):
        loss, correct = step(batch)
        totals.add(loss, correct, batch.examples)
        progress.count(batch.examples)
        if progress.due():
            share = totals.examples / task.train.examples if task.train.examples else 0.5
            count = len(next(leaves(batch.targets)))
            right = None if correct is None else 100 * float(correct) / count
            progress.show(number, share, float(loss), right)
            if task.processes.count == 1:  # the others would wait for one that stops in the middle of an epoch
                _check_loss(float(loss), task, phase, number)
    if totals.examples == 0:
        raise NacreError(f"the data of task {task.name!r} gave no batch")
    return totals, time.perf_counter() - begun


def _summary(
    network: nn.Module,
    task: Task,
    phase: str,
    number: int,
    totals: Totals,
    seconds: float,
    watch: Watch,
    report: Report | None,
) -> Epoch:
    loss, accuracy = totals.means(task)
    _check_loss(loss, task, phase, number)
    val = watch.look(network) if task.val is not None else None
    measures = dict(report()) if report is not None else {}
    return Epoch(
        task.name, phase, number + 1, task.recipe.epochs, loss, accuracy, val, seconds, totals.examples, measures
    )


def _check_loss(loss: float, task: Task, phase: str, number: int) -> None:
    if not math.isfinite(loss):
        kept = f"; the epoch before is kept in {task.checkpoint}" if task.checkpoint is not None and number else ""
        raise NacreError(
            f"the loss of task {task.name!r} became {loss} in epoch {number + 1} of phase {phase!r}: "
            f"try a lower learning rate. Nothing was appended{kept}"
        )


class Watch:
    """Early stopping: looks at the validation data after each epoch, keeps the best network."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.best: dict[str, Tensor] | None = None
        self.highest = -math.inf
        self.waited = 0
        self.over = False

    def look(self, network: nn.Module) -> float:
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


def _checkpoint(task: Task, phase: str) -> Checkpoint | None:
    if task.checkpoint is None:
        return None
    recipe = {name: value for name, value in vars(task.recipe).items() if name not in ("keep", "workers")}
    named = {
        name: getattr(value, "__qualname__", value) if callable(value) else value for name, value in recipe.items()
    }
    facts = {**named, **task.facts, "seed": task.seed, "examples": task.train.examples, "task": task.name}
    return Checkpoint(task.checkpoint, task.name, phase, facts)


def _resume(checkpoint: Checkpoint | None, network: nn.Module, optimizer: Optimizer, watch: Watch) -> list[Epoch]:
    restored = checkpoint.restore(network, optimizer) if checkpoint is not None else None
    if restored is None:
        return []
    state, best = restored
    watch.highest, watch.waited, watch.over = state["highest"], state["waited"], state["over"]
    watch.best = best or None
    if watch.highest is None:
        watch.highest = -math.inf
    return [Epoch(**epoch) for epoch in state["history"]]


def _state(history: list[Epoch], watch: Watch) -> dict[str, Any]:
    return {
        "history": [asdict(epoch) for epoch in history],
        "highest": watch.highest if math.isfinite(watch.highest) else None,
        "waited": watch.waited,
        "over": watch.over,
    }


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
