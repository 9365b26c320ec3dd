"""Settings, learners and folders that cannot be, and training that goes wrong: one sentence, nothing learnt lost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nacre
from nacre import CACL, Learner, NacreError, Recipe, SharedSpace
from nacre.methods.method import SpaceMethod

Knowledge = Callable[[Learner, Tensor], dict[str, Any]]
Refused = Callable[..., AbstractContextManager[None]]
ONCE = Recipe(epochs=1, precision="float32")
X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(24) % 2


def new_learner(net: nn.Module | None = None, **options: Any) -> Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = net if net is not None else nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    return Learner(net, device="cpu", progress=False, **options)


def taught(*tasks: str) -> Learner:
    learner = new_learner()
    for number, task in enumerate(tasks):
        learner.learn(task, (X + number, Y), recipe=ONCE)
    return learner


@pytest.fixture(scope="module")
def learner() -> Learner:
    return taught("animals", "birds")


@pytest.fixture
def refused(refused: Refused) -> Refused:
    return lambda learner, *said: refused(learner, X, *said)


def learn(learner: Learner, train: Any = (X, Y), **further: Any) -> None:
    learner.learn("cars", train, **{"recipe": ONCE, **further})


# settings


def ruined(module: nn.Linear) -> nn.Linear:
    nn.init.constant_(module.bias, float("nan"))
    return module


def weight_norm(layer: nn.Linear) -> nn.Linear:
    """A weight that hooks make from others, torch's older way: torch cannot copy such a module."""
    layer.register_buffer("made", (2 * layer.weight))
    return layer


SETTINGS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"recipe": {"epochs": 1}}, ("recipe= is a nacre.Recipe", "{'epochs': 1}")),
    ({"recipe": Recipe}, ("recipe= is a nacre.Recipe",)),
    ({"head": "linear"}, ("a head is a torch module", "'linear'")),
    ({"head": nn.Linear}, ("a head is a torch module", "Linear")),
    ({"head": nn.Linear(8, 2).double()}, ("head.weight is torch.float64", "head.float()")),
    ({"head": nn.LazyLinear(2)}, ("head.weight has no shape yet",)),
    ({"head": nn.Linear(8, 2, device="meta")}, ("head.weight is on the device 'meta'",)),
    ({"head": weight_norm(nn.Linear(8, 2))}, ("the head cannot be copied",)),
    ({"head": ruined(nn.Linear(8, 2))}, ("head.bias holds numbers that are not finite",)),
    ({"loss": "mse"}, ("loss= is a function of (outputs, targets)", "'mse'")),
    ({"loss": lambda *_: 0.5}, ("a tensor of one number", "got float")),
    ({"loss": lambda o, t: F.cross_entropy(o, t, reduction="none")}, ("one number", "got float32[24]")),
    ({"loss": lambda o, t: F.cross_entropy(o, t).detach()}, ("does not depend on the network's outputs",)),
    (
        {"loss": lambda o, t: (o - t).abs().mean(), "head": nn.Linear(8, 3)},
        ("the loss cannot compare (float32[24, 3], int64[24])",),
    ),
    ({"loss": F.mse_loss, "train": (X, X)}, ("give loss= and head=",)),
    ({"metric": "f1"}, ("metric= is a function of (outputs, targets)", "'f1'")),
    ({"metric": lambda *_: None, "val": (X, Y)}, ("metric= must give one number", "None")),
    ({"callbacks": print}, ("callbacks= is a list of functions",)),
    ({"callbacks": ["print"]}, ("callbacks= is a list of functions", "print")),
    ({"checkpoint": 7}, ("a path is a text", "7")),
    ({"checkpoint": "a\0b"}, ("a path is a text", r"'a\x00b'")),
    ({"classes": "ab"}, ("classes= is a list of names", "'ab'")),
    ({"classes": 2}, ("classes= is a list of names", "2")),
    ({"classes": []}, ("classes= is a list of names", "[]")),
    ({"classes": {"a", "b"}}, ("classes= is a list of names",)),
    ({"classes": ["a", "a"]}, ("two classes one name", "a, a")),
    ({"classes": ["a"]}, ("must be 0 to 0", "got 0 to 1")),
    ({"classes": ["a", "b", "c"], "head": nn.Linear(8, 2)}, ("classes= names 3", "tells 2 apart")),
    ({"recipe": Recipe(epochs=1, optimizer=cast(Any, lambda _: 3))}, ("Recipe.optimizer must give", "3")),
]


