"""One training step, and the sums over an epoch of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nacre.errors import NacreError
from nacre.training.batch import Batch
from nacre.training.dropout import quick_dropout
from nacre.training.evaluation import correct_answers
from nacre.training.task import Task
from nacre.trees import Tree, explained, map_leaves, shapes

Penalty = Callable[[], Tensor]
Hook = Callable[[], None]


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
        inputs = map_leaves(channels_last, batch.inputs) if self._channels_last else batch.inputs
        with explained("the network cannot take inputs", inputs), self._autocast(), quick_dropout(self._device):
            outputs = self._network(inputs)
        outputs = map_leaves(to_float32, outputs) if self._autocasts else outputs
        loss = self._loss(outputs, batch.targets) * batch.weight
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

    def _autocast(self) -> AbstractContextManager[object]:
        if not self._autocasts:
            return nullcontext()
        # no cache: torch empties it only where the outermost autocast ends, and `fit` stands in one; the weights of the
        # first step would serve all of them
        return torch.autocast(self._device.type, torch.bfloat16, cache_enabled=False)

    def _loss(self, outputs: Any, targets: Tree) -> Tensor:
        with explained("the loss cannot compare", (outputs, targets)):
            loss = self._task.loss(outputs, targets)
        if not isinstance(loss, Tensor) or loss.dim():
            raise NacreError(f"the loss must give a tensor of one number; got {shapes(loss)}")
        if not loss.requires_grad:
            raise NacreError("the loss does not depend on the network's outputs, or torch.no_grad() is on")
        return loss


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


def channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
