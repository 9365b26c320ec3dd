"""HAT: gates by hand, the published annealing, compensation and regulariser, and what earlier tasks use stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from nacre import Learner, NacreError
from nacre.methods import HAT
from nacre.methods.hat import GatedWeights, Gates, annealed, compensation, regulariser
from nacre.training import Epoch, Task
from nacre.training.batches import as_batches
from nacre.training.processes import Processes
from nacre.training.task import cross_entropy
from tests.methods.problems import drawn, layers, learner_of, normed, pictures, points, short

ONE = Processes(torch.device("cpu"))
NAMES = ("0.weight", "2.weight")
METHOD = HAT(rate=5.0)  # the problems here are learnt at ten times the usual rate


def weights_of(learner: Learner) -> GatedWeights:
    assert isinstance(learner.knowledge, GatedWeights)
    return learner.knowledge


def task_of(data: Any = None) -> Task:
    data = points(0) if data is None else data  # 48 of them, 6 batches
    return Task("a", nn.Linear(12, 2), as_batches(data, short(), ONE), cross_entropy, short(), ONE)


def gates_of(steepest: float = 400.0) -> Gates:
    return Gates(GatedWeights(layers()).links, task_of(), steepest)


# as published


@pytest.mark.parametrize("batches", [2, 6, 40])
def test_the_gates_steepen_over_every_epoch_as_published(batches: int) -> None:
    b, B, s_max = np.arange(1, batches + 1), batches, 400.0
    published = 1 / s_max + (s_max - 1 / s_max) * (b - 1) / (B - 1)
    np.testing.assert_allclose([annealed(at, batches, s_max) for at in range(batches)], published)
    assert annealed(0, 1, s_max) == s_max


def test_the_batches_of_a_task_are_counted_and_every_epoch_starts_over() -> None:
    gates = gates_of()
    seen = []
    for _ in range(12):
        seen.append(gates.steepness)
        gates.advance()
    assert seen[:6] == seen[6:] == [annealed(at, 6, 400.0) for at in range(6)]
    steps: list[int] = []
    learner = learner_of(METHOD)

    def look(_: Epoch, network: nn.Module) -> None:
        found = network.get_submodule("through")
        assert isinstance(found, Gates)
        steps.append(found.step)

    learner.learn("a", points(0), recipe=short(2), callbacks=[look])
    learner.learn("b", DataLoader(TensorDataset(*points(1)), batch_size=7), recipe=short(1), callbacks=[look])
    assert steps == [6, 12, 7]


def test_a_gate_is_the_sigmoid_of_s_times_its_embedding_and_hard_in_evaluation() -> None:
    gates = gates_of(10.0)
    gates.step = 3
    s = 0.1 + (10 - 0.1) * 3 / 5
    for e, name in zip(gates.embeddings, NAMES, strict=True):
        numbers = e.detach().double().numpy()
        np.testing.assert_allclose(gates.units()[name].detach().numpy(), 1 / (1 + np.exp(-s * numbers)), rtol=1e-4)
        np.testing.assert_array_equal(gates.eval().units()[name].numpy(), (numbers > 0).astype(float))
        gates.train()


@pytest.mark.parametrize("s", [1 / 400, 0.5, 3.0, 8.0])
def test_the_compensation_makes_the_embeddings_gradient_that_of_a_gate_without_annealing(s: float) -> None:
    """The paper's: s_max (cosh(s e) + 1) / (s (cosh(e) + 1)); times the gradient, s_max sigmoid'(e)."""
    e = torch.linspace(-6, 6, 41, dtype=torch.float64)
    sigmoid = 1 / (1 + np.exp(-e.numpy()))
    tail = np.exp(-s * np.abs(e.numpy()))
    gradient = s * tail / (1 + tail) ** 2  # of sigmoid(s e), exact where it is next to 0
    np.testing.assert_allclose(compensation(e, s, 400.0).numpy() * gradient, 400 * sigmoid * (1 - sigmoid), rtol=1e-6)


def test_cosh_is_taken_of_no_more_than_50() -> None:
    e = torch.tensor([-6.0, 1.0, 6.0], dtype=torch.float64)
    expected = (np.cosh(50) + 1) / (np.cosh(e.numpy()) + 1)
    np.testing.assert_allclose(compensation(e, 400.0, 400.0).numpy(), expected)


def test_gradients_are_compensated_at_the_steepness_they_were_taken_at_and_embeddings_stay_within_6() -> None:
    gates = gates_of(4.0)
    gates.step = 2
    torch.stack([gate.sum() for gate in gates.units().values()]).sum().backward()
    gates.compensate()
    for e in gates.embeddings:
        sigmoid = 1 / (1 + np.exp(-e.detach().double().numpy()))
        assert e.grad is not None
        np.testing.assert_allclose(e.grad.numpy(), 4 * sigmoid * (1 - sigmoid), rtol=1e-4)
        with torch.no_grad():
            e[0], e[1] = 7.0, -9.0
    gates.advance()
    assert all(e[:2].tolist() == [6.0, -6.0] for e in gates.embeddings)


def test_the_regulariser_is_the_share_of_free_units_that_is_used() -> None:
    gates = {"0.weight": torch.tensor([0.5, 1.0, 0.25]), "2.weight": torch.tensor([0.75, 0.0])}
    taken = {"0.weight": torch.tensor([1.0, 0.0, 0.0]), "2.weight": torch.tensor([0.0, 1.0])}
    assert float(regulariser(gates, taken)) == pytest.approx((1.0 + 0.25 + 0.75) / 3)
    assert float(regulariser(gates, {name: torch.zeros_like(g) for name, g in gates.items()})) == 2.5 / 5
    assert float(regulariser(gates, {name: torch.ones_like(g) for name, g in gates.items()})) == 0


def test_the_regulariser_and_the_compensation_are_in_the_training() -> None:
    """With a loss that asks for nothing, an embedding's first gradient is lambda / units * s_max sigmoid'(e)."""
    seen: list[tuple[Any, Any]] = []

    class First(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for e in self.param_groups[0]["params"][-2:]:
                assert e.grad is not None
                seen.append((e.detach().double().numpy().copy(), e.grad.double().numpy().copy()))
            return super().step(closure)

    def nothing(outputs: Tensor, _: Tensor) -> Tensor:
        return 0 * outputs.sum()

    recipe = short(1, optimizer=lambda parameters: First(parameters, lr=0.1))
    learner_of(HAT(steepest=30.0, strength=0.5)).learn(
        "a", points(0), recipe=recipe, loss=nothing, head=nn.Linear(12, 2)
    )
    assert [len(e) for e, _ in seen] == [16, 12] * 6
    for e, gradient in seen:  # at every steepness
        sigmoid = 1 / (1 + np.exp(-e))
        near = np.abs(30 * e) < 12  # farther out a gate's gradient is lost in float32
        np.testing.assert_allclose(gradient[near], (0.5 / 28 * 30 * sigmoid * (1 - sigmoid))[near], rtol=2e-2)
        assert near.any()


# what earlier tasks use


class Spy(torch.optim.SGD):
    """With momentum and weight decay, which move numbers that have no gradient; keeps what it was given."""

    seen: list[dict[tuple[int, ...], Tensor]]

    def step(self, closure: Any = None) -> Any:
        (group,) = self.param_groups
        self.seen.append({tuple(p.shape): p.grad.clone() for p in group["params"] if p.grad is not None})
        return super().step(closure)


def test_no_gradient_reaches_a_weight_between_units_of_earlier_tasks_and_nothing_moves_it() -> None:
    learner = learner_of(METHOD)
    for axis, task in enumerate("ab"):
        learner.learn(task, points(axis), recipe=short())
    units = [{name: gates.numpy() for name, gates in weights_of(learner).extra(task).items()} for task in "ab"]
    first, second = (np.maximum(units[0][name], units[1][name]) for name in NAMES)  # the cumulative attention
    owned = [np.repeat(first[:, None], 6, 1) > 0, np.minimum(second[:, None], first[None, :]) > 0]
    assert all(0 < mask.mean() < 1 for mask in owned)
    before = {name: weights_of(learner).shared[name].clone() for name in NAMES}

    Spy.seen = []
    recipe = short(2, optimizer=lambda ps: Spy(ps, lr=0.05, momentum=0.9, weight_decay=0.1))
    learner.learn("c", points(2), recipe=recipe)
    assert len(Spy.seen) == 12
    for shape, mask in (((16, 6), owned[0]), ((12, 16), owned[1])):
        each = np.stack([seen[shape].numpy() for seen in Spy.seen])
        assert not each[:, mask].any()
        assert each[:, ~mask].any()
    for name, mask in zip(NAMES, owned, strict=True):
        after = weights_of(learner).shared[name]
        assert torch.equal(after[mask], before[name][mask])
        assert (after[~mask] != before[name][~mask]).any()


def test_a_task_answers_by_gated_activations_and_what_it_does_not_use_cannot_reach_it() -> None:
    learner = learner_of(METHOD)
    learner.learn("a", points(0), recipe=short())
    weights, (x, _) = weights_of(learner), points(5)
    gates, own = weights.extra("a"), weights.record("a")
    hidden = x.double()
    for name in NAMES:
        bias = own.private[name.replace("weight", "bias")].double()
        hidden = F.relu(hidden @ weights.shared[name].double().T + bias) * gates[name]
    head = own.head
    assert isinstance(head, nn.Linear)
    assert not head.weight[:, gates["2.weight"] == 0].any()
    torch.testing.assert_close(
        learner.predict(x, task="a").double(), F.linear(hidden, head.weight.double(), head.bias.double())
    )
    before, masks = learner.predict(x, task="a"), weights.masks("a")
    for name in NAMES:
        weights.shared[name] = torch.where(masks[name], weights.shared[name], torch.tensor(1e6))
    assert torch.equal(weights.network("a")(x).detach(), before)


def test_channels_are_gated_at_all_their_places() -> None:
    backbone = drawn(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 6)))
    learner = learner_of(METHOD, backbone)
    learner.learn("a", pictures(0), recipe=short())
    weights, (x, _) = weights_of(learner), pictures(5)
    gates, own = weights.extra("a"), weights.record("a")
    assert 0 < gates["0.weight"].mean() < 1
    maps = F.max_pool2d(F.relu(F.conv2d(x, weights.shared["0.weight"], own.private["0.bias"])), 2)
    maps = maps * gates["0.weight"].view(1, -1, 1, 1)
    features = F.linear(maps.flatten(1), weights.shared["4.weight"], own.private["4.bias"]) * gates["4.weight"]
    torch.testing.assert_close(learner.predict(x, task="a"), own.head(features).detach(), rtol=1e-4, atol=1e-5)


def test_while_training_activations_are_multiplied_by_soft_gates() -> None:
    weights, gates = GatedWeights(layers()), gates_of(2.0)
    network = weights.expand(nn.Linear(12, 2), through=gates)
    x, _ = points(0)
    first, second = (network.shared()[name] for name in NAMES)
    biases = [network.backbone.get_parameter(f"{at}.bias") for at in (0, 2)]
    expected = F.relu(F.linear(F.relu(F.linear(x, first, biases[0])) * gates.units()["0.weight"], second, biases[1]))
    torch.testing.assert_close(network.features(x), expected)


def test_the_last_epochs_network_in_evaluation_is_the_one_that_is_kept() -> None:
    x, _ = pictures(5)
    answers: list[Tensor] = []

    def look(_: Epoch, network: nn.Module) -> None:
        with torch.no_grad():
            answers.append(network.eval()(x))

    learner = learner_of(METHOD, normed())
    learner.learn("a", pictures(0), recipe=short(), callbacks=[look])
    torch.testing.assert_close(learner.predict(x, task="a"), answers[-1])


def test_a_stronger_regulariser_leaves_more_units_free() -> None:
    used = []
    for strength in (0.0, 2.0):
        learner = learner_of(HAT(strength=strength, rate=5.0))
        learner.learn("a", points(0, 200), recipe=short(6))
        used.append(sum(float(units.sum()) for units in weights_of(learner).taken().values()))
    assert used[1] < used[0]


def test_the_size_by_hand() -> None:
    learner = learner_of(METHOD)
    for axis in range(2):
        learner.learn(str(axis), points(axis), recipe=short())
    size = learner.knowledge.size()
    assert (size.weights, size.extra, size.mask_bits) == (288, 2 * (16 + 12), 0)  # a number a unit and task
    assert size.megabytes == pytest.approx(4 * (288 + 56 + 2 * 28 + 2 * 26) / 1e6)


# refused


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(*points(0), strict=True))


def test_a_stream_that_has_no_length_is_refused() -> None:
    with pytest.raises(
        NacreError, match=r"^HAT anneals its gates over the batches of an epoch: give a DataLoader that"
    ):
        learner_of(METHOD).learn("a", DataLoader(Stream(), batch_size=8), recipe=short())


def test_a_network_that_is_no_chain_is_refused_at_once() -> None:
    with pytest.raises(NacreError, match=r"needs a chain: .*; 1 is LayerNorm"):
        learner_of(METHOD, nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)))


def test_a_bad_setting_is_refused() -> None:
    with pytest.raises(NacreError, match=r"^HAT\.steepest is a number from 1; got 0\.5$"):
        HAT(steepest=0.5)
    with pytest.raises(NacreError, match=r"^HAT\.strength is a number from 0; got -1$"):
        HAT(strength=-1)