@pytest.mark.parametrize(
    ("further", "said"), SETTINGS, ids=lambda value: ", ".join(value) if isinstance(value, dict) else ""
)
def test_a_setting_that_cannot_be_is_named(
    further: dict[str, Any], said: tuple[str, ...], learner: Learner, refused: Refused
) -> None:
    with refused(learner, *said):
        learn(learner, **further)


class NoDataclass(SpaceMethod):
    """A store could not say what it was set to."""

    name = "none"

    def learn(self, space: SharedSpace, task: Any) -> None: ...


@dataclass(frozen=True)
class Nameless(SpaceMethod):
    """Nor which one it was."""

    def learn(self, space: SharedSpace, task: Any) -> None: ...


LEARNERS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"device": "gpu"}, ("device 'gpu' cannot be used",)),
    ({"device": ["cpu"]}, ("cannot be used",)),
    ({"device": "meta"}, ("device 'meta' holds no numbers",)),
    ({"method": "cacl"}, ("a method is an object", "CACL()", "'cacl'")),
    ({"method": CACL}, ("a method is an object", "CACL()")),
    ({"method": NoDataclass()}, ("of a dataclass with a name", "NoDataclass")),
    ({"method": Nameless()}, ("of a dataclass with a name", "Nameless")),
    ({"seed": "0"}, ("seed is a whole number", "'0'")),
    ({"seed": 0.5}, ("seed is a whole number", "0.5")),
    ({"seed": None}, ("seed is a whole number", "None")),
    ({"backbone": None}, ("the backbone is a torch module", "None")),
    ({"backbone": nacre.networks.conv5}, ("the backbone is a torch module", "conv5")),
    ({"backbone": nn.Sequential()}, ("nothing to factorise in Sequential",)),
    ({"backbone": nn.ReLU()}, ("nothing to factorise in ReLU",)),
    ({"backbone": nn.Linear(6, 8).half()}, ("weight is torch.float16", "backbone.float()")),
    ({"backbone": nn.Linear(6, 8, device="meta")}, ("weight is on the device 'meta'",)),
    ({"backbone": ruined(nn.Linear(6, 8))}, ("bias holds numbers that are not finite",)),
    ({"backbone": weight_norm(nn.Linear(6, 8))}, ("the backbone cannot be copied",)),
    ({"base": "one"}, ("base is 'zero' or 'backbone'", "'one'")),
    ({"include": "0"}, ("include= is a function of (name, module)", "'0'")),
    ({"exclude": lambda *_: True}, ("nothing to factorise", "exclude=")),
    ({"features": 1.5}, ("features= is a key, a position or a function", "1.5")),
]


@pytest.mark.parametrize(
    ("options", "said"), LEARNERS, ids=lambda value: ", ".join(value) if isinstance(value, dict) else ""
)
def test_a_learner_that_cannot_be_is_refused_when_it_is_made(options: dict[str, Any], said: tuple[str, ...]) -> None:
    with pytest.raises(NacreError) as caught:
        Learner(**{"backbone": nn.Linear(6, 8), "device": "cpu", **options})
    assert all(part in str(caught.value) for part in said), caught.value


# what goes wrong while or after training


def test_a_loss_that_is_no_number_says_task_and_epoch(learner: Learner, refused: Refused) -> None:
    with refused(learner, "'cars' became nan", "epoch 1", "Nothing was appended"):
        learn(learner, (X * float("nan"), Y))


