"""PNN: a column a task, adapters to all earlier columns, which are frozen; the networks against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nacre import Learner, NacreError
from nacre.methods import PNN
from nacre.space import Columns
from nacre.space.progressive import Progressive
from tests.methods.problems import Own, drawn, layers, learner_of, normed, pictures, points, short

Array = np.ndarray[Any, np.dtype[np.float64]]


def columns_of(learner: Learner) -> Columns:
    assert isinstance(learner.knowledge, Columns)
    return learner.knowledge


def learnt(count: int, backbone: nn.Module | None = None, **options: Any) -> Learner:
    learner = learner_of(PNN(scale=1.0), backbone)
    for axis in range(count):
        learner.learn(str(axis), points(axis), recipe=short(), **options)
    return learner


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def matrices(learner: Learner, task: str) -> dict[str, Array]:
    """All that a task keeps, by name, as float64."""
    columns = columns_of(learner)
    record = columns.record(task)
    named = {**columns.weights_of(task), **record.private, **columns.extra(task)}
    named |= {f"head.{name}": tensor for name, tensor in record.head.state_dict().items()}
    return {name: tensor.detach().numpy().astype(np.float64) for name, tensor in named.items()}


def adapted(own: dict[str, Array], place: str, earlier: list[Array]) -> Array:
    if not earlier:
        return np.zeros(())
    scales = own[f"adapter/{place}.scales"]
    assert scales.shape == (len(earlier),)
    together = np.concatenate([scale * heard for scale, heard in zip(scales, earlier, strict=True)], 1)
    return relu(together @ own[f"adapter/{place}.V.weight"].T) @ own[f"adapter/{place}.U.weight"].T


def by_hand(learner: Learner, inputs: Array) -> list[Array]:
    """The logits of every task: h_i = f(W_i h_(i-1) + U_i relu(V_i [a h of all earlier columns]))."""
    heard: list[list[Array]] = []  # of every column, what its second layer and its head get
    answers = []
    for task in learner.tasks:
        own = matrices(learner, task)
        hidden = relu(inputs @ own["0.weight"].T + own["0.bias"])
        second = hidden @ own["2.weight"].T + own["2.bias"] + adapted(own, "1", [column[0] for column in heard])
        features = relu(second)
        head = features @ own["head.weight"].T + own["head.bias"]
        answers.append(head + adapted(own, "2", [column[1] for column in heard]))
        heard.append([hidden, features])
    return answers


def test_the_logits_are_those_of_the_papers_equation() -> None:
    learner = learnt(3)
    x, _ = points(5)
    for task, expected in zip(learner.tasks, by_hand(learner, x.numpy().astype(np.float64)), strict=True):
        np.testing.assert_allclose(learner.predict(x, task=task).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_training_sees_the_same_network_that_is_kept() -> None:
    learner = learnt(2)
    seen: dict[str, Tensor] = {}
    x, _ = points(5)

    def look(_: object, network: nn.Module) -> None:
        network.eval()
        seen["logits"] = network(x).detach()

    learner.learn("2", points(2), recipe=short(), callbacks=[look])
    torch.testing.assert_close(learner.predict(x, task="2"), seen["logits"])


@pytest.mark.parametrize("pictured", [False, True], ids=["layers", "norm layers"])
def test_no_gradient_reaches_earlier_columns_and_nothing_of_them_moves(pictured: bool) -> None:
    learner = learner_of(PNN(), normed() if pictured else layers())
    given = pictures if pictured else points
    for axis in range(2):
        learner.learn(str(axis), given(axis), recipe=short())
    network = columns_of(learner).progress(nn.Linear(12, 2), 0.1)
    frozen = list(network.columns.parameters())
    before = {name: tensor.clone() for name, tensor in network.columns.state_dict().items()}
    assert len(network.columns) == 2
    assert frozen
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1)
    x, y = given(2)
    for _ in range(3):
        network.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in frozen)
    assert not any(part.training for part in network.columns.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.columns.state_dict().items())
    own = [*network.backbone.parameters(), *network.adapters.parameters(), *network.head.parameters()]
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in own)


def test_a_column_hears_every_earlier_one() -> None:
    network = columns_of(learnt(3)).progress(nn.Linear(12, 2), 1.0).eval()
    x, _ = points(5)
    whole = network(x)
    for adapter in network.adapters.values():
        scales = adapter.get_parameter("scales")
        assert scales.shape == (3,)
        assert ((scales > 0) & (scales < 1)).all()
        for place in range(3):
            kept = scales[place].item()
            with torch.no_grad():
                scales[place] = 0
                assert not torch.equal(network(x), whole)
                scales[place] = kept
    assert torch.equal(network(x), whole)
    assert sorted(network.adapters) == ["1", "2"]  # the first layer gets the same in all columns; the head hears too


def test_a_column_starts_from_weights_drawn_anew() -> None:
    learner = learnt(2)
    network = columns_of(learner).progress(nn.Linear(12, 2), 0.1)
    for name in ("0.weight", "2.weight"):
        drawn_now = network.backbone.get_parameter(name)
        assert all(not torch.equal(drawn_now, columns_of(learner).weights_of(task)[name]) for task in learner.tasks)


def test_the_first_task_is_a_network_alone() -> None:
    learner = learnt(1)
    assert columns_of(learner).extra("0") == {}
    names = {type(part).__name__ for part in learner.network("0").modules()}
    assert {"Linear", "ReLU"} < names


def test_the_size_by_hand() -> None:
    size = learnt(3).knowledge.size()
    column = 6 * 16 + 16 * 12
    # V takes a column's 16 units (12 at the head) each, and gives no more than the layer takes or gives
    first = 1 + 16 * 12 + 12 * 12 + 1 + 12 * 2 + 2 * 2
    second = 2 + 2 * 16 * 12 + 12 * 12 + 2 + 2 * 12 * 2 + 2 * 2
    assert (size.weights, size.private, size.heads) == (column, 3 * 28, 3 * 26)
    assert size.extra == 2 * column + first + second
    assert size.megabytes == pytest.approx(4 * (3 * (column + 28 + 26) + first + second) / 1e6)


def test_convolutions_strides_and_heads_of_several_layers(tmp_path: Path) -> None:
    backbone = drawn(
        nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
            nn.Conv2d(6, 8, 3, padding="same", groups=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32, 10), nn.ReLU(),
        )
    )  # fmt: skip
    learner = learner_of(PNN(scale=1.0), backbone)
    for axis in range(3):
        head = nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 2 + axis))
        learner.learn(str(axis), pictures(axis), head=head, recipe=short())
    x, _ = pictures(7)
    answers = [learner.predict(x, task=task) for task in learner.tasks]
    assert [answer.shape[1] for answer in answers] == [2, 3, 4]
    learner.save(tmp_path / "s")
    loaded = Learner.load(tmp_path / "s", device="cpu")
    assert all(torch.equal(loaded.predict(x, task=str(at)), answer) for at, answer in enumerate(answers))
    shapes = {name: tuple(value.shape) for name, value in columns_of(learner).extra("2").items() if "weight" in name}
    assert shapes["adapter/1.V.weight"] == (6, 12, 1, 1)
    assert shapes["adapter/1.U.weight"] == (8, 6, 3, 3)
    assert shapes["adapter/2.V.weight"] == (10, 64)
    assert shapes["adapter/3.U.weight"] == (5, 5)


def test_a_layer_that_stands_in_two_places_is_met_twice() -> None:
    relu = nn.ReLU()
    twice = drawn(nn.Sequential(nn.Linear(6, 16), relu, nn.Linear(16, 12), relu))
    x, _ = points(5)
    answers = [learnt(2, backbone).predict(x, task="1") for backbone in (twice, layers())]
    assert torch.equal(*answers)


def test_asking_disturbs_no_generator() -> None:
    learner = learnt(2)
    state = torch.get_rng_state()
    learner.network("1")
    assert torch.equal(torch.get_rng_state(), state)


class Skipping(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self[0](x))


def test_a_backbone_that_is_no_sequential_is_refused() -> None:
    with pytest.raises(NacreError, match=r"^PNN connects networks layer by layer: it takes an nn\.Sequential .* Own$"):
        learner_of(PNN(), Own())
    with pytest.raises(NacreError, match=r"got a Sequential with features=0$"):
        learner_of(PNN(), nn.Sequential(nn.Linear(6, 4)), features=0)
    with pytest.raises(NacreError, match=r"got a Skipping$"):
        learner_of(PNN(), Skipping(nn.Linear(6, 6), nn.ReLU()))
    learner = learner_of(PNN(), nn.Sequential(Own(), nn.ReLU()))  # layers of one's own hear nothing, the head does
    for axis in range(2):
        learner.learn(str(axis), points(axis), recipe=short())
    assert {name.partition(".")[0] for name in columns_of(learner).extra("1")} == {"column/0", "adapter/0"}


def test_what_is_trained_is_a_progressive_network() -> None:
    kinds = []
    learner = learner_of(PNN())
    learner.learn("a", points(0), recipe=short(), callbacks=[lambda _, network: kinds.append(type(network))])
    assert set(kinds) == {Progressive}


def test_a_bad_setting_is_refused() -> None:
    with pytest.raises(NacreError, match=r"^PNN\.scale is a number from 0; got -1$"):
        PNN(scale=-1)
