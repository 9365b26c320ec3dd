from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from nacre import CACL, Factors, Learner, NacreError, Recipe, SharedSpace, Single, hoyer, orthogonality
from nacre.space import Network
from nacre.training import Epoch, Task, fit
from nacre.training.batches import as_batches
from nacre.training.processes import Processes
from nacre.training.seeding import generator

ONE = Processes(torch.device("cpu"))
Data = tuple[Tensor, Tensor]


def seeded_module(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def backbone() -> nn.Module:
    return seeded_module(0, lambda: nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU()))


def head(classes: int = 2) -> nn.Module:
    return seeded_module(1, lambda: nn.Linear(8, classes))


def problem(seed: int = 0, count: int = 60) -> Data:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, seed % 6] > 0).long()


def sgd(parameters: list[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def task_of(data: Any, recipe: Recipe, **more: Any) -> Task:
    given = {"head": head(), "loss": F.cross_entropy, **more}
    return Task("t", train=as_batches(data, recipe, ONE), recipe=recipe, processes=ONE, progress=False, **given)


def expanded(task: Task) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return SharedSpace(backbone()).expand(task.head)


def values(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


WHOLE = Recipe(epochs=4, batch_size=60, optimizer=sgd, schedule="constant", precision="float32")  # one batch an epoch


# the loop


def test_the_loop_is_gradient_descent_on_the_loss_plus_the_penalty() -> None:
    x, y = problem()
    task = task_of((x, y), WHOLE)
    network = expanded(task)
    by_hand = copy.deepcopy(network)

    def penalty(of: nn.Module) -> Tensor:
        return 0.7 * orthogonality(of) + 0.05 * hoyer(of)

    history = fit(network, task, penalty=lambda: penalty(network))
    optimizer = sgd([parameter for parameter in by_hand.parameters() if parameter.requires_grad])
    losses = []
    for _ in range(4):
        loss = F.cross_entropy(by_hand(x), y)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        (loss + penalty(by_hand)).backward()
        optimizer.step()
    assert [epoch.loss for epoch in history] == pytest.approx(losses, rel=1e-5)  # the task's own, without penalties
    for name, trained in values(network).items():
        assert torch.allclose(trained, values(by_hand)[name], atol=1e-5), name


def test_the_penalty_is_felt() -> None:
    learnt = []
    for weight in (0.0, 10.0):
        task = task_of(problem(), WHOLE)
        network = expanded(task)
        fit(network, task, penalty=lambda: weight * hoyer(network))
        learnt.append(float(hoyer(network).detach()))
    assert learnt[1] < learnt[0] - 0.01


def test_the_frozen_sum_is_the_same_bits_after_training() -> None:
    learner = Learner(backbone(), device="cpu", progress=False)
    learner.learn("first", problem(1), recipe=Recipe(epochs=3, batch_size=16))
    space = learner.knowledge
    assert isinstance(space, SharedSpace)
    task = task_of(problem(), WHOLE)
    network = space.expand(task.head)
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    fit(network, task)
    assert before
    assert same(before, dict(network.named_buffers()))


def test_an_epoch_reports_means_over_its_examples() -> None:
    x, y = problem(count=50)
    recipe = Recipe(epochs=2, batch_size=16, optimizer=lambda p: torch.optim.SGD(p, lr=0.0), precision="float32")
    task = task_of((x, y), recipe)
    network = expanded(task)
    history = fit(network, task, report=lambda: {"rank": 7.0})
    with torch.no_grad():
        logits = network(x)
    for number, epoch in enumerate(history, 1):
        assert (epoch.task, epoch.phase, epoch.epoch, epoch.epochs, epoch.images) == ("t", "train", number, 2, 50)
        assert epoch.loss == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-5)
        assert epoch.accuracy == pytest.approx(100 * float((logits.argmax(1) == y).float().mean()), abs=1e-4)
        assert epoch.measures == {"rank": 7.0}
        assert epoch.val is None
        assert epoch.seconds > 0
    assert task.history == history


def test_hooks_run_once_a_step_and_may_change_gradients_and_weights() -> None:
    recipe = Recipe(epochs=2, batch_size=16, optimizer=sgd, precision="float32")
    task = task_of(problem(count=50), recipe)
    network = expanded(task)
    before = values(network)
    calls = {"backward": 0, "step": 0}

    def no_gradient() -> None:
        calls["backward"] += 1
        assert all(parameter.grad is not None for parameter in network.parameters())
        for parameter in network.parameters():
            parameter.grad = None

    def count() -> None:
        calls["step"] += 1

    fit(network, task, after_backward=no_gradient, after_step=count)
    assert calls == {"backward": 8, "step": 8}
    assert same(before, values(network))

    def clear_bias() -> None:
        with torch.no_grad():
            network.get_parameter("head.bias").zero_()

    fit(network, task, after_step=clear_bias)
    assert torch.equal(network.get_parameter("head.bias"), torch.zeros(2))


def test_images_reach_the_network_channels_last_when_the_recipe_says_so() -> None:
    seen: list[bool] = []

    class Look(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 2)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.append(x.is_contiguous(memory_format=torch.channels_last))
            result: Tensor = self.conv(x).flatten(1).relu()
            return result

    data = (torch.randn(8, 3, 3, 3), torch.arange(8) % 2)
    for wanted in (True, False):
        seen.clear()
        recipe = Recipe(epochs=1, batch_size=4, channels_last=wanted, precision="float32")
        Learner(Look(), device="cpu", progress=False).learn("t", data, recipe=recipe)
        assert seen == [wanted, wanted]


# callbacks and early stopping


def test_callbacks_get_every_epoch_and_the_network() -> None:
    seen: list[tuple[int, nn.Module]] = []
    task = task_of(problem(), WHOLE, callbacks=(lambda epoch, given: seen.append((epoch.epoch, given)),))
    network = expanded(task)
    fit(network, task)
    assert [epoch for epoch, _ in seen] == [1, 2, 3, 4]
    assert all(given is network for _, given in seen)


def test_a_callback_that_returns_true_ends_the_training_after_all_were_called() -> None:
    seen: list[str] = []

    def stop(epoch: Epoch, _: nn.Module) -> bool:
        seen.append("stop")
        return epoch.epoch == 2

    def look(epoch: Epoch, _: nn.Module) -> None:
        seen.append("look")

    task = task_of(problem(), WHOLE, callbacks=(stop, look))
    assert [epoch.epoch for epoch in fit(expanded(task), task)] == [1, 2]
    assert seen == ["stop", "look"] * 2


@pytest.mark.parametrize(
    ("scores", "patience", "epochs", "best"),
    [
        ([1, 3, 2, 2.5, 9, 9], 2, 4, 2),  # the better fifth epoch is never reached
        ([1, 3, 2, 4, 3, 3], 2, 6, 4),
        ([5, 5, 5, 5, 5, 5], 3, 4, 1),  # equal is not better
        ([1, 2, 3, 4, 5, 6], 1, 6, 6),
        ([-9, -8, -9, 0, 0, 0], 1, 3, 2),
    ],
)
def test_the_best_epoch_is_kept_and_training_stops_after_patience(
    scores: list[float], patience: int, epochs: int, best: int
) -> None:
    after: list[dict[str, Tensor]] = []
    said = iter(scores)
    recipe = Recipe(epochs=6, batch_size=20, optimizer=sgd, patience=patience, precision="float32")
    task = task_of(
        problem(),
        recipe,
        val=as_batches(problem(2), recipe, ONE),
        metric=lambda *_: next(said),
        callbacks=(lambda _, network: after.append(values(network)),),
    )
    network = expanded(task)
    history = fit(network, task)
    assert [epoch.val for epoch in history] == scores[:epochs]
    assert same(values(network), after[best - 1])
    assert not any(same(values(network), other) for number, other in enumerate(after, 1) if number != best)


def test_validation_is_accuracy_for_classes_and_minus_the_loss_for_the_rest() -> None:
    x, y = problem(4)
    recipe = Recipe(epochs=1, batch_size=60, optimizer=lambda p: torch.optim.SGD(p, lr=0.0), precision="float32")
    task = task_of((x, y), recipe, val=as_batches((x, y), recipe, ONE))
    network = expanded(task)
    (epoch,) = fit(network, task)
    with torch.no_grad():
        assert epoch.val == pytest.approx(100 * float((network(x).argmax(1) == y).float().mean()), abs=1e-4)
    wanted = x[:, :2]
    task = task_of((x, wanted), recipe, val=as_batches((x, wanted), recipe, ONE), loss=F.mse_loss)
    network = expanded(task)
    (epoch,) = fit(network, task)
    with torch.no_grad():
        assert epoch.val == pytest.approx(-float(F.mse_loss(network(x), wanted)), rel=1e-5)
    assert epoch.accuracy is None


def test_norm_statistics_are_those_of_the_best_epoch() -> None:
    def with_norm() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())

    said = iter([1.0, 2.0, 0.0])
    running: list[Tensor] = []

    def keep(_: Epoch, network: nn.Module) -> None:
        running.append(network.get_buffer("backbone.1.running_mean").clone())

    learner = Learner(seeded_module(0, with_norm), device="cpu", progress=False)
    learner.learn(
        "t", problem(), val=problem(2), metric=lambda *_: next(said), recipe=Recipe(epochs=3), callbacks=[keep]
    )
    assert torch.equal(learner.network("t").get_buffer("backbone.1.running_mean"), running[1])
    assert not torch.equal(running[1], running[2])


# precision and the state of the process


def test_bfloat16_and_float32_learn_differently_and_both_learn() -> None:
    trained = {}
    for precision in ("float32", "bfloat16"):
        recipe = Recipe(epochs=40, batch_size=16, learning_rate=0.01, precision=precision)
        learner = Learner(backbone(), device="cpu", progress=False)
        accuracy = learner.learn("t", problem(), test=problem(), recipe=recipe).accuracy
        assert accuracy is not None
        assert accuracy > 90
        trained[precision] = learner.predict(problem()[0], task="t")
        assert trained[precision].dtype == torch.float32
    assert not torch.equal(trained["float32"], trained["bfloat16"])


def test_in_bfloat16_every_step_uses_the_weights_of_the_step_before() -> None:
    """A plain loop over the same batches, one optimiser step after another; one epoch, so many steps."""
    x, y = problem()
    losses: list[float] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses.append(float(F.cross_entropy(outputs, targets).detach()))
        return F.cross_entropy(outputs, targets)

    recipe = Recipe(epochs=1, batch_size=8, precision="bfloat16", optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    learner = Learner(backbone(), Single(), device="cpu", progress=False)
    learner.learn("t", (x, y), head=head(), recipe=recipe, loss=loss)
    plain = nn.Sequential(backbone(), head())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    expected = []
    for chosen in torch.randperm(len(x), generator=generator(0, "t", "train", 0)).split(8):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = plain(x[chosen])
        step = F.cross_entropy(outputs.float(), y[chosen])
        optimizer.zero_grad()
        step.backward()
        optimizer.step()
        expected.append(float(step.detach()))
    assert len(losses) == len(expected) > 5
    assert losses == expected


def test_the_loss_gets_float32_and_the_layers_bfloat16() -> None:
    types: dict[str, set[torch.dtype]] = {"loss": set(), "layer": set()}

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        types["loss"].add(outputs.dtype)
        return F.cross_entropy(outputs, targets)

    class Look(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                types["layer"].add(x.dtype)
            return x

    net = nn.Sequential(nn.Linear(6, 8), Look(), nn.ReLU())
    recipe = Recipe(epochs=1, precision="bfloat16")
    Learner(net, device="cpu", progress=False).learn("t", problem(), recipe=recipe, loss=loss, head=head())
    assert types == {"loss": {torch.float32}, "layer": {torch.bfloat16}}


def bits(learner: Learner) -> dict[str, Tensor]:
    return {
        f"{task}/{name}": tensor
        for task in learner.tasks
        for name, tensor in learner.network(task).state_dict().items()
    }


def test_two_learners_of_different_precision_do_not_affect_each_other() -> None:
    recipes = [
        Recipe(epochs=3, batch_size=16, precision="float32"),
        Recipe(epochs=3, batch_size=16, precision="bfloat16"),
    ]

    def fresh() -> Learner:
        net = seeded_module(0, lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2)))
        return Learner(net, device="cpu", progress=False)

    alone = [fresh(), fresh()]
    for learner, recipe in zip(alone, recipes, strict=True):
        for number, name in enumerate(("a", "b")):
            learner.learn(name, problem(number), recipe=recipe)
    taking_turns = [fresh(), fresh()]
    for number, name in enumerate(("a", "b")):
        for learner, recipe in zip(taking_turns, recipes, strict=True):
            learner.learn(name, problem(number), recipe=recipe)
    outer, inner = fresh(), fresh()

    def other(epoch: Epoch, _: nn.Module) -> None:  # the other learns in the middle of this one's task
        if epoch.epoch == 2:
            number, name = len(inner.tasks), "ab"[len(inner.tasks)]
            inner.learn(name, problem(number), recipe=recipes[1])

    for number, name in enumerate(("a", "b")):
        outer.learn(name, problem(number), recipe=recipes[0], callbacks=[other])
    for one, two, nested in zip(alone, taking_turns, (outer, inner), strict=True):
        assert same(bits(one), bits(two))
        assert same(bits(one), bits(nested))
    assert not same(bits(alone[0]), bits(alone[1]))


def process_state() -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": repr(np.random.get_state(legacy=False)) + str(np.random.get_state(legacy=False)["state"]["key"].sum()),
        "random": random.getstate(),
        "autocast": (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
        "dtype": torch.get_default_dtype(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "device": torch.get_default_device(),
    }


class Drawing(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(6) + random.random() + float(np.random.rand()), index % 2


@pytest.mark.parametrize("kind", ["tensors", "dataset", "kept dataset", "loader", "loader with generator"])
def test_learning_leaves_the_state_of_the_process_as_it_was(kind: str) -> None:
    data: Any = {
        "tensors": problem(),
        "dataset": Drawing(),
        "kept dataset": Drawing(),
        "loader": torch.utils.data.DataLoader(Drawing(), batch_size=5, shuffle=True),
        "loader with generator": torch.utils.data.DataLoader(
            Drawing(), batch_size=5, shuffle=True, generator=torch.Generator()
        ),
    }[kind]
    net = seeded_module(0, lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3)))
    recipe = Recipe(epochs=2, precision="bfloat16", keep=kind == "kept dataset" or "auto")
    before = process_state()
    learner = Learner(net, device="cpu", progress=False)
    learner.learn("a", data, test=data, val=data, recipe=recipe)
    learner.evaluate(data, task="a")
    learner.predict(problem()[0], task="a")
    after = process_state()
    assert [name for name in before if before[name] != after[name]] == []


def test_the_state_of_the_process_is_put_back_after_an_error_too() -> None:
    def fails(*_: Any) -> bool:
        raise ZeroDivisionError

    before = process_state()
    with pytest.raises(ZeroDivisionError):
        Learner(backbone(), device="cpu").learn(
            "a", problem(), val=problem(), recipe=Recipe(epochs=2), callbacks=[fails]
        )
    assert process_state() == before


def test_a_global_autocast_of_the_users_does_not_change_what_is_learnt() -> None:
    recipe = Recipe(epochs=2, batch_size=16, precision="float32")
    plain, wrapped = (Learner(backbone(), Single(), device="cpu", progress=False) for _ in range(2))
    plain.learn("t", problem(), recipe=recipe)
    with torch.autocast("cpu", torch.bfloat16):
        wrapped.learn("t", problem(), recipe=recipe)
        assert torch.is_autocast_enabled("cpu")
    assert same(bits(plain), bits(wrapped))


# training that goes wrong


def test_a_loss_that_is_not_finite_says_task_and_epoch_and_appends_nothing() -> None:
    calls = 0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return F.cross_entropy(outputs, targets) * (float("nan") if calls > 4 else 1.0)

    learner = Learner(backbone(), device="cpu", progress=False)
    learner.learn("fine", problem(), recipe=Recipe(epochs=2))
    before = bits(learner)
    with pytest.raises(
        NacreError, match=r"'animals' became nan in epoch 3 .*lower learning rate.*Nothing was appended"
    ):
        learner.learn("animals", problem(1), recipe=Recipe(epochs=5, batch_size=30), loss=loss, head=head())
    assert learner.tasks == ("fine",)
    assert same(before, bits(learner))


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(CACL(), id="ours"),
        pytest.param(CACL.text(), id="text"),
        pytest.param(CACL.published(), id="published"),
        pytest.param(Single(), id="single"),
    ],
)
def test_weights_that_are_not_finite_after_the_last_step_are_refused(method: Any) -> None:
    """The loss of the last batch was finite; the step after it was not."""

    def explode(parameters: list[nn.Parameter]) -> Optimizer:
        return torch.optim.SGD(parameters, lr=float("inf"))

    learner = Learner(backbone(), method, device="cpu", progress=False)
    recipe = Recipe(epochs=1, batch_size=60, optimizer=explode, precision="float32")
    with pytest.raises(NacreError, match="not finite"):
        learner.learn("t", problem(), recipe=recipe)
    assert learner.tasks == ()


def test_rank_zero_everywhere_trains_the_head_alone() -> None:
    space = SharedSpace(backbone())
    recipe = Recipe(epochs=3, batch_size=16, precision="float32")
    task = task_of(problem(), recipe)
    network = space.expand(task.head, rank=0)
    before = network.get_parameter("head.weight").detach().clone()
    fit(network, task, penalty=lambda: orthogonality(network) + hoyer(network))
    assert isinstance(next(iter(network.factors().values())), Factors)
    assert all(layer.rank == 0 for layer in network.factors().values())
    assert not torch.equal(network.get_parameter("head.bias"), head().bias)  # type: ignore[arg-type]
    assert torch.isfinite(network.get_parameter("head.weight")).all()
    assert before.shape == network.get_parameter("head.weight").shape
