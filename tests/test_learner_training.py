"""What learn takes: every kind of data, several labels an image, regression, early stopping, callbacks, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from nacre import Learner, Recipe, Single
from nacre.training import Epoch

QUICK = Recipe(epochs=2, batch_size=8, precision="float32", schedule="constant")


def new_learner(method: Any = None, net: nn.Module | None = None, **options: Any) -> Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = net if net is not None else nn.Sequential(nn.Linear(6, 10), nn.Tanh())
    return Learner(net, method, device="cpu", progress=False, **options)


def examples(count: int = 30, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + x[:, 1] > 0).long()


def head(outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Linear(10, outputs)


class Pairs(Dataset[Any]):
    """What a user's Dataset gives: an example at a time, its class as Python's number."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


# data


KINDS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "pair": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "int32": lambda x, y: (x, y.int()),
    "uint8": lambda x, y: (x, y.byte()),
    "TensorDataset": TensorDataset,
    "Dataset": Pairs,
    "list of pairs": lambda x, y: [*zip(x, y.tolist(), strict=True)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_examples_in_any_form_give_the_same_bits(kind: str) -> None:
    expected, other = new_learner(), new_learner()
    expected.learn("t", examples(), val=examples(), recipe=QUICK)
    data = KINDS[kind](*examples())
    result = other.learn("t", train=data, test=data, val=data, recipe=QUICK)
    assert torch.equal(other.predict(examples()[0], task="t"), expected.predict(examples()[0], task="t"))
    assert result.accuracy == other.evaluate(data, task="t") == expected.evaluate(examples(), task="t")


def test_a_loaders_batches_are_trained_on_in_its_order() -> None:
    """With a loader that does not shuffle: the same as a loop of the test's own."""
    x, y = examples()
    learner = new_learner(Single())
    recipe = Recipe(
        epochs=2, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), precision="float32",
        schedule="constant",
    )  # fmt: skip
    learner.learn("t", DataLoader(Pairs(x, y), batch_size=7), test=(x, y), recipe=recipe, head=head(2))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        network = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), head(2))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        for at in range(0, 30, 7):
            optimizer.zero_grad()
            F.cross_entropy(network(x[at : at + 7]), y[at : at + 7]).backward()
            optimizer.step()
    torch.testing.assert_close(learner.predict(x, task="t"), network(x).detach(), rtol=1e-5, atol=1e-6)


def test_examples_may_be_dicts_with_labels_and_become_arguments() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(6, 5), nn.Linear(6, 5)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return torch.cat([self.left(left), self.right(right).tanh()], 1)

    (one, y), (other, _) = examples(), examples(seed=1)
    inputs = {"left": one, "right": other}
    learner = new_learner(net=Two())
    listed = [{"left": a, "right": b, "labels": int(c)} for a, b, c in zip(one, other, y, strict=True)]
    learner.learn("from tensors", (inputs, y), test=(inputs, y), recipe=QUICK)
    result = learner.learn("from a dataset", listed, test=listed, recipe=QUICK)
    answers = learner.predict(inputs, task="from a dataset")
    assert result.accuracy == pytest.approx(100 * np.mean(answers.argmax(1).numpy() == y.numpy()))
    swapped = learner.predict(dict(reversed(inputs.items())), task="from a dataset")
    assert torch.equal(swapped, answers)  # by name, not by place
    whole = learner.network("from a dataset")(inputs)
    assert torch.equal(whole, answers)


# losses and heads of one's own


def test_several_labels_an_image() -> None:
    x, _ = examples(60)
    labels = torch.stack([x[:, 0] > 0, x[:, 1] > 0, x[:, 2] > 0], 1).float()

    def right(outputs: Tensor, targets: Tensor) -> float:
        return float(((outputs > 0) == targets.bool()).double().mean())

    learner = new_learner()
    recipe = Recipe(epochs=40, batch_size=20, learning_rate=0.02, precision="float32")
    result = learner.learn(
        "labels", (x, labels), test=(x, labels), loss=F.binary_cross_entropy_with_logits, head=head(3), metric=right,
        recipe=recipe, classes=["warm", "wet", "windy"],
    )  # fmt: skip
    answers = learner.predict(x, task="labels")
    assert answers.shape == (60, 3)
    assert result.accuracy == pytest.approx(np.mean((answers.numpy() > 0) == (labels.numpy() > 0)))
    assert result.accuracy is not None
    assert result.accuracy > 0.8
    assert result.history[-1].accuracy is None
    assert learner.evaluate((x, labels), task="labels", metric=right) == result.accuracy


