"""fit: the one training loop. Epochs over a task's batches, with what a method adds to the loss or the gradients."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nacre.errors import NacreError
from nacre.training.checkpoint import Checkpoint, fingerprint, load_copy
from nacre.training.memory import freed_memory_kept
from nacre.training.progress import Progress
from nacre.training.recipe import Rates
from nacre.training.seeding import seeded
from nacre.training.step import Hook, Penalty, Step, Totals
from nacre.training.task import Epoch, Task
from nacre.training.watch import Watch
from nacre.trees import leaves

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
    epochs: range | None = None,
    rates: Rates | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> list[Epoch]:
    """Trains a network on a task for the epochs of its recipe, and gives what each epoch came to.

    penalty:        what a method adds to the loss; worked out in float32 after the forward pass.
    after_backward: may read and change the gradients, which are those of the whole batch in every process.
    after_step:     may change the network after the optimiser has.
    report:         numbers of the method's own, once an epoch.
    phase:          names a training of several within one task ("train", then "retrain"), each with its checkpoint.
    epochs:         those of the recipe's that are this phase's; all of them unless said.
    rates:          what the recipe's learning rate is multiplied by for some parameters.
    state:          tensors that the method's functions change in place as training goes on; checkpoints keep them.
    """
    epochs = range(task.recipe.epochs) if epochs is None else epochs
    network.to(task.processes.device)
    task.processes.align(network)
    device = task.processes.device
    optimizer = task.recipe.make_optimizer(network.parameters(), rates)
    full_rates = [group["lr"] for group in optimizer.param_groups]
    checkpoint = _checkpoint(network, task, phase)
    watch = Watch(task)
    state = state or {}
    history = _resume(checkpoint, network, optimizer, watch, state)
    _check_epochs(len(history), task)
    if history:
        _show_inputs(network, task)
    step = Step(network, task, optimizer, penalty, after_backward, after_step)
    first = epochs.start + len(history)
    progress = Progress(task.name, phase, task.recipe.epochs, first, wanted=task.progress and task.processes.main)
    try:
        while len(history) < len(epochs) and not watch.over:
            number = epochs[len(history)]
            for group, rate in zip(optimizer.param_groups, full_rates, strict=True):
                group["lr"] = rate * task.recipe.rate_at(number)
            network.train()
            as_the_recipe_says = torch.autocast(device.type, enabled=False)  # whatever surrounds this call
            with as_the_recipe_says, seeded(task.seed, task.name, phase, number), freed_memory_kept(device):
                totals, seconds = _epoch(step, task, phase, number, progress)
            last = number == epochs[-1]
            history.append(_summary(network, task, phase, number, last, totals, seconds, watch, report))
            progress.epoch(history[-1].measures)
            stop = [callback(history[-1], network) for callback in task.callbacks]
            watch.over = task.processes.agree(watch.over or any(stop))
            if checkpoint is not None and task.processes.main:
                done = {"history": [epoch.to_json() for epoch in history], "watch": watch.state()}
                checkpoint.save(network, optimizer, done, {"best": watch.best or {}, "state": state})
    finally:
        progress.close()
    if watch.best is not None:
        load_copy(network, watch.best)
    task.processes.align(network)
    task.history.extend(history)
    return history


def _epoch(step: Step, task: Task, phase: str, number: int, progress: Progress) -> tuple[Totals, float]:
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
    last: bool,
    totals: Totals,
    seconds: float,
    watch: Watch,
    report: Report | None,
) -> Epoch:
    loss, accuracy = totals.means(task)
    _check_loss(loss, task, phase, number)
    _check_weights(network, task, phase, number)
    val = watch.look(network) if task.val is not None else None
    measures = dict(report()) if report is not None else {}
    place = (task.name, phase, number + 1, task.recipe.epochs, last)
    return Epoch(*place, loss, accuracy, val, seconds, totals.examples, measures)


def _check_loss(loss: float, task: Task, phase: str, number: int) -> None:
    if not math.isfinite(loss):
        raise _diverged(f"the loss of task {task.name!r} became {loss}", task, phase, number)


def _check_weights(network: nn.Module, task: Task, phase: str, number: int) -> None:
    """The last step of an epoch may have spoilt what no loss has seen yet."""
    for name, parameter in network.named_parameters():
        if not parameter.isfinite().all():
            raise _diverged(f"{name} of task {task.name!r} holds numbers that are not finite", task, phase, number)


def _diverged(what: str, task: Task, phase: str, number: int) -> NacreError:
    kept = f"; the epoch before is kept in {task.checkpoint}" if task.checkpoint is not None and number else ""
    return NacreError(
        f"{what} in epoch {number + 1} of phase {phase!r}: try a lower learning rate. Nothing was appended{kept}"
    )


def _checkpoint(network: nn.Module, task: Task, phase: str) -> Checkpoint | None:
    if task.checkpoint is None:
        return None
    recipe = {name: _named(value) for name, value in vars(task.recipe).items() if name not in ("keep", "workers")}
    facts = {**recipe, **task.facts, "seed": task.seed, "examples": task.train.examples, "task": task.name}
    facts["frozen tensors"] = fingerprint(network)
    return Checkpoint(task.checkpoint, task.name, phase, facts)


def _named(setting: object) -> str:
    """What a setting says of itself, without the address that a function or an object has in this process only."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(setting))


def _resume(
    checkpoint: Checkpoint | None, network: nn.Module, optimizer: Optimizer, watch: Watch, state: Mapping[str, Tensor]
) -> list[Epoch]:
    restored = checkpoint.restore(network, optimizer) if checkpoint is not None else None
    if restored is None:
        return []
    done, tensors = restored
    watch.restore(done["watch"], tensors["best"])
    for name, tensor in state.items():
        tensor.copy_(tensors["state"][name])
    return [Epoch(**epoch) for epoch in done["history"]]


def _show_inputs(network: nn.Module, task: Task) -> None:
    """A network learns from its first batch what inputs are like, and a finished phase has no batch to come."""
    with torch.no_grad(), seeded("look"):
        network.eval()(task.train.first()[0])


def _check_epochs(done: int, task: Task) -> None:
    """Refuses to go on from different epochs in different processes."""
    if (first := task.processes.agree(done)) != done:
        raise NacreError(
            f"the first process goes on after epoch {first}, this one after {done}: "
            f"{task.checkpoint} must be a folder that all processes share"
        )
