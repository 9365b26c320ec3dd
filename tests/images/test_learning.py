"""Tasks learnt from folders of pictures into a store: what is split off, skipped, refused, kept within a budget."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image

from nacre import CACL, Learner, NacreError, SharedSpace, Single
from nacre.images import Learnt, Wanted, learn
from nacre.images.beginning import Beginning
from nacre.images.examples import Prepared, read, side_for
from nacre.images.opened import open_store
from nacre.images.recipe import choose
from nacre.scenarios.given import find
from nacre.scenarios.preprocessing import Preprocessing
from nacre.space import describe, verify
from nacre.space.store import read_index
from nacre.training.checkpoint import Checkpoint

Paint = Callable[..., Path]
ONCE = Wanted(epochs=1)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory, painter: Paint) -> tuple[Path, list[Learnt]]:
    """A store of two tasks. Nobody changes it."""
    folder = tmp_path_factory.mktemp("life")
    store = folder / "life.nacre"
    learnt = [learn(store, "colours", str(painter(folder / "colours", "red", "green", "blue")), Wanted(epochs=6))]
    learnt.append(learn(store, "inks", str(painter(folder / "inks", "cyan", "black", seed=1)), ONCE))
    return store, learnt


def test_the_first_task_makes_the_store_and_the_next_is_added(life: tuple[Path, list[Learnt]]) -> None:
    store, (colours, inks) = life
    assert verify(store) == []
    assert [task["classes"] for task in describe(store)["tasks"]] == [["blue", "green", "red"], ["black", "cyan"]]
    assert (colours.trained_on, colours.tested_on, colours.unchanged) == (24, 6, ())
    assert (inks.trained_on, inks.tested_on) == (16, 4)
    assert (inks.unchanged, inks.looked_at) == (("colours",), 4)
    assert not list(store.parent.glob("*.learning"))


def test_the_accuracy_is_that_of_the_pictures_split_off(life: tuple[Path, list[Learnt]]) -> None:
    store, (colours, _) = life
    opened = open_store(store)
    examples = read(find(str(store.parent / "colours")), "colours", 32, 0.2, 0)
    logits = opened.learner.predict(Prepared(examples.test, opened.preprocessing).first(6), task="colours")
    right = (logits.argmax(1) == examples.test.labels).double().mean()
    assert colours.accuracy == pytest.approx(100 * float(right))
    assert colours.accuracy == 100


def test_what_is_said_of_the_size_is_what_the_store_says(life: tuple[Path, list[Learnt]]) -> None:
    store, learnt = life
    for task, said in zip(learnt, describe(store)["tasks"], strict=True):
        assert task.ranks == said["ranks"]
        assert task.factor_bytes == said["parts"]["factors"]
        assert task.megabytes == pytest.approx(said["megabytes"])


def test_the_store_remembers_how_pictures_are_prepared(life: tuple[Path, list[Learnt]]) -> None:
    store, _ = life
    facts = read_index(store)["facts"]
    train = read(find(str(store.parent / "colours")), "colours", 32, 0.2, 0).train.images
    assert facts["preprocessing"] == Preprocessing.fitted(32, train).to_json()
    assert facts["network"] == "conv5"
    learner = open_store(store).learner
    learner.knowledge.facts["preprocessing"] = Preprocessing(32, (0.0,) * 3, (1.0,) * 3).to_json()
    with pytest.raises(NacreError, match="its pictures are prepared in another way"):
        learner.save(store)


# splitting


def test_the_test_share_is_of_every_class_and_follows_from_the_seed(tmp_path: Path, painter: Paint) -> None:
    painter(tmp_path / "p", "a", count=20)
    painter(tmp_path / "p", "b", count=5, seed=1)
    painter(tmp_path / "p", "c", count=2, seed=2)
    given = find(str(tmp_path / "p"))
    parts = [read(given, "p", 32, 0.25, seed) for seed in (0, 0, 1)]
    for part in parts:
        assert part.test.labels.bincount().tolist() == [5, 1, 1]
        assert part.train.labels.bincount().tolist() == [15, 4, 1]
    assert torch.equal(parts[0].test.images, parts[1].test.images)
    assert not torch.equal(parts[0].test.images, parts[2].test.images)


def test_test_pictures_that_are_given_are_the_test(tmp_path: Path, painter: Paint) -> None:
    painter(tmp_path / "train", "a", "b", count=4)
    painter(tmp_path / "test", "a", count=3, seed=1)
    copied = (tmp_path / "train/b/00.png").read_bytes()
    (tmp_path / "test/b").mkdir()
    (tmp_path / "test/b/again.png").write_bytes(copied)
    examples = read(find(str(tmp_path)), "p", 32, 0.2, 0)
    assert (len(examples.train.labels), examples.test.labels.tolist()) == (8, [0, 0, 0, 1])
    assert examples.notes == ("1 of 4 test pictures are training pictures too, pixel for pixel",)


def test_without_a_test_share_nothing_is_tested(tmp_path: Path, painter: Paint) -> None:
    pictures = str(painter(tmp_path / "p", "a", "b", count=3))
    learnt = learn(tmp_path / "life.nacre", "p", pictures, Wanted(epochs=1, test_share=0, budget=10_000))
    assert (learnt.trained_on, learnt.tested_on, learnt.accuracy) == (6, 0, None)
    assert learnt.factor_bytes <= 10_000


def test_a_task_may_be_stored_in_fewer_bits_and_its_budget_counts_them(tmp_path: Path, painter: Paint) -> None:
    pictures, store = str(painter(tmp_path / "p", "a", "b", count=3)), tmp_path / "life.nacre"
    learnt = [
        learn(store, dtype, pictures, Wanted(epochs=1, budget=10_000, dtype=dtype)) for dtype in ("float32", "int8")
    ]
    assert all(task.factor_bytes <= 10_000 for task in learnt)
    learn(store, "as the store", pictures, ONCE)
    space = SharedSpace.load(store)
    plain, small = (space.size(task).factors for task in ("float32", "int8"))
    assert small > 3 * plain  # numbers, in as many bytes
    kept = [(space.record(task).dtype, space.record(task).head_dtype) for task in space.tasks]
    assert kept == [("float32", "float32"), ("int8", "int8"), ("float32", "float32")]
    with pytest.raises(NacreError, match="the dtype is 'float32', 'bfloat16', 'int8'; got 'int4'"):
        Wanted(dtype="int4")  # type: ignore[arg-type]


# broken pictures


def test_broken_pictures_are_named_and_skipped(
    tmp_path: Path, painter: Paint, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = painter(tmp_path / "p", "a", "b", count=4)
    whole = (pictures / "a/00.png").read_bytes()
    (pictures / "a/cut.png").write_bytes(whole[: len(whole) // 2])
    (pictures / "b/empty.jpg").write_bytes(b"")
    (pictures / "b/text.gif").write_text("no picture")
    learnt = learn(tmp_path / "life.nacre", "p", str(pictures), ONCE)
    assert learnt.trained_on + learnt.tested_on == 8
    assert [problem.split(" is ")[0] for problem in learnt.skipped] == [
        str(pictures / name) for name in ("a/cut.png", "b/empty.jpg", "b/text.gif")
    ]
    log = capsys.readouterr().err
    assert all(f"nacre: skipped: {problem}\n" in log for problem in learnt.skipped)


def test_a_class_of_which_too_few_can_be_read_is_refused(tmp_path: Path, painter: Paint) -> None:
    pictures = painter(tmp_path / "p", "a", "b", count=2)
    (pictures / "b/01.png").write_bytes(b"")
    with pytest.raises(NacreError, match="p, without 1 that cannot be read, holds a single picture of b: every class"):
        learn(tmp_path / "life.nacre", "p", str(pictures), ONCE)
    assert not (tmp_path / "life.nacre").exists()
    assert not (tmp_path / "life.nacre.learning").exists()


# what is refused, before anything is read or written


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"network": "conv6"}, "no network is called 'conv6'; the networks are conv5, vgg16_bn"),
        ({"size": 16}, "conv5 takes pictures of 24 pixels or more; got --size 16"),
    ],
)
def test_a_new_store_that_cannot_be(wanted: dict[str, Any], message: str, tmp_path: Path, painter: Paint) -> None:
    with pytest.raises(NacreError, match=message):
        learn(tmp_path / "life.nacre", "p", str(painter(tmp_path / "p", "a", "b")), Wanted(**wanted))
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize(
    ("task", "wanted", "message"),
    [
        ("colours", {}, "a task called 'colours' is already learnt; the tasks are 'colours', 'inks'"),
        (" ", {}, "a task's name is a text that is not blank"),
        ("new", {"size": 64}, "was begun with --size 32, and all its tasks have that; got 64"),
        ("new", {"network": "vgg16_bn"}, "was begun with --network conv5, and all its tasks have that; got vgg16_bn"),
        ("new", {"seed": 3}, "was begun with --seed 0, and all its tasks have that; got 3"),
    ],
)
def test_a_task_that_a_store_cannot_take(
    task: str, wanted: dict[str, Any], message: str, life: tuple[Path, list[Learnt]]
) -> None:
    with pytest.raises(NacreError, match=message):
        learn(life[0], task, "pictures that nobody looks for", Wanted(**wanted))


def test_what_is_there_and_is_no_store_of_pictures_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("a")
    with pytest.raises(NacreError, match="is there already and is no nacre store"):
        learn(tmp_path / "notes", "p", "x/y")
    learner = Learner(torch.nn.Linear(4, 3), device="cpu", progress=False)
    learner.save(tmp_path / "own.nacre")
    with pytest.raises(NacreError, match="was not made by nacre learn: go on with it in Python"):
        learn(tmp_path / "own.nacre", "p", "x/y")


@pytest.mark.parametrize("wanted", [{"test_share": 1.0}, {"epochs": 0}, {"budget": 0}, {"test_share": -0.1}])
def test_wishes_that_make_no_sense(wanted: dict[str, Any]) -> None:
    with pytest.raises(NacreError):
        Wanted(**wanted)


def test_one_learns_at_a_time(tmp_path: Path, painter: Paint) -> None:
    pictures = str(painter(tmp_path / "p", "a", "b"))
    (tmp_path / "life.nacre.learning").mkdir()
    with (
        FileLock(tmp_path / "life.nacre.learning/.lock"),
        pytest.raises(NacreError, match="is being learnt into by another process"),
    ):
        learn(tmp_path / "life.nacre", "p", pictures, ONCE)


# size, recipe, network, budget


@pytest.mark.parametrize(("side", "wanted"), [(8, 32), (32, 32), (33, 64), (200, 64)])
def test_a_new_stores_pictures_are_as_large_as_most_are_within_reason(
    side: int, wanted: int, tmp_path: Path, painter: Paint
) -> None:
    given = find(str(painter(tmp_path / "p", "a", "b", count=3, side=side)))
    assert side_for(given, 24) == wanted
    assert side_for(given, 224) == 224


def test_the_recipe_has_about_two_thousand_steps() -> None:
    prepared = Preprocessing(32, (0.5,) * 3, (0.25,) * 3)
    steps = {}
    for pictures in (20, 300, 999, 1000, 5000, 50_000):
        recipe = choose(pictures, prepared, epochs=None, flip=False).recipe
        steps[pictures] = recipe.epochs * -(-pictures // recipe.batch_size)
        assert 20 <= recipe.epochs <= 100
    assert steps[20] == 200
    assert all(1500 <= steps[pictures] <= 2200 for pictures in (300, 999, 1000, 5000))
    assert steps[50_000] == 20 * 782


def test_a_network_with_a_head_of_its_own_gets_it() -> None:
    prepared = Preprocessing(32, (0.5,) * 3, (0.25,) * 3)
    head, again = (Beginning("vgg16_bn", 32, 0).opened(prepared).head("p", 2) for _ in range(2))
    assert head is not None
    assert again is not None
    assert all(torch.equal(one, other) for one, other in zip(head.parameters(), again.parameters(), strict=True))
    assert Beginning("conv5", 32, 0).opened(prepared).head("p", 2) is None
    assert [tuple(part.shape) for part in head.parameters()] == [(32, 512), (32,), (2, 32), (2,)]


def test_a_budget_is_kept_and_what_it_cost_is_measured_against_the_same_task_without_one(
    tmp_path: Path, painter: Paint, life: tuple[Path, list[Learnt]]
) -> None:
    pictures = str(painter(tmp_path / "p", "a", "b", "c", count=6))
    free = learn(tmp_path / "free.nacre", "p", pictures, Wanted(epochs=2))
    tight = learn(tmp_path / "tight.nacre", "p", pictures, Wanted(epochs=2, budget=30_000))
    assert tight.factor_bytes <= 30_000 < free.factor_bytes
    assert tight.accuracy_without_budget == free.accuracy
    loose = learn(tmp_path / "loose.nacre", "p", pictures, Wanted(epochs=2, budget=free.factor_bytes))
    assert (loose.accuracy, loose.accuracy_without_budget) == (free.accuracy, free.accuracy)
    assert (tmp_path / "loose.nacre/tasks/000-p.safetensors").read_bytes() == (
        tmp_path / "free.nacre/tasks/000-p.safetensors"
    ).read_bytes()
    assert read_index(tmp_path / "tight.nacre")["facts"]["method"]["settings"]["budget"] is None


def test_a_method_without_a_budget_says_so(tmp_path: Path, painter: Paint) -> None:
    pictures = painter(tmp_path / "p", "a", "b", count=2)
    learn(tmp_path / "life.nacre", "p", str(pictures), ONCE)
    Learner.load(tmp_path / "life.nacre", method=Single()).save(tmp_path / "life.nacre")
    with pytest.raises(NacreError, match=r"was learnt with Single.*, which knows no budget"):
        learn(tmp_path / "life.nacre", "q", str(pictures), Wanted(epochs=1, budget=1000))


# interrupts


def interrupt_at(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after an epoch: where the loop has saved its checkpoint and looks at the clock."""
    whole = Checkpoint.save

    def save(self: Any, *arguments: Any) -> None:
        whole(self, *arguments)
        if len(arguments[2]["history"]) == epoch:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", save)


