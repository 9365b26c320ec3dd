from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from nacre import NacreError, Recipe
from nacre.training import evaluate
from nacre.training.batches import as_batches
from nacre.training.evaluation import correct_answers, measure
from nacre.training.processes import Processes

ONE = Processes(torch.device("cpu"))


def data(x: Any, y: Any) -> Any:
    return as_batches((x, y), Recipe(), ONE)


def test_accuracy_is_the_share_of_largest_outputs_at_the_target() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0], [3.0, 2.0, 0.0], [0.0, 0.0, 1.0], [5.0, 4.0, 3.0]])
    found = evaluate(nn.Identity(), data(logits, torch.tensor([1, 1, 2, 0])))
    assert (found.accuracy, found.loss) == (75.0, None)


def test_accuracy_and_loss_are_means_over_examples_not_over_batches() -> None:
    """700 examples are batches of 512 and 188."""
    logits = torch.randn(700, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.where(torch.arange(700) < 600, logits.argmax(1), (logits.argmax(1) + 1) % 4)
    found = evaluate(nn.Identity(), data(logits, targets), F.cross_entropy)
    assert found.accuracy == pytest.approx(100 * 600 / 700, abs=1e-12)
    assert found.loss == pytest.approx(float(F.cross_entropy(logits.double(), targets)), rel=1e-6)
    loader = as_batches(DataLoader(list(zip(logits, targets, strict=True)), batch_size=33), Recipe(), ONE)  # type: ignore[arg-type]
    streamed = evaluate(nn.Identity(), loader, F.cross_entropy)
    assert streamed.accuracy == found.accuracy
    assert streamed.loss == pytest.approx(found.loss, rel=1e-6)


def test_a_metric_sees_all_outputs_at_once() -> None:
    x = torch.randn(700, 1, generator=torch.Generator().manual_seed(0))
    seen: list[tuple[int, ...]] = []

    def range_of(outputs: Tensor, targets: Tensor) -> float:
        seen.append(tuple(outputs.shape))
        return float((outputs - targets).max() - (outputs - targets).min())

    value = measure(nn.Identity(), data(x, torch.zeros(700, 1)), range_of)
    assert seen == [(700, 1)]
    assert value == pytest.approx(float(x.max() - x.min()))


def test_a_metric_needs_tensors() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a": x}

    with pytest.raises(
        NacreError, match=r"metric= needs outputs and targets that are tensors; got \{a: float32\[3, 1\]"
    ):
        measure(Two(), data(torch.zeros(3, 1), torch.zeros(3)), lambda *_: 0.0)


def test_the_network_is_asked_in_eval_mode_and_left_as_it_was() -> None:
    modes: list[tuple[bool, bool]] = []

    class Modes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            modes.append((self.training, torch.is_grad_enabled()))
            return x

    network = Modes()
    for training in (True, False):
        network.train(training)
        evaluate(network, data(torch.zeros(2, 2), torch.tensor([0, 1])))
        assert network.training is training
    assert modes == [(False, False), (False, False)]
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_an_error_in_the_middle_leaves_mode_and_gradients_as_they_were() -> None:
    def fails(outputs: Any, targets: Any) -> Tensor:
        raise ZeroDivisionError

    network = nn.Identity().train()
    with pytest.raises(ZeroDivisionError) as caught:
        evaluate(network, data(torch.zeros(2, 2), torch.tensor([0, 1])), fails)
    assert network.training
    assert not torch.is_inference_mode_enabled()
    del caught


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (torch.zeros(2, 3), torch.zeros(2)),
        (torch.zeros(2, 3), torch.zeros(2, 3)),
        (torch.zeros(2), torch.zeros(2).long()),
        ({"a": torch.zeros(2)}, torch.zeros(2).long()),
    ],
)
def test_there_is_no_accuracy_where_targets_are_not_class_numbers(outputs: Any, targets: Any) -> None:
    assert correct_answers(outputs, targets) is None


def test_targets_that_are_no_class_numbers_have_a_loss_and_no_accuracy() -> None:
    x, y = torch.randn(9, 1), torch.randn(9, 1)
    found = evaluate(nn.Identity(), data(x, y), F.mse_loss)
    assert found.accuracy is None
    assert found.loss == pytest.approx(float(F.mse_loss(x, y)), rel=1e-6)


def test_class_numbers_that_the_network_cannot_give_are_refused() -> None:
    with pytest.raises(NacreError, match="must be 0 to 2; got 0 to 3"):
        evaluate(nn.Identity(), data(torch.zeros(2, 3), torch.tensor([0, 3])))