def test_a_task_that_was_learnt_but_could_not_be_tested_is_learnt() -> None:
    """Hours of training are not thrown away for a metric."""
    learner = taught("animals")
    for number, metric in enumerate((lambda *_: None, lambda o, t: o.argmax(1) == t, lambda *_: 1 / 0)):
        with pytest.raises(NacreError, match=rf"task 'task {number}' is learnt, but it could not be tested"):
            learner.learn(f"task {number}", (X, Y), test=(X, Y), metric=metric, recipe=ONCE)
        assert learner.tasks[-1] == f"task {number}"
    assert learner.evaluate((X, Y), task="task 0") >= 0
    steady = taught("animals")
    assert torch.equal(learner.predict(X, task="animals"), steady.predict(X, task="animals"))


def test_after_all_mistakes_learning_goes_on_as_if_there_had_been_none(knowledge: Knowledge) -> None:
    stumbling, steady = taught("animals"), taught("animals")
    for mistake, _ in SETTINGS:
        with pytest.raises(NacreError):
            learn(stumbling, **mistake)
    for each in (stumbling, steady):
        learn(each, (X - 1, Y))
    assert knowledge(stumbling, X) == knowledge(steady, X)


# files


@pytest.fixture(scope="module")
def saved(learner: Learner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "life.nacre"
    learner.save(folder)
    return folder


LOADS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"backbone": nn.Linear(3, 3)}, ("does not fit the space", "0.weight")),
    ({"backbone": "conv5"}, ("the backbone is a torch module", "'conv5'")),
    ({"heads": {"cars": nn.Linear(8, 2)}}, ("no task is called 'cars'", "'animals', 'birds'")),
    ({"heads": [nn.Linear(8, 2)]}, ("heads= is a dict",)),
    ({"heads": {"birds": "linear"}}, ("a head is a torch module", "'linear'")),
    ({"method": "cacl"}, ("a method is an object",)),
    ({"device": "gpu"}, ("device 'gpu' cannot be used",)),
    ({"features": "pooled"}, ("features=None", "features='pooled'")),
    ({"path": 7}, ("a path is a text", "7")),
    ({"path": "a\0b"}, ("a path is a text", r"'a\x00b'")),
    ({"path": "\ud800"}, ("a path is a text", r"'\ud800'")),
    ({"path": "/nowhere"}, ("/nowhere does not exist",)),
]


@pytest.mark.parametrize(
    ("given", "said"), LOADS, ids=lambda value: ", ".join(value) if isinstance(value, dict) else ""
)
def test_loading_with_what_does_not_fit_is_refused(
    given: dict[str, Any], said: tuple[str, ...], saved: Path, learner: Learner, refused: Refused
) -> None:
    with refused(learner, *said):
        Learner.load(**{"path": saved, **given})


def test_a_store_of_a_space_says_that_it_names_no_method(tmp_path: Path, learner: Learner, refused: Refused) -> None:
    SharedSpace(nn.Linear(6, 8)).save(tmp_path / "space.nacre")
    with refused(learner, "saved by a SharedSpace", "method="):
        Learner.load(tmp_path / "space.nacre")
    assert Learner.load(tmp_path / "space.nacre", method=CACL()).tasks == ()


@functools.cache
def another() -> Learner:
    return taught("other")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_saving_where_another_life_is_or_nothing_can_be_is_refused(
    saved: Path, tmp_path: Path, learner: Learner, refused: Refused
) -> None:
    before = contents(saved)
    with refused(another(), "holds another space", "'animals'", "'other'"):
        another().save(saved)
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "life.nacre", None, "a\0b"):
        with refused(learner):
            learner.save(place)  # type: ignore[arg-type]
    assert (tmp_path / "file").read_text() == "mine"
    assert contents(saved) == before
