"""Evaluation: accuracy in per cent and mean loss, in float32, whatever the training precision was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.training.batch import Batches
from nacre.training.examples import check_classes
from nacre.training.task import Loss, Metric
from nacre.trees import explained, leaves, shapes


@dataclass(frozen=True)
class Evaluation:
    """Means over a data set; accuracy is None where the targets are not class numbers."""

    accuracy: float | None
    loss: float | None


def answers(network: nn.Module, batches: Batches) -> Iterator[tuple[Any, Any]]:
    """Outputs and targets of every batch, in order."""
    training = network.training
    network.eval()
    try:
        with torch.inference_mode(), torch.autocast(_device_type(network), enabled=False):
            for inputs, targets in batches.in_order():
                with explained("the network cannot take inputs", inputs):
                    outputs = network(inputs)
                yield outputs, targets
    finally:
        network.train(training)


def _device_type(network: nn.Module) -> str:
    tensor = next(network.parameters(), None)
    return tensor.device.type if tensor is not None else "cpu"


def evaluate(network: nn.Module, batches: Batches, loss: Loss | None = None) -> Evaluation:
    """Accuracy and mean loss over a data set; without a loss the targets must be class numbers of the network's."""
    examples, correct, lost = 0, 0, 0.0
    classes = True
    for outputs, targets in answers(network, batches):
        count = len(next(leaves(targets)))
        examples += count
        hits = correct_answers(outputs, targets)
        if hits is not None and loss is None:
            check_classes(targets, outputs.shape[1])
        classes = classes and hits is not None
        correct += int(hits) if hits is not None else 0
        if loss is not None:
            with explained("the loss cannot compare", (outputs, targets)):
                lost += float(loss(outputs, targets)) * count
    return Evaluation(100 * correct / examples if classes else None, lost / examples if loss is not None else None)


def measure(network: nn.Module, batches: Batches, metric: Metric) -> float:
    """A metric of the user's over all outputs and targets at once."""
    gathered = [(outputs, targets) for outputs, targets in answers(network, batches)]
    outputs, targets = zip(*gathered, strict=True)
    if not isinstance(outputs[0], Tensor) or not isinstance(targets[0], Tensor):
        raise NacreError(f"metric= needs outputs and targets that are tensors; got {shapes(outputs[0])}")
    value = metric(torch.cat(outputs), torch.cat(targets))
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NacreError(f"metric= must give one number; got {value!r:.80}") from error


def correct_answers(outputs: Any, targets: Any) -> Tensor | None:
    """How many outputs are largest at the target class; None where targets are not class numbers."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return None
    if outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        return None
    return (outputs.detach().argmax(1) == targets).sum()
