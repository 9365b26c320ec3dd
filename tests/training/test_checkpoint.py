from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from nacre import CACL, Learner, NacreError, Recipe, SharedSpace
from nacre.training import Epoch, Task, fit
from nacre.training.batches import as_batches
from nacre.training.checkpoint import checkpoint_file, clear
from nacre.training.processes import Processes

DEADLINE_S = 120
EPOCHS, BATCHES = 6, 4


# what the child process and the test learn alike


class Noisy(Dataset[Any]):
    """Images with noise drawn anew at every reading."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + 0.1 * torch.randn(6), self.y[index]


def problem(seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, seed] > 0).long()


def momentum(parameters: list[nn.Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)


def score(outputs: Tensor, targets: Tensor) -> float:
    """Rises and falls, so that the best epoch is none of the last."""
    return float(-(F.cross_entropy(outputs, targets) - 0.6).abs())


def variant(kind: str) -> tuple[Any, dict[str, Any], Recipe]:
    """Data, further arguments and recipe of a run."""
    x, y = problem()
    recipe = partial(Recipe, epochs=EPOCHS, batch_size=12)
    if kind == "adam":
        return (x, y), {}, recipe(learning_rate=0.01)
    if kind == "validation":
        return (x, y), {"val": problem(), "metric": score}, recipe(learning_rate=0.02, patience=4)
    if kind == "momentum":
        return Noisy(x, y), {}, recipe(optimizer=momentum, schedule="cosine", precision="float32")
    loader = DataLoader(Noisy(x, y), batch_size=12, shuffle=True, generator=torch.Generator())
    return loader, {}, recipe(learning_rate=0.01)


def learner(method: Any = None) -> Learner:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 8), nn.ReLU()
        )
    return Learner(net, method, device="cpu", progress=False)


def run(kind: str, folder: Path, loss: Any = None, callbacks: Any = ()) -> Learner:
    """Two tasks; the second goes on from a checkpoint if there is one."""
    life = Learner.load(folder / "life", progress=False, device="cpu") if (folder / "life").exists() else learner()
    data, more, recipe = variant(kind)
    for name in ("first", "second"):
        if name not in life.tasks:
            own_loss = {"loss": loss} if loss is not None else {}
            checkpoint = folder / "checkpoints"
            life.learn(name, data, recipe=recipe, checkpoint=checkpoint, callbacks=callbacks, **own_loss, **more)
            life.save(folder / "life")
    return life


def main(kind: str, folder: Path, stop: str) -> None:
    """Runs until a place is reached, says so, and waits there for a signal."""
    place, at = stop.split(":")
    calls = 0

    def wait() -> None:
        print("here", flush=True)
        signal.pause()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += torch.is_grad_enabled()
        if place == "batch" and calls == int(at):
            wait()
        return F.cross_entropy(outputs, targets)

    def after(epoch: Epoch, _: nn.Module) -> None:
        if place == "second" and epoch.task == "second" and epoch.epoch == int(at):
            wait()

    run(kind, folder, loss, [after])


def interrupted(kind: str, folder: Path, stop: str, how: signal.Signals) -> int:
    """Starts a process, sends it a signal where it waits, and gives its exit status."""
    child = subprocess.Popen(
        [sys.executable, __file__, kind, str(folder), stop], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    said = child.stdout.readline()
    assert said == "here\n", child.communicate(timeout=DEADLINE_S)[1]
    os.kill(child.pid, how)
    child.communicate(timeout=DEADLINE_S)
    return child.returncode


def files(store: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (store / "tasks").iterdir()}


@pytest.mark.parametrize(
    ("kind", "stop", "how"),
    [
        ("adam", f"batch:{3 * BATCHES + 2}", signal.SIGINT),  # in the middle of the fourth epoch of the first task
        ("validation", f"batch:{4 * BATCHES + 3}", signal.SIGKILL),
        ("momentum", "second:3", signal.SIGKILL),  # after an epoch of the second, the first being saved
        ("loader", "second:1", signal.SIGKILL),  # before the first checkpoint of the second task: between tasks
    ],
)
def test_a_run_that_was_interrupted_ends_in_the_same_bits(
    kind: str, stop: str, how: signal.Signals, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(kind, whole, F.cross_entropy)
    status = interrupted(kind, broken, stop, how)
    assert status == (-signal.SIGKILL if how is signal.SIGKILL else status)
    assert status != 0
    left = sorted((broken / "checkpoints").glob("*.safetensors"))
    assert len(left) == (0 if stop == "second:1" else 1)
    epochs: list[tuple[str, int]] = []
    run(kind, broken, F.cross_entropy, [lambda epoch, _: epochs.append((epoch.task, epoch.epoch))])
    begun = {"adam": ("first", 4), "validation": ("first", 5), "momentum": ("second", 3), "loader": ("second", 1)}
    assert epochs[0] == begun[kind], "it did not go on from the last epoch"
    assert files(broken / "life") == files(whole / "life")
    assert len(files(whole / "life")) == 2
    assert not list((broken / "checkpoints").glob("*.safetensors"))


def test_early_stopping_is_resumed_with_its_best_epoch(tmp_path: Path) -> None:
    """The best epoch is before the interrupt, and patience counts from before it."""
    scores = [1.0, 5.0, 2.0, 2.0, 2.0, 9.0, 9.0]

    def learn(folder: Path, breaks: int | None) -> Learner:
        life, said = learner(), iter(scores)

        def interrupt(epoch: Epoch, _: nn.Module) -> None:
            if epoch.epoch == breaks:
                raise KeyboardInterrupt

        recipe = Recipe(epochs=7, batch_size=12, patience=3)
        given: dict[str, Any] = {"train": problem(), "val": problem(1), "recipe": recipe, "checkpoint": folder}
        try:
            life.learn("t", metric=lambda *_: next(said), callbacks=[interrupt], **given)
        except KeyboardInterrupt:
            life, said = learner(), iter(scores[breaks - 1 if breaks else 0 :])
            result = life.learn("t", metric=lambda *_: next(said), **given)
            assert [epoch.val for epoch in result.history] == scores[:5]  # the epochs before are told too
        return life

    whole, broken = learn(tmp_path / "a", None), learn(tmp_path / "b", 4)
    one, two = (life.network("t").state_dict() for life in (whole, broken))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_validation_that_draws_at_random_draws_the_same_after_an_interrupt(tmp_path: Path) -> None:
    """A loader of augmented images, shuffled: what random_split of an augmented data set gives."""

    def learn(*callbacks: Any) -> list[float | None]:
        loader = DataLoader(Noisy(*problem(1)), batch_size=16, shuffle=True)
        further: dict[str, Any] = {"val": loader, "metric": score, "checkpoint": tmp_path / str(len(callbacks))}
        result = learner().learn("t", problem(), recipe=Recipe(epochs=4, batch_size=12), callbacks=callbacks, **further)
        return [epoch.val for epoch in result.history]

    def interrupt(epoch: Epoch, _: nn.Module) -> None:
        if epoch.epoch == 3 and not interrupted_before:
            interrupted_before.append(True)
            raise KeyboardInterrupt

    interrupted_before: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        learn(interrupt)
    assert learn(interrupt) == learn()
    assert interrupted_before


def test_learning_again_in_the_same_process_goes_on_too(tmp_path: Path) -> None:
    def interrupt(epoch: Epoch, _: nn.Module) -> None:
        if epoch.epoch == 3:
            raise KeyboardInterrupt

    whole, life = learner(), learner()
    recipe = Recipe(epochs=4, batch_size=12)
    whole.learn("t", problem(), recipe=recipe)
    with pytest.raises(KeyboardInterrupt):
        life.learn("t", problem(), recipe=recipe, checkpoint=tmp_path, callbacks=[interrupt])
    assert life.tasks == ()
    seen: list[int] = []
    life.learn("t", problem(), recipe=recipe, checkpoint=tmp_path, callbacks=[lambda e, _: seen.append(e.epoch)])
    assert seen == [3, 4]
    assert torch.equal(whole.predict(problem()[0], task="t"), life.predict(problem()[0], task="t"))


# when checkpoints come and go


def test_checkpoints_are_kept_until_the_learner_was_saved(tmp_path: Path) -> None:
    life, folder = learner(), tmp_path / "checkpoints"
    recipe = Recipe(epochs=2, batch_size=12)
    life.learn("one", problem(), recipe=recipe, checkpoint=folder)
    life.learn("two", problem(1), recipe=recipe, checkpoint=folder)
    folder.joinpath("model.safetensors").write_bytes(b"somebody else's")
    other = checkpoint_file(folder, "three", "train")
    other.write_bytes(b"of a task that is still being learnt")
    kept = {checkpoint_file(folder, name, "train") for name in ("one", "two")}
    assert kept < set(folder.iterdir())
    life.save(tmp_path / "life")
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", other.name}


def test_a_task_learnt_but_not_saved_is_not_trained_again(tmp_path: Path) -> None:
    recipe = Recipe(epochs=3, batch_size=12)
    first, second = learner(), learner()
    result = first.learn("t", problem(), recipe=recipe, checkpoint=tmp_path)
    seen: list[int] = []
    again = second.learn("t", problem(), recipe=recipe, checkpoint=tmp_path, callbacks=[lambda *_: seen.append(1)])
    assert seen == []
    assert again.history == result.history
    one, two = (life.network("t").state_dict() for life in (first, second))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("name", ["animals", "../../etc", "日本", "a-b-train", "", "x" * 300, "a/b\\c\n"])
def test_any_task_name_makes_a_file_inside_the_folder(name: str, tmp_path: Path) -> None:
    path = checkpoint_file(tmp_path, name, "train")
    assert path.resolve().parent == tmp_path.resolve()
    path.write_bytes(b"")
    clear(tmp_path, name + "?")
    assert path.exists()
    clear(tmp_path, name)
    assert not path.exists()


def test_every_phase_of_a_task_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    recipe = Recipe(epochs=2, batch_size=12)

    def task() -> Task:
        processes = Processes(torch.device("cpu"))
        batches = as_batches(problem(), recipe, processes)
        torch.manual_seed(1)
        return Task(
            "t", nn.Linear(4, 2), batches, F.cross_entropy, recipe, processes, checkpoint=tmp_path, progress=False
        )

    with torch.random.fork_rng():
        torch.manual_seed(0)
        space = SharedSpace(nn.Sequential(nn.Linear(6, 4), nn.ReLU()))
        first, again = task(), task()
        network, resumed = space.expand(first.head), space.expand(again.head)
    history = [fit(network, first, phase=phase) for phase in ("train", "retrain")]
    assert sorted(tmp_path.iterdir()) == sorted(checkpoint_file(tmp_path, "t", p) for p in ("train", "retrain"))
    assert [fit(resumed, again, phase=phase) for phase in ("train", "retrain")] == history
    assert [(epoch.phase, epoch.epoch) for epoch in again.history] == [
        ("train", 1), ("train", 2), ("retrain", 1), ("retrain", 2),
    ]  # fmt: skip
    assert all(torch.equal(network.state_dict()[name], resumed.state_dict()[name]) for name in network.state_dict())
    clear(tmp_path, "t")
    assert not list(tmp_path.iterdir())


# what is refused


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """A folder with the checkpoint of a task that is half learnt."""
    _learn(tmp_path, epochs_learnt=2)
    return tmp_path


def _learn(
    folder: Path, *, epochs_learnt: int = 9, method: Any = None, seed: int = 0, data: Any = None, **settings: Any
) -> Learner:
    def interrupt(epoch: Epoch, _: nn.Module) -> None:
        if epoch.epoch > epochs_learnt:
            raise KeyboardInterrupt

    life = learner(method)
    life.seed = seed
    given: dict[str, Any] = {"epochs": 4, "batch_size": 12, "learning_rate": 0.01, "precision": "float32", **settings}
    head = given.pop("head", None)
    try:
        life.learn(
            "animals", data or problem(), recipe=Recipe(**given), head=head, checkpoint=folder, callbacks=[interrupt]
        )
    except KeyboardInterrupt:
        assert epochs_learnt < 9
    return life


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({"learning_rate": 0.1}, "learning_rate 0.01, now it is 0.1"),
        ({"epochs": 5}, "epochs 4, now it is 5"),
        ({"batch_size": 16}, "batch_size 12, now it is 16"),
        ({"precision": "bfloat16"}, "precision float32, now it is bfloat16"),
        ({"optimizer": momentum}, "optimizer None, now it is <function momentum>"),
        ({"schedule": "cosine"}, "schedule milestones, now it is cosine"),
        ({"milestones": (0.5,)}, r"milestones \(0.4, 0.6, 0.9\), now it is \(0.5,\)"),
        ({"patience": 3}, "patience 10, now it is 3"),
        ({"method": CACL(sparsity=0.4)}, r"method CACL\(sparsity=0.1.*, now it is CACL\(sparsity=0.4"),
        ({"seed": 1}, "seed 0, now it is 1"),
        ({"data": tuple(part[:40] for part in problem())}, "examples 48, now it is 40"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_checkpoint_made_with_other_settings_is_refused_and_named(
    settings: dict[str, Any], differs: str, unfinished: Path
) -> None:
    with pytest.raises(NacreError, match=rf"of task 'animals' was made with {differs}.*another checkpoint folder"):
        _learn(unfinished, **settings)
    assert _learn(unfinished).tasks == ("animals",), "the refusal did harm to the checkpoint"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_what_does_not_change_the_result_may_differ(unfinished: Path) -> None:
    assert _learn(unfinished, keep=False, workers=1).tasks == ("animals",)


def test_another_head_is_refused(unfinished: Path) -> None:
    with pytest.raises(NacreError, match=r"\.safetensors is not of this network: (?s:.*)head.2.weight"):
        _learn(unfinished, head=nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2)))


def test_a_checkpoint_after_other_tasks_is_refused(unfinished: Path) -> None:
    life = learner()
    life.learn("plants", problem(1), recipe=Recipe(epochs=1))
    recipe = Recipe(epochs=4, batch_size=12, learning_rate=0.01, precision="float32")
    with pytest.raises(NacreError, match=r"tasks before \(\), now it is \('plants',\)"):
        life.learn("animals", problem(), recipe=recipe, checkpoint=unfinished)
    assert life.tasks == ("plants",)


def test_a_truncated_checkpoint_is_named(unfinished: Path) -> None:
    (path,) = unfinished.glob("*.safetensors")
    whole = path.read_bytes()
    for length in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(NacreError) as caught:
            _learn(unfinished)
        assert str(path) in str(caught.value), length
    path.write_bytes(whole)
    assert _learn(unfinished).tasks == ("animals",)


@pytest.mark.parametrize("key", ["facts", "state", "optimizer"])
def test_a_checkpoint_that_lacks_a_part_is_named(key: str, unfinished: Path) -> None:
    from nacre.space.container import decode, encode

    (path,) = unfinished.glob("*.safetensors")
    tensors, saved = decode(path.read_bytes(), path)
    path.write_bytes(encode(tensors, {name: value for name, value in saved.items() if name != key}))
    with pytest.raises(NacreError, match=r"animals-train-\w+\.safetensors is not of this network"):
        _learn(unfinished)


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    tmp_path.joinpath("file").write_text("no folder")
    with pytest.raises(NacreError, match=r"file/checkpoints.* (could not be written|cannot be read)"):
        _learn(tmp_path / "file" / "checkpoints")


def test_a_loss_that_becomes_nan_leaves_the_last_good_epoch(tmp_path: Path) -> None:
    """Going on with the same settings fails in the same epoch; with others the checkpoint says what differs."""

    def explode(bad: bool) -> Callable[[Tensor, Tensor], Tensor]:
        calls = 0

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return F.cross_entropy(outputs, targets) * (float("nan") if bad and calls > 9 else 1.0)

        return loss

    recipe = Recipe(epochs=4, batch_size=12, precision="float32")
    life = learner()
    with pytest.raises(NacreError, match=r"epoch 3 .*the epoch before is kept in") as caught:
        life.learn("t", problem(), recipe=recipe, loss=explode(True), checkpoint=tmp_path)
    assert str(tmp_path) in str(caught.value)
    lower = Recipe(epochs=4, batch_size=12, precision="float32", learning_rate=1e-4)
    with pytest.raises(NacreError, match=r"learning_rate 0.001, now it is 0.0001: .*another checkpoint folder"):
        life.learn("t", problem(), recipe=lower, checkpoint=tmp_path)
    seen: list[int] = []
    life.learn("t", problem(), recipe=recipe, checkpoint=tmp_path, callbacks=[lambda e, _: seen.append(e.epoch)])
    assert seen == [3, 4]
    assert life.tasks == ("t",)


def test_a_validation_that_is_no_number_does_not_break_the_checkpoint(tmp_path: Path) -> None:
    said = [float("nan"), 1.0, float("nan")]
    recipe = Recipe(epochs=3, batch_size=12)
    data: dict[str, Any] = {"train": problem(), "val": problem(1), "recipe": recipe, "checkpoint": tmp_path}
    scores = iter(said)
    first = learner()
    first.learn("t", metric=lambda *_: next(scores), **data)
    again = learner()
    result = again.learn("t", metric=lambda *_: 0.0, **data)
    assert [epoch.val for epoch in result.history] == [None, 1.0, None]
    x = problem()[0]
    assert torch.equal(first.predict(x, task="t"), again.predict(x, task="t"))


class Shift:
    """An augmentation of a user's, an object like any other: its repr holds its address."""

    def __call__(self, inputs: Tensor, draw: torch.Generator) -> Tensor:
        return inputs + torch.rand(1, generator=draw)


def shifted(inputs: Tensor, draw: torch.Generator, by: float) -> Tensor:
    return inputs + by * torch.rand(1, generator=draw)


@pytest.mark.parametrize("kind", ["object", "partial"])
def test_an_augmentation_of_ones_own_is_recognised_in_another_process(kind: str, tmp_path: Path) -> None:
    """The address of an object tells nothing of what it does."""
    made: list[Any] = [Shift(), Shift()] if kind == "object" else [partial(_new(), by=0.01), partial(_new(), by=0.01)]
    _learn(tmp_path, epochs_learnt=2, augment=made[0])
    assert _learn(tmp_path, augment=made[1]).tasks == ("animals",)


def _new() -> Callable[..., Any]:
    """The same function at another address, as another process has it."""
    return FunctionType(shifted.__code__, globals(), "shifted")


def test_a_checkpoint_holds_no_pickle(unfinished: Path) -> None:
    import json

    (path,) = unfinished.glob("*.safetensors")
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert list(header["__metadata__"]) == ["nacre"]
    assert json.loads(header["__metadata__"]["nacre"])["facts"]["task"] == "animals"


if __name__ == "__main__":
    torch.set_num_threads(1)  # as tests/conftest.py
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