def test_interrupted_it_leaves_the_store_as_it_was_and_goes_on_to_the_same_bits(
    tmp_path: Path, painter: Paint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = str(painter(tmp_path / "p", "a", "b"))
    whole, torn = tmp_path / "whole.nacre", tmp_path / "torn.nacre"
    wanted = Wanted(epochs=3)
    learn(whole, "p", pictures, wanted)
    with monkeypatch.context() as patched:
        interrupt_at(2, patched)
        with pytest.raises(KeyboardInterrupt):
            learn(torn, "p", pictures, wanted)
    assert not torn.exists()
    assert len(list((tmp_path / "torn.nacre.learning").glob("*/*.safetensors"))) == 1
    capsys.readouterr()
    learn(torn, "p", pictures, wanted)
    assert "nacre: p: going on where it was interrupted\n" in capsys.readouterr().err
    assert (torn / "tasks/000-p.safetensors").read_bytes() == (whole / "tasks/000-p.safetensors").read_bytes()
    assert not (tmp_path / "torn.nacre.learning").exists()


def test_what_was_interrupted_is_not_gone_on_with_where_the_pictures_or_the_wishes_are_others(
    tmp_path: Path, painter: Paint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures, store = painter(tmp_path / "p", "a", "b"), tmp_path / "life.nacre"
    with monkeypatch.context() as patched:
        interrupt_at(1, patched)
        with pytest.raises(KeyboardInterrupt):
            learn(store, "p", str(pictures), Wanted(epochs=2))
    Image.fromarray(np.zeros((12, 12, 3), dtype=np.uint8)).save(pictures / "a/00.png")
    learn(store, "p", str(pictures), Wanted(epochs=2))
    assert "going on" not in capsys.readouterr().err
    assert not (tmp_path / "life.nacre.learning").exists()


def test_an_answer_that_changed_is_an_error(tmp_path: Path, painter: Paint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is real: a store whose first task is exchanged while the second is learnt is found out."""
    first, other = (painter(tmp_path / name, "a", "b", count=3, seed=seed) for seed, name in enumerate(("p", "q")))
    store, exchanged = tmp_path / "life.nacre", tmp_path / "exchanged.nacre"
    learn(store, "p", str(first), ONCE)
    learn(exchanged, "p", str(other), ONCE)
    saved = Learner.save

    def save(self: Learner, path: Any) -> None:
        saved(self, path)
        store.rename(tmp_path / "aside.nacre")
        exchanged.rename(store)

    monkeypatch.setattr(Learner, "save", save)
    with pytest.raises(NacreError, match="'q' was saved, but p no longer gives the same bits"):
        learn(store, "q", str(other), ONCE)


def test_interrupted_after_it_was_saved_it_says_so(
    tmp_path: Path, painter: Paint, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, pictures = tmp_path / "life.nacre", str(painter(tmp_path / "p", "a", "b", count=2))

    def ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nacre.images.learning._Work._check_unchanged", ctrl_c)
    with pytest.raises(KeyboardInterrupt, match="'p' is learnt and saved, all but the look whether the tasks before"):
        learn(store, "p", pictures, ONCE)
    assert open_store(store).learner.tasks == ("p",)


def test_the_tasks_that_are_there_are_counted_while_they_are_asked(
    life: tuple[Path, list[Learnt]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(life[0], tmp_path / "life.nacre")
    monkeypatch.setattr("nacre.scenarios.progress._QUIET_S", 0.0)
    monkeypatch.setattr("nacre.scenarios.progress._LOG_S", 0.0)
    learn(tmp_path / "life.nacre", "more", str(life[0].parent / "inks"), ONCE)
    assert capsys.readouterr().err.count("asking the tasks that are there: 2 of 2") == 2


def test_the_stores_method_is_for_the_next_task_too(life: tuple[Path, list[Learnt]]) -> None:
    assert open_store(life[0]).learner.method == CACL(sparsity=0.1, energy=1e-3)
