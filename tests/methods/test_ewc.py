"""EWC: the Fisher diagonal sample by sample in numpy, and the penalty as a sum over tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre import Learner, NacreError
from nacre.methods import EWC, Finetune
from nacre.methods.ewc import consolidated, fisher
from nacre.space import Weights
from nacre.training import Task
from nacre.training.batches import as_batches
from nacre.training.processes import Processes
from nacre.training.task import cross_entropy
from tests.methods.problems import drawn, learner_of, points, short

ONE = Processes(torch.device("cpu"))


def task_of(data: tuple[Tensor, Tensor], loss: Any = cross_entropy) -> Task:
    return Task("a", nn.Linear(2, 2), as_batches(data, short(), ONE), loss, short(), ONE)


def small() -> tuple[Weights, Any, Any]:
    """logits = V tanh(W x): the weights W, and the network as numbers."""
    weights = Weights(drawn(nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh())))
    network = weights.expand(drawn(nn.Linear(4, 2)))
    return weights, network, (weights.shared["0.weight"].double().numpy(), network.head)


def gradient_by_hand(x: Any, y: int, W: Any, head: nn.Linear) -> Any:
    """Of -log p(y | x) with respect to W."""
    V, b = head.weight.detach().double().numpy(), head.bias.detach().double().numpy()
    hidden = np.tanh(W @ x)
    logits = V @ hidden + b
    p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    off = p - np.eye(2)[y]
    return np.outer((V.T @ off) * (1 - hidden**2), x)


def test_the_fisher_diagonal_is_the_mean_of_the_squared_gradients_of_single_examples() -> None:
    """On given targets, so that what is drawn plays no part."""
    _, network, (W, head) = small()
    x, y = points(0, 20)
    found = fisher(network, task_of((x, y), F.cross_entropy), 100)["0.weight"]
    each = [gradient_by_hand(one, int(label), W, head) ** 2 for one, label in zip(x.double().numpy(), y, strict=True)]
    np.testing.assert_allclose(found.numpy(), np.mean(each, 0), rtol=1e-4)
    batched = gradient_by_hand  # the square of a mean would be another, smaller one
    mean = np.mean([batched(one, int(label), W, head) for one, label in zip(x.double().numpy(), y, strict=True)], 0)
    assert (found.numpy() > 1.5 * mean**2).mean() > 0.5


def test_for_class_numbers_the_labels_are_drawn_from_what_the_network_answers() -> None:
    """Then its expectation is the true Fisher diagonal, which is known here: the sum over labels of p(y) g(y)^2."""
    _, network, (W, head) = small()
    x = torch.randn(1, 6, generator=torch.Generator().manual_seed(3)).expand(4000, 6).contiguous()
    found = fisher(network, task_of((x, torch.zeros(4000, dtype=torch.long))), 4000)["0.weight"]
    logits = network(x[:1]).detach().double().softmax(1)[0].numpy()
    expected = sum(logits[y] * gradient_by_hand(x[0].double().numpy(), y, W, head) ** 2 for y in (0, 1))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0.15)


def test_only_so_many_examples_are_taken() -> None:
    _, network, _ = small()
    calls: list[Tensor] = []
    network.register_forward_pre_hook(lambda _, args: calls.append(args[0]))
    x, y = points(0, 40)
    fisher(network, task_of((x, y)), 15)
    taken = torch.cat(calls)
    assert taken.shape == (15, 6)
    assert len(taken.unique(dim=0)) == 15


def test_one_quadratic_stands_for_the_sum_of_all() -> None:
    draw = np.random.default_rng(0)
    fishers = [draw.random((3, 2)).astype(np.float32) for _ in range(3)]
    centres = [draw.normal(size=(3, 2)).astype(np.float32) for _ in range(3)]
    fishers[0][0, 0] = fishers[1][0, 0] = fishers[2][0, 0] = 0  # a weight that no task needs
    state: dict[str, Tensor] = {}
    for F_, centre in zip(fishers, centres, strict=True):
        state = consolidated(state, {"w": torch.from_numpy(F_)}, {"w": torch.from_numpy(centre)})

    def penalty(w: Any) -> float:
        return float(sum((F_ * (w - centre) ** 2).sum() for F_, centre in zip(fishers, centres, strict=True)))

    def ours(w: Any) -> float:
        return float((state["fisher/w"].numpy() * (w - state["centre/w"].numpy()) ** 2).sum())

    points_ = [draw.normal(size=(3, 2)) for _ in range(5)]
    differences = [penalty(w) - ours(w) for w in points_]  # a number that does not depend on w
    np.testing.assert_allclose(differences, differences[0], rtol=1e-5)


def test_the_penalty_is_half_lambda_times_fisher_times_the_squared_way_from_the_old_weights() -> None:
    learner = learner_of(EWC(strength=7.0))
    learner.learn("a", points(0), recipe=short())
    weights = learner.knowledge
    assert isinstance(weights, Weights)
    old = {name: value.double().numpy() for name, value in weights.shared.items()}
    network = weights.expand(nn.Linear(12, 2))
    with torch.no_grad():
        for number, weight in enumerate(network.shared().values()):
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
    expected = sum(
        3.5 * (weights.state[f"fisher/{name}"].double().numpy() * (w.detach().double().numpy() - old[name]) ** 2).sum()
        for name, w in network.shared().items()
    )
    penalty = EWC(strength=7.0).penalty(network, weights.state)()
    assert penalty.item() == pytest.approx(expected, rel=1e-5)
    assert set(weights.state) == {f"{part}/{name}" for part in ("fisher", "centre") for name in old}


def moved(strength: float | None) -> float:
    """How far the weights that matter to the first task are moved by the second."""
    learner = learner_of(EWC(strength) if strength is not None else Finetune())
    learner.learn("a", points(0, 100), recipe=short(8))
    assert isinstance(learner.knowledge, Weights)
    before = learner.knowledge.shared["0.weight"]
    learner.learn("b", points(1, 100), recipe=short(8))
    return float((learner.knowledge.shared["0.weight"] - before).square().sum())


def test_no_strength_is_finetuning_and_more_of_it_holds_on_more() -> None:
    assert moved(0.0) == moved(None)
    assert moved(0.0) > moved(1e3) > moved(1e6)


def test_the_size_by_hand() -> None:
    learner: Learner = learner_of(EWC())
    for axis in range(3):
        learner.learn(str(axis), points(axis), recipe=short())
    size = learner.knowledge.size()
    assert size.learning == 2 * 288  # a Fisher diagonal and a centre, however many tasks
    assert size.megabytes == pytest.approx(4 * (288 + 3 * 28 + 3 * 26) / 1e6)  # no answer needs them
    assert size.kept()["learning_megabytes"] == pytest.approx(4 * 576 / 1e6)


def test_a_bad_setting_is_refused() -> None:
    with pytest.raises(NacreError, match=r"^EWC\.strength is a number from 0; got nan$"):
        EWC(strength=float("nan"))
    with pytest.raises(NacreError, match=r"^EWC\.samples is a whole number from 1; got 0$"):
        EWC(samples=0)
