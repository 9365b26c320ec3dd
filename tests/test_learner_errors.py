"""A user's mistakes at the front door: each is one sentence that says what came, and nothing learnt changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from nacre import Learner, NacreError, Recipe
from nacre.trees import shapes

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


# names of tasks


UNKNOWN = ["predict", "evaluate", "network"]


def ask(learner: Learner, what: str, task: Any) -> Any:
    if what == "network":
        return learner.network(task)
    return learner.predict(X, task=task) if what == "predict" else learner.evaluate((X, Y), task=task)


@pytest.mark.parametrize("what", UNKNOWN)
@pytest.mark.parametrize("task", ["animal", "", "Animals", 0, ["animals"]])
def test_an_unknown_task_is_named_beside_those_that_exist(
    what: str, task: Any, learner: Learner, refused: Refused
) -> None:
    with refused(learner, f"no task is called {task!r}", "the tasks are 'animals', 'birds'"):
        ask(learner, what, task)


@pytest.mark.parametrize("what", UNKNOWN)
def test_a_missing_task_is_asked_for(what: str, learner: Learner, refused: Refused) -> None:
    with refused(learner, "say which task with task=", "the tasks are 'animals', 'birds'"):
        ask(learner, what, None)


@pytest.mark.parametrize("what", UNKNOWN)
def test_before_the_first_task_nothing_has_been_learnt(what: str, refused: Refused) -> None:
    empty = new_learner()
    with refused(empty, "no task is called 'animals'", "nothing has been learnt yet"):
        ask(empty, what, "animals")


def test_a_name_used_twice_is_refused(learner: Learner, refused: Refused) -> None:
    with refused(learner, "'birds' is already learnt", "the tasks are 'animals', 'birds'"):
        learner.learn("birds", (X, Y), recipe=ONCE)


@pytest.mark.parametrize("name", ["", "  ", "\n", None, 7, b"cars", "\ud800"])
def test_what_is_no_name_is_refused(name: Any, learner: Learner, refused: Refused) -> None:
    with refused(learner, "a task's name", repr(name)):
        learner.learn(name, (X, Y), recipe=ONCE)


# shapes


def learn(learner: Learner, train: Any = (X, Y), **further: Any) -> None:
    learner.learn("cars", train, **{"recipe": ONCE, **further})


SHAPES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "train": ({"train": (X[:, :5], Y)}, ("cannot take inputs float32[2, 5]",)),
    "test": ({"test": (X[:, :5], Y)}, ("cannot take inputs float32[2, 5]",)),
    "val": ({"val": (X[:, :5], Y)}, ("cannot take inputs float32[2, 5]",)),
    "type": ({"train": (X.double(), Y)}, ("cannot take inputs float64[2, 6]",)),
    "one dimension": ({"train": (X[:, 0], Y)}, ("float32[2]",)),
    "lengths": ({"train": (X, Y[:20])}, ("equally many examples", "float32[24, 6] and int64[20]")),
    "empty": ({"train": (X[:0], Y[:0])}, ("at least one", "float32[0, 6] and int64[0]")),
    "empty test": ({"test": (X[:0], Y[:0])}, ("at least one", "float32[0, 6]")),
    "a head for others": ({"head": nn.Linear(7, 2)}, ("the head reads 7 features", "the backbone gave 8")),
    "a head of ones own for others": (
        {"head": nn.Sequential(nn.Linear(7, 2)), "loss": F.cross_entropy},
        ("the head cannot read the features float32[2, 8]",),
    ),
    "augmentation": (
        {"recipe": Recipe(epochs=1, augment=lambda x, _: x[:, :3])},
        ("the network cannot take inputs float32[24, 3]",),
    ),
    "a later example": (
        {"train": [(X[at, : 6 - at // 20], int(Y[at])) for at in range(24)]},
        ("a batch cannot be made of examples such as (float32[6], int)",),
    ),
    "a later batch": (
        {"train": DataLoader(cast(Any, [(x, 0) for x in (*X[:8], *X[:8, :4])]), batch_size=8)},
        ("the network cannot take inputs float32[8, 4]",),
    ),
}


@pytest.mark.parametrize("what", SHAPES)
def test_a_wrong_shape_is_said_before_anything_is_learnt(what: str, learner: Learner, refused: Refused) -> None:
    further, said = SHAPES[what]
    with refused(learner, *said):
        learn(learner, **further)


@pytest.mark.parametrize("inputs", [X[:, :5], X.double(), X[0], {"x": X}, [X, X], X[:0], torch.tensor(1.0), {}, "x"])
def test_predict_says_what_it_was_asked_with(inputs: Any, learner: Learner, refused: Refused) -> None:
    with refused(learner, shapes(inputs)):
        learner.predict(inputs, task="birds")
    with refused(learner):
        learner.evaluate((inputs, Y), task="birds")


class Wide(nn.Module):
    """Gives what is no batch of features."""

    def __init__(self, give: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.give = nn.Linear(6, 8), give

    def forward(self, x: Tensor) -> Any:
        return self.give(self.layer(x))


@pytest.mark.parametrize(
    ("give", "came"),
    [
        (lambda x: x.unsqueeze(1), "[2, 1, 8]"),
        (lambda x: x.sum(), "[]"),
        (lambda x: (x, x), "tuple"),
        (lambda x: {"features": x}, "dict"),
        (lambda _: None, "NoneType"),
    ],
)
def test_a_backbone_that_gives_no_features_is_refused(
    give: Callable[[Tensor], Any], came: str, refused: Refused
) -> None:
    learner = new_learner(Wide(give))
    with refused(learner, "(batch, features)", came):
        learn(learner)


# labels


LABELS: list[tuple[Any, tuple[str, ...]]] = [
    (Y - 1, ("must be 0 or more", "got -1 to 0")),
    (Y.float(), ("must be class numbers", "float32", "give loss= and head=")),
    (Y.bool(), ("must be class numbers", "bool", "give loss= and head=")),
    (Y.to(torch.complex64), ("must be class numbers", "complex64")),
    (Y[:, None], ("one integer for each example", "int64[2, 1]")),
    (F.one_hot(Y), ("one integer for each example", "int64[2, 2]")),
    (Y * 10**12, ("go up to 1000000000000", "there are 24 examples", "classes= or head=")),
    (Y.numpy(), ("ndarray",)),
    (Y.tolist(), ("int",)),
]


@pytest.mark.parametrize(("labels", "said"), LABELS)
def test_labels_that_are_no_class_numbers_are_refused(
    labels: Any, said: tuple[str, ...], learner: Learner, refused: Refused
) -> None:
    with refused(learner, *said):
        learn(learner, (X, labels))


@pytest.mark.parametrize("part", ["test", "val"])
@pytest.mark.parametrize("made", [lambda x, y: (x, y), lambda x, y: [*zip(x, y.tolist(), strict=True)]])
def test_test_and_validation_labels_are_held_against_the_tasks_classes(
    part: str, made: Callable[[Tensor, Tensor], Any], learner: Learner, refused: Refused
) -> None:
    with refused(learner, "class numbers of this task must be 0 to 1", "got 2 to 3"):
        learn(learner, **{part: made(X, Y + 2)})


def test_labels_are_held_against_the_head_that_is_given(learner: Learner, refused: Refused) -> None:
    for head in (nn.Linear(8, 2), nn.Sequential(nn.ReLU(), nn.Linear(8, 2))):
        with refused(learner, "must be 0 to 1", "got 1 to 2"):
            learn(learner, (X, Y + 1), head=head)
    with refused(learner, "the loss cannot compare (float32[24, 2], int64[24])"):
        learn(learner, (X, Y + 1), head=nn.Linear(8, 2), loss=F.cross_entropy)


def test_evaluation_holds_labels_against_the_task(learner: Learner, refused: Refused) -> None:
    for labels, came in ((Y + 1, "got 1 to 2"), (Y - 1, "got -1 to 0")):
        with refused(learner, "must be 0 to 1", came):
            learner.evaluate((X, labels), task="animals")
    with refused(learner, "not class numbers", "metric="):
        learner.evaluate((X, Y.float()), task="animals")


def test_evaluation_of_nothing_is_refused(learner: Learner, refused: Refused) -> None:
    nothing = DataLoader(TensorDataset(X, Y), batch_size=64, drop_last=True)
    for further in ({}, {"metric": lambda *_: 1.0}):
        with refused(learner, "gave no batch"):
            learner.evaluate(nothing, task="animals", **further)


# data of another kind


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([])


DATA: list[tuple[Any, str]] = [
    (7, "int"),
    (X, "Tensor"),
    ("images/", "str"),
    ({"x": X, "labels": Y}, "dict"),
    (Stream(), "Stream"),
    ((X.numpy(), Y.numpy()), "ndarray"),
    (TensorDataset(X), "(float32[2, 6])"),
    (TensorDataset(X, Y, Y), "(float32[2, 6], int64[2], int64[2])"),
    ([(X[0], "cat")] * 4, "got str"),
    ([(object(), 0)] * 4, "a batch cannot be made of examples such as (object, int)"),
    (DataLoader(TensorDataset(X, Y), batch_size=64, drop_last=True), "gave no batch"),
]


@pytest.mark.parametrize(("data", "came"), DATA)
@pytest.mark.parametrize("part", ["train", "test", "val"])
def test_data_of_another_kind_are_refused_in_every_place(
    part: str, data: Any, came: str, learner: Learner, refused: Refused
) -> None:
    with refused(learner, came):
        learn(learner, **{part: data})


def test_after_all_mistakes_learning_goes_on_as_if_there_had_been_none(knowledge: Knowledge) -> None:
    stumbling, steady = taught("animals"), taught("animals")
    for mistake in [further for further, _ in SHAPES.values()] + [{"train": (X, labels)} for labels, _ in LABELS]:
        with pytest.raises(NacreError):
            learn(stumbling, **mistake)
    for each in (stumbling, steady):
        learn(each, (X - 1, Y))
    assert knowledge(stumbling, X) == knowledge(steady, X)