def test_regression() -> None:
    x, _ = examples(60)
    y = x[:, :1] - 2 * x[:, 1:2]

    def closeness(outputs: Tensor, targets: Tensor) -> float:
        return -float((outputs - targets).square().mean())

    learner = new_learner()
    learner.learn("classes", examples(), recipe=QUICK)
    recipe = Recipe(epochs=60, batch_size=20, learning_rate=0.02, precision="float32")
    result = learner.learn(
        "heights", (x, y), test=(x, y), val=(x, y), loss=F.mse_loss, head=head(1), metric=closeness, recipe=recipe
    )
    error = learner.predict(x, task="heights") - y
    assert result.accuracy == pytest.approx(-np.mean(error.numpy() ** 2), rel=1e-5)
    assert float(error.square().mean()) < 0.2 * float(y.square().mean())
    without = new_learner().learn("heights", (x, y), test=(x, y), loss=F.mse_loss, head=head(1), recipe=QUICK)
    assert without.accuracy is None  # nothing says what is right


def test_the_head_given_is_the_one_that_learns_and_stays_as_it_was() -> None:
    given = nn.Sequential(nn.Linear(10, 4), nn.ReLU(), nn.Linear(4, 2))
    before = [parameter.clone() for parameter in given.parameters()]
    learner = new_learner()
    learner.learn("one", examples(), head=given, recipe=QUICK)
    learner.learn("two", examples(seed=1), head=given, recipe=QUICK)
    assert all(torch.equal(*pair) for pair in zip(given.parameters(), before, strict=True))
    for task in learner.tasks:
        learnt = learner.network(task).get_submodule("head")
        assert [type(layer) for layer in learnt.modules()] == [type(layer) for layer in given.modules()]
        assert not torch.equal(learnt.get_parameter("0.weight"), before[0])


def test_class_names_make_the_head_and_are_kept(tmp_path: Path) -> None:
    learner = new_learner()
    learner.learn("seasons", examples(), classes=["spring", "summer", "autumn", "winter"], recipe=QUICK)
    assert learner.predict(examples()[0], task="seasons").shape == (30, 4)  # two of them stand in the data
    learner.save(tmp_path / "life.nacre")
    known: Any = Learner.load(tmp_path / "life.nacre", device="cpu").knowledge
    assert known.record("seasons").classes == ("spring", "summer", "autumn", "winter")


# early stopping, callbacks, checkpoints


def test_validation_stops_early_and_keeps_the_best_epoch() -> None:
    said = iter([1.0, 3.0, 2.0, 2.5, 9.0])
    recipe = Recipe(epochs=5, batch_size=8, patience=2, precision="float32", schedule="constant")
    learner, until_the_best = new_learner(Single()), new_learner(Single())
    result = learner.learn("t", examples(), val=examples(8, 5), metric=lambda *_: next(said), recipe=recipe)
    until_the_best.learn("t", examples(), recipe=QUICK)
    assert [epoch.val for epoch in result.history] == [1.0, 3.0, 2.0, 2.5]
    x = examples()[0]
    assert torch.equal(learner.predict(x, task="t"), until_the_best.predict(x, task="t"))


def test_callbacks_see_every_epoch_with_the_network_as_it_is_then_and_may_stop() -> None:
    seen: list[tuple[int, Tensor]] = []

    def look(epoch: Epoch, network: nn.Module) -> bool:
        with torch.no_grad():
            seen.append((epoch.epoch, network.eval()(examples()[0])))
        return epoch.epoch == 3

    recipe = Recipe(epochs=9, batch_size=8, precision="float32")
    learner = new_learner(Single())
    result = learner.learn("t", examples(), callbacks=[look], recipe=recipe)
    assert [number for number, _ in seen] == [1, 2, 3] == [epoch.epoch for epoch in result.history]
    assert not torch.equal(seen[1][1], seen[2][1])
    torch.testing.assert_close(learner.predict(examples()[0], task="t"), seen[2][1], rtol=1e-6, atol=1e-6)


def test_a_checkpoint_goes_on_where_an_interrupt_was_and_goes_once_the_learner_is_saved(tmp_path: Path) -> None:
    recipe = Recipe(epochs=4, batch_size=8, precision="float32")
    folder = tmp_path / "checkpoints"

    def interrupt(epoch: Epoch, _: nn.Module) -> None:
        if epoch.epoch == 3:
            raise KeyboardInterrupt

    def learn(*callbacks: Callable[[Epoch, nn.Module], None]) -> Learner:
        learner = new_learner()
        learner.learn("first", examples(seed=1), recipe=QUICK)
        learner.learn("t", examples(), recipe=recipe, callbacks=callbacks, checkpoint=folder)
        return learner

    with pytest.raises(KeyboardInterrupt):
        learn(interrupt)
    assert len([*folder.iterdir()]) == 1
    epochs: list[int] = []
    resumed = learn(lambda epoch, _: epochs.append(epoch.epoch))
    whole = new_learner()
    whole.learn("first", examples(seed=1), recipe=QUICK)
    result = whole.learn("t", examples(), recipe=recipe)
    assert epochs == [3, 4]
    assert len(result.history) == 4
    x = examples()[0]
    assert torch.equal(resumed.predict(x, task="t"), whole.predict(x, task="t"))
    resumed.save(tmp_path / "life.nacre")
    assert [*folder.iterdir()] == []
