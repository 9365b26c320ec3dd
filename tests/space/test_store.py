"""The store: append-only, atomic, one writer, readers never blocked, and nothing but names of nacre's own on disk.

Run as a script it plays a second process: `python test_store.py ROLE ARGUMENTS`.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import pytest
import torch
from filelock import FileLock
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import nacre
from nacre import NacreError, SharedSpace
from nacre.space import store, verify

INPUTS = torch.linspace(-2, 2, 5 * 6).view(5, 6)
TASK_FILE = re.compile(r"tasks/[0-9]{3}-[A-Za-z0-9_-]{0,40}\.safetensors")
Snapshot = dict[str, tuple[bytes, int, int]]


def new_space(base: Literal["zero", "backbone"] = "zero", width: int = 8) -> SharedSpace:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = OrderedDict(
            fc1=nn.Linear(6, width), norm=nn.BatchNorm1d(width), act=nn.ReLU(), fc2=nn.Linear(width, 5)
        )
        return SharedSpace(nn.Sequential(layers), base=base)


def teach(space: SharedSpace, name: str, *, rank: int = 2, sharing: bool = True) -> None:
    """Appends a task; what is learnt depends on its name and on the tasks before it, and on nothing else."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()))
        network = space.expand(nn.Linear(5, 3), rank=rank, sharing=sharing)
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        network(torch.randn(16, 6)).square().sum().backward()
        optimizer.step()
    space.append(name, network, classes=["cat", "dog", "cow"])


def taught(*names: str, base: Literal["zero", "backbone"] = "zero") -> SharedSpace:
    space = new_space(base)
    for name in names:
        teach(space, name)
    return space


def logits(space: SharedSpace, task: str) -> Tensor:
    with torch.no_grad():
        answer: Tensor = space.network(task)(INPUTS)
    return answer


def assert_same(space: SharedSpace, other: SharedSpace) -> None:
    assert space.tasks == other.tasks
    for task in other.tasks:
        assert torch.equal(logits(space, task), logits(other, task))
        assert space.ranks(task) == other.ranks(task)
        assert space.identifier(task) == other.identifier(task)


def snapshot(folder: Path) -> Snapshot:
    """Every file but the lock: contents, time of change, and which file it is."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != store.LOCK)
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
        for path in files
    }


def signed(index: dict[str, Any]) -> bytes:
    """An index with its hash, from the documented format."""

    def canonical(data: dict[str, Any]) -> str:
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    digest = hashlib.sha256(canonical({**index, "sha256": ""}).encode()).hexdigest()
    return (canonical({**index, "sha256": digest}) + "\n").encode()


def change_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    index = json.loads((folder / "space.json").read_bytes())
    change(index)
    (folder / "space.json").write_bytes(signed(index))


# append-only


@pytest.mark.parametrize("base", ["zero", "backbone"])
@pytest.mark.parametrize("reload", [False, True])
def test_saving_more_tasks_leaves_every_earlier_file_alone(
    base: Literal["zero", "backbone"], reload: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "life.nacre"
    space = new_space(base)
    before: Snapshot = {}
    for count, name in enumerate(("animals", "birds", "cars", "dogs")):
        teach(space, name)
        space.save(folder)
        after = snapshot(folder)
        kept = {file: state for file, state in before.items() if file != "space.json"}
        assert kept.items() <= after.items(), "an earlier file was written or replaced"
        if before:
            assert after.keys() - before.keys() == {f"tasks/{count:03d}-{name}.safetensors"}
        before = after
        if reload:
            space = SharedSpace.load(folder)
    assert len(before) == 4 + 1 + (base == "backbone")
    assert_same(SharedSpace.load(folder), space)


def test_the_signature_of_an_index_is_as_documented(tmp_path: Path) -> None:
    taught("a").save(tmp_path / "s")
    data = (tmp_path / "s" / "space.json").read_bytes()
    assert signed(json.loads(data)) == data


@pytest.mark.parametrize("base", ["zero", "backbone"])
def test_saving_with_nothing_new_writes_nothing(base: Literal["zero", "backbone"], tmp_path: Path) -> None:
    folder = tmp_path / "life.nacre"
    space = taught("animals", "birds", base=base)
    space.facts |= {"settings": (1, 2.5, "x")}  # a tuple is a list once it was saved
    space.save(folder)
    before = snapshot(folder)
    space.save(folder)
    SharedSpace.load(folder).save(folder)
    assert snapshot(folder) == before


def test_the_same_tasks_learnt_again_do_not_change_when_they_were_learnt(tmp_path: Path) -> None:
    taught("animals", "birds").save(tmp_path)

    def date_back(index: dict[str, Any]) -> None:
        for entry in index["tasks"]:
            entry["created"] = "2001-02-03T04:05:06+00:00"

    change_index(tmp_path, date_back)
    before = snapshot(tmp_path)
    again = taught("animals", "birds")
    again.save(tmp_path)
    assert snapshot(tmp_path) == before
    teach(again, "cars")
    again.save(tmp_path)
    index = json.loads((tmp_path / "space.json").read_bytes())
    assert [entry["created"][:4] == "2001" for entry in index["tasks"]] == [True, True, False]


@pytest.mark.parametrize("base", ["zero", "backbone"])
def test_a_lazily_loaded_space_saved_elsewhere_is_complete(base: Literal["zero", "backbone"], tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    original = taught("animals", "birds", "cars", base=base)
    original.save(first)
    loaded = SharedSpace.load(first)
    loaded.save(second)
    copied, source = snapshot(second), snapshot(first)
    assert {file: state[0] for file, state in copied.items()} == {file: state[0] for file, state in source.items()}
    shutil.rmtree(first)
    assert verify(second) == []
    assert_same(SharedSpace.load(second), original)
    assert_same(loaded, original)  # it reads from the second store now
    teach(loaded, "dogs")
    loaded.save(second)
    assert SharedSpace.load(second).tasks == ("animals", "birds", "cars", "dogs")


def test_a_space_can_be_saved_from_memory_when_its_folder_is_gone(tmp_path: Path) -> None:
    space = taught("animals", "birds")
    space.save(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    space.save(tmp_path / "gone")
    space.save(tmp_path / "elsewhere")
    assert_same(SharedSpace.load(tmp_path / "gone"), space)
    assert_same(SharedSpace.load(tmp_path / "elsewhere"), space)


def test_loading_reads_the_index_only(tmp_path: Path) -> None:
    space = taught("animals", "birds")
    space.save(tmp_path / "s")
    shutil.rmtree(tmp_path / "s" / "tasks")
    loaded = SharedSpace.load(tmp_path / "s")
    assert loaded.tasks == space.tasks
    assert [loaded.identifier(task) for task in loaded.tasks] == [space.identifier(task) for task in space.tasks]
    assert loaded.size() == space.size()
    with pytest.raises(NacreError, match="000-animals"):
        loaded.network("animals")


def test_a_task_is_read_without_the_later_ones(tmp_path: Path) -> None:
    space = taught("animals", "birds", "cars", "dogs")
    space.save(tmp_path)
    for later in ("002-cars", "003-dogs"):
        (tmp_path / "tasks" / f"{later}.safetensors").unlink()
    loaded = SharedSpace.load(tmp_path)
    for task in ("animals", "birds"):
        assert torch.equal(logits(loaded, task), logits(space, task))
    with pytest.raises(NacreError, match=r"002-cars\.safetensors"):
        loaded.network("cars")
    with pytest.raises(NacreError, match=r"00(2-cars|3-dogs)\.safetensors"):
        loaded.network("dogs")
    assert torch.equal(logits(loaded, "birds"), logits(space, "birds"))  # an error spoils nothing


def test_a_task_alone_is_read_without_any_other(tmp_path: Path) -> None:
    space = taught("animals", "birds")
    teach(space, "alone", sharing=False)
    teach(space, "cars")
    space.save(tmp_path)
    for other in ("000-animals", "001-birds", "003-cars"):
        (tmp_path / "tasks" / f"{other}.safetensors").unlink()
    assert torch.equal(logits(SharedSpace.load(tmp_path), "alone"), logits(space, "alone"))


def test_a_task_after_one_alone_does_not_need_it(tmp_path: Path) -> None:
    space = taught("animals")
    teach(space, "alone", sharing=False)
    teach(space, "cars")
    space.save(tmp_path)
    (tmp_path / "tasks" / "001-alone.safetensors").unlink()
    assert torch.equal(logits(SharedSpace.load(tmp_path), "cars"), logits(space, "cars"))


def test_tasks_can_be_asked_for_in_any_order(tmp_path: Path) -> None:
    space = taught("animals", "birds", "cars", "dogs")
    space.save(tmp_path)
    for order in (("dogs", "animals", "cars", "birds"), ("birds", "dogs", "birds"), ("cars", "animals", "cars")):
        loaded = SharedSpace.load(tmp_path)
        for task in order:
            assert torch.equal(logits(loaded, task), logits(space, task))


def test_a_loaded_space_reads_its_files_from_wherever_the_process_is_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = taught("animals", "birds")
    monkeypatch.chdir(tmp_path)
    space.save("life.nacre")
    loaded = SharedSpace.load("life.nacre")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    taught("other").save("life.nacre")  # must not be mistaken for the first
    assert_same(loaded, space)
    loaded.save("copy.nacre")
    assert_same(SharedSpace.load("copy.nacre"), space)


def test_an_empty_folder_becomes_a_store_and_missing_parents_are_made(tmp_path: Path) -> None:
    space = taught("animals")
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "a" / "b" / "c"):
        space.save(folder)
        assert_same(SharedSpace.load(folder), space)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_to_an_empty_place_becomes_a_store_where_it_leads(there: bool, tmp_path: Path) -> None:
    """As somebody makes whose home is small and whose other disk is large."""
    disk = tmp_path / "disk" / "life"
    if there:
        disk.mkdir(parents=True)
    (tmp_path / "link").symlink_to(disk)
    for tasks in (["animals"], ["animals", "birds"]):
        taught(*tasks).save(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert SharedSpace.load(disk).tasks == tuple(tasks)
    assert [path.name for path in disk.parent.iterdir()] == ["life"]


def test_a_space_without_tasks_is_saved_and_goes_on(tmp_path: Path) -> None:
    new_space().save(tmp_path / "s")
    loaded = SharedSpace.load(tmp_path / "s")
    assert loaded.tasks == ()
    teach(loaded, "animals")
    loaded.save(tmp_path / "s")
    assert_same(SharedSpace.load(tmp_path / "s"), loaded)


def test_on_a_dense_base_a_loaded_space_trains_what_it_will_answer_with(tmp_path: Path) -> None:
    new_space("backbone").save(tmp_path / "s")
    loaded = SharedSpace.load(tmp_path / "s")
    network = loaded.expand(nn.Linear(5, 3)).eval()
    with torch.no_grad():
        trained = network(INPUTS)
    loaded.append("animals", network)
    assert torch.allclose(logits(loaded, "animals"), trained, atol=1e-6)
    loaded.save(tmp_path / "s")
    assert torch.equal(logits(SharedSpace.load(tmp_path / "s"), "animals"), logits(loaded, "animals"))


# the same learning is the same bytes


def test_another_process_that_learns_the_same_writes_the_same_bytes(tmp_path: Path) -> None:
    for seed in ("1", "2"):  # of Python's hashes: no order may depend on them
        play("learn", tmp_path / seed, hash_seed=seed)
    first, second = (sorted((tmp_path / seed / "tasks").iterdir()) for seed in ("1", "2"))
    assert [path.name for path in first] == ["000-animals.safetensors", "001-birds.safetensors"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_learning_goes_on_after_loading_as_if_nothing_had_been_saved(tmp_path: Path) -> None:
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    first, second = (inputs, (inputs[:, 0] > 0).long()), (inputs, (inputs[:, 1] > 0).long())
    recipe = nacre.Recipe(epochs=2)
    files = []
    for reload in (False, True):
        folder = tmp_path / str(reload)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            backbone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        learner = nacre.Learner(backbone, seed=7, device="cpu", progress=False)
        learner.learn("animals", first, recipe=recipe)
        learner.save(folder)
        if reload:
            learner = nacre.Learner.load(folder, device="cpu", progress=False)
        learner.learn("birds", second, recipe=recipe)
        learner.save(folder)
        files.append([path.read_bytes() for path in sorted((folder / "tasks").iterdir())])
    assert len(files[0]) == 2
    assert files[0] == files[1]


# networks and heads of one's own


class Mask(nn.Module):
    """A backbone nobody can describe; its two parts hold the same buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 5)
        mask = torch.tensor([1.0, 0, 1, 1, 0, 1])
        self.register_buffer("mask", mask)
        self.first.register_buffer("mask", mask)

    def forward(self, inputs: Tensor) -> Tensor:
        answer: Tensor = self.second(self.first(inputs) * self.first.mask)
        return answer


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, features: Tensor) -> Tensor:
        answer: Tensor = self.linear(features).tanh()
        return answer


def test_networks_and_heads_of_ones_own_are_asked_for_and_then_give_the_same_bits(tmp_path: Path) -> None:
    space = SharedSpace(Mask())
    space.append("animals", space.expand(Head()))
    space.save(tmp_path / "s")
    with pytest.raises(NacreError, match=r"Mask of your own.*backbone="):
        SharedSpace.load(tmp_path / "s")
    without_head = SharedSpace.load(tmp_path / "s", backbone=Mask())
    with pytest.raises(NacreError, match="heads="):
        without_head.network("animals")
    loaded = SharedSpace.load(tmp_path / "s", backbone=Mask(), heads={"animals": Head()})
    assert_same(loaded, space)
    with pytest.raises(NacreError, match="does not fit"):
        SharedSpace.load(tmp_path / "s", backbone=nn.Sequential(nn.Linear(6, 6)))
    teach(loaded, "birds")
    loaded.save(tmp_path / "s")
    again = SharedSpace.load(tmp_path / "s", backbone=Mask(), heads={"animals": Head()})
    assert_same(again, loaded)


def test_inputs_whose_names_no_argument_can_have_are_refused() -> None:
    class Any_(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 5)

        def forward(self, **inputs: Tensor) -> Tensor:
            answer: Tensor = self.linear(next(iter(inputs.values())))
            return answer

    space = SharedSpace(Any_())
    for name in ("a b", "x=1)\nimport os\n(y", "class", ""):
        with pytest.raises(NacreError, match="argument"):
            space.expand(nn.Linear(5, 3))({name: INPUTS})
    network = space.expand(nn.Linear(5, 3))
    network({"pixels": INPUTS})
    space.append("animals", network)
    assert space.network("animals")({"pixels": INPUTS}).shape == (5, 3)


# names of tasks

texts = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)


@settings(deadline=None, max_examples=40)
@given(st.lists(texts, min_size=1, max_size=2, unique=True))
@example(["/", "..", ".", "\\", "~", "-", "*", "?", "%00", "$HOME", "`id`"])
@example(
    ["../../x", "/etc/passwd", "tasks/../../x", "a\0b", "\0", "C:\\x", "x" * 300, "é" * 300, ".hidden", " a ", "a"]
)
@example(
    ["CON", "nul.txt", "com1", "a.", "a\nb", "\u202exe", "é", "e\u0301", "A", "👩‍👩‍👧", "日本", "\ufeff", "space.json"]
)
def test_any_text_is_a_name_and_never_a_path(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "life.nacre"
        space = SharedSpace(nn.Sequential(nn.Linear(2, 2)))
        for name in names:
            space.append(name, space.expand(nn.Linear(2, 2), rank=1))
            space.save(folder)
        files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        task_files = sorted(set(files) - {"space.json", store.LOCK})
        assert [path.name for path in Path(parent).iterdir()] == ["life.nacre"]
        assert len(task_files) == len(names)
        assert all(TASK_FILE.fullmatch(file) for file in task_files)
        assert len({file.lower() for file in task_files}) == len(names), "some disks do not tell capitals apart"
        loaded = SharedSpace.load(folder)
        assert loaded.tasks == tuple(names)
        for name in names:
            assert torch.equal(loaded.network(name)(INPUTS[:, :2]), space.network(name)(INPUTS[:, :2]))


@pytest.mark.parametrize("name", ["", " ", "\t\n", "\u3000", "\udc80", None, 3, b"a", ["a"]], ids=repr)
def test_what_is_no_text_or_blank_is_no_name(name: Any) -> None:
    space = taught("animals")
    network = space.expand(nn.Linear(5, 3))
    with pytest.raises(NacreError, match="name"):
        space.append(name, network)
    assert space.tasks == ("animals",)


def test_a_name_used_twice_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    space = taught("animals")
    before = logits(space, "animals")
    with pytest.raises(NacreError, match=r"'animals' is already learnt"):
        teach(space, "animals")
    assert torch.equal(logits(space, "animals"), before)


# what is no store, or a later nacre's


@pytest.mark.parametrize("version", [2, 17, 10**30])
def test_a_later_format_is_named_as_that(version: int, tmp_path: Path) -> None:
    taught("animals").save(tmp_path)
    change_index(tmp_path, lambda index: index.update(version=version))
    with pytest.raises(NacreError, match=rf"version {version}.*up to 1.*newer nacre"):
        SharedSpace.load(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(NacreError, match="newer nacre"):
        taught("animals", "birds").save(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("version", [0, -1, "1", "2", None, [], 1.5, 2.0])
def test_a_version_that_never_was_is_damage(version: Any, tmp_path: Path) -> None:
    taught("animals").save(tmp_path)
    change_index(tmp_path, lambda index: index.update(version=version))
    with pytest.raises(NacreError, match=r"space\.json is damaged"):
        SharedSpace.load(tmp_path)


@pytest.mark.parametrize("facts", ["missing", None, [], 7, "text"])
def test_facts_that_are_no_object_are_damage(facts: Any, tmp_path: Path) -> None:
    taught("animals").save(tmp_path)
    change_index(tmp_path, lambda index: index.pop("facts") if facts == "missing" else index.update(facts=facts))
    for load in (SharedSpace.load, nacre.Learner.load):
        with pytest.raises(NacreError, match=r"space\.json is damaged"):
            load(tmp_path)
    (problem,) = verify(tmp_path)
    assert "space.json is damaged" in problem


def test_what_is_no_store_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("hello")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "space.json").write_text('{"format": "something else"}')
    for name, said in {
        "missing": "missing does not exist; a store is made by",
        "empty": "empty has no space.json, so it is no nacre store",
        "file": "file has no space.json, so it is no nacre store",
        "other": "space.json is damaged: it is not the index of a nacre store",
    }.items():
        with pytest.raises(NacreError, match=said):
            SharedSpace.load(tmp_path / name)
        with pytest.raises(NacreError, match=said):
            nacre.Learner.load(tmp_path / name)
        assert len(verify(tmp_path / name)) == 1


def test_saving_into_a_folder_of_something_else_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    (tmp_path / "file").write_text("hello")
    for name in ("photos", "file"):
        with pytest.raises(NacreError, match=name):
            taught("animals").save(tmp_path / name)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        "file",
        "photos",
        "photos/cat.jpg",
    ]


def test_saving_over_another_space_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    taught("animals", "birds").save(tmp_path)
    before = snapshot(tmp_path)
    wider = new_space(width=9)
    teach(wider, "animals")
    others = [
        taught("cars"),  # other tasks
        taught("birds", "animals"),  # in another order
        taught("animals"),  # fewer tasks
        wider,  # another backbone
        new_space(width=9),
        new_space("backbone"),
        taught("animals", "birds", base="backbone"),
    ]
    for other in others:
        with pytest.raises(NacreError, match=r"another space|another writer"):
            other.save(tmp_path)
    assert snapshot(tmp_path) == before
    elsewhere = others[0]
    elsewhere.save(tmp_path.with_name(tmp_path.name + "-elsewhere"))
    assert elsewhere.tasks == ("cars",)


# more than one process


def play(role: str, *arguments: object, hash_seed: str = "0") -> str:
    """Runs this file as another process, to its end."""
    command = [sys.executable, __file__, role, *map(str, arguments)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Player:
    """This file as another process that goes on while the test does."""

    def __init__(self, role: str, *arguments: object) -> None:
        command = [sys.executable, __file__, role, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, line: str) -> None:
        stream: IO[str] | None = self.process.stdin
        assert stream is not None
        stream.write(line + "\n")
        stream.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_writer_waits_for_another_process_and_then_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_PATIENCE_S", 0.1)
    folder = tmp_path / "life.nacre"
    space = taught("animals")
    space.save(folder)
    with Player("hold", folder) as holder:
        assert holder.hear() == "held"
        before = snapshot(folder)
        teach(space, "birds")
        with pytest.raises(NacreError, match=r"being written by another process"):
            space.save(folder)
        assert snapshot(folder) == before
        loaded = SharedSpace.load(folder)  # readers never block
        assert torch.equal(logits(loaded, "animals"), logits(space, "animals"))
        assert verify(folder) == []
        space.save(tmp_path / "elsewhere")
        assert_same(SharedSpace.load(tmp_path / "elsewhere"), space)
        holder.process.send_signal(signal.SIGKILL)
        holder.process.wait()
    space.save(folder)  # a killed writer holds nothing any more
    assert_same(SharedSpace.load(folder), space)


def test_a_writer_is_waited_for_while_it_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_PATIENCE_S", 60.0)
    space = taught("animals")
    space.save(tmp_path / "s")
    teach(space, "birds")
    with Player("hold", tmp_path / "s") as holder:
        assert holder.hear() == "held"
        saving = threading.Thread(target=lambda: space.save(tmp_path / "s"))
        saving.start()
        holder.tell("let go")
        saving.join(60)
    assert SharedSpace.load(tmp_path / "s").tasks == ("animals", "birds")


def test_the_second_of_two_that_loaded_the_same_store_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "life.nacre"
    taught("animals").save(folder)
    mine = SharedSpace.load(folder)
    play("append", folder, "theirs")
    before = snapshot(folder)
    teach(mine, "mine")
    with pytest.raises(NacreError, match=r"task 1 is 'theirs'.*here it is 'mine'"):
        mine.save(folder)
    assert snapshot(folder) == before
    assert mine.tasks == ("animals", "mine")
    mine.save(tmp_path / "elsewhere")
    assert_same(SharedSpace.load(tmp_path / "elsewhere"), taught("animals", "mine"))
    assert_same(SharedSpace.load(folder), taught("animals", "theirs"))


def test_a_task_that_another_process_added_is_not_lost_by_saving_an_older_state(tmp_path: Path) -> None:
    folder = tmp_path / "life.nacre"
    taught("animals").save(folder)
    mine = SharedSpace.load(folder)
    play("append", folder, "theirs")
    before = snapshot(folder)
    with pytest.raises(NacreError, match=r"'theirs'.*another writer added it"):
        mine.save(folder)
    assert snapshot(folder) == before
    assert torch.equal(logits(mine, "animals"), logits(taught("animals"), "animals"))


def test_of_two_threads_that_append_exactly_one_wins(tmp_path: Path) -> None:
    taught("animals").save(tmp_path / "s")
    spaces = {name: SharedSpace.load(tmp_path / "s") for name in ("birds", "cars")}
    for name, space in spaces.items():
        teach(space, name)
    barrier, refused = threading.Barrier(2), []

    def save(name: str) -> None:
        barrier.wait()
        try:
            spaces[name].save(tmp_path / "s")
        except NacreError:
            refused.append(name)

    threads = [threading.Thread(target=save, args=(name,)) for name in spaces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1
    winner = ({"birds", "cars"} - set(refused)).pop()
    assert_same(SharedSpace.load(tmp_path / "s"), taught("animals", winner))
    assert verify(tmp_path / "s") == []


def test_of_two_processes_that_create_a_store_exactly_one_wins(tmp_path: Path) -> None:
    with Player("create", "birds") as one, Player("create", "cars") as other:
        assert (one.hear(), other.hear()) == ("ready", "ready")
        winners = []
        for attempt in range(12):
            folder = tmp_path / f"{attempt}.nacre"
            for player in (one, other) if attempt % 2 else (other, one):
                player.tell(str(folder))
            answers = {"birds": one.hear(), "cars": other.hear()}
            won = [name for name, answer in answers.items() if answer == "won"]
            assert len(won) == 1, answers
            lost = next(answer for answer in answers.values() if answer != "won")
            assert lost.startswith("NacreError"), answers
            assert_same(SharedSpace.load(folder), taught(*won))
            assert verify(folder) == []
            winners += won
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{i}.nacre" for i in range(12))


# what a killed writer leaves


def test_what_killed_writers_left_is_ignored_and_then_cleared(tmp_path: Path) -> None:
    folder = tmp_path / "life.nacre"
    space = taught("animals")
    space.save(folder)
    committed = (folder / "tasks" / "000-animals.safetensors").read_bytes()
    for stray in ("tasks/001-other.safetensors", "tasks/001-birds.safetensors.partial", "space.json.partial"):
        (folder / stray).write_bytes(committed[:100])
    assert SharedSpace.load(folder).tasks == ("animals",)
    assert verify(folder) == []
    teach(space, "birds")
    space.save(folder)
    assert set(snapshot(folder)) == {"space.json", "tasks/000-animals.safetensors", "tasks/001-birds.safetensors"}
    assert_same(SharedSpace.load(folder), space)


def test_what_killed_creators_left_is_cleared_and_only_that(tmp_path: Path) -> None:
    unique = "0123456789abcdef" * 2
    mine = tmp_path / f".life.{unique}.partial"
    others = [
        tmp_path / f".life.nacre.{unique}.partial",  # of another store, whose writer may be at work
        tmp_path / ".life.notes.partial",
        tmp_path / f"life.{unique}.partial",
    ]
    for path in (mine, *others):
        (path / "tasks").mkdir(parents=True)
        (path / "space.json").write_text("half")
    taught("animals").save(tmp_path / "life")
    assert not mine.exists()
    assert all((path / "space.json").exists() for path in others)


def test_a_store_is_refused_as_whole_or_taken_as_whole_while_its_place_is_taken(tmp_path: Path) -> None:
    """A creator that comes second finds a store there, and leaves nothing of its own."""
    with pytest.raises(NacreError):
        taught("cars").save(Path(shutil.copytree(_saved(tmp_path), tmp_path / "copy")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "first"]


def _saved(parent: Path) -> Path:
    taught("animals").save(parent / "first")
    return parent / "first"


# no space, no permission


def test_a_limit_on_file_sizes_fails_cleanly_at_every_write(tmp_path: Path) -> None:
    assert play("no-space", tmp_path).splitlines()[-1] == "fine"


@contextlib.contextmanager
def small_disk(parent: Path, kilobytes: int) -> Iterator[Path]:
    """A file system of its own; skips where a process may not mount one."""
    place = parent / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this process may not mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    with small_disk(tmp_path, 256) as disk:
        space = taught("animals")
        space.save(disk / "life.nacre")
        before = snapshot(disk)
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        teach(space, "birds")
        with pytest.raises(NacreError, match=r"No space left.*as it was before"):
            space.save(disk / "life.nacre")
        with pytest.raises(NacreError, match="No space left"):
            space.save(disk / "another.nacre")
        assert {file: state for file, state in snapshot(disk).items() if file != "filler"} == before
        assert sorted(path.name for path in disk.iterdir()) == ["filler", "life.nacre"]
        assert SharedSpace.load(disk / "life.nacre").tasks == ("animals",)
        filler.unlink()
        space.save(disk / "life.nacre")
        assert_same(SharedSpace.load(disk / "life.nacre"), space)
        assert verify(disk / "life.nacre") == []


def test_a_file_system_that_is_read_only_can_be_read(tmp_path: Path) -> None:
    with small_disk(tmp_path, 256) as disk:
        space = taught("animals")
        space.save(disk / "life.nacre")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        loaded = SharedSpace.load(disk / "life.nacre")
        assert_same(loaded, space)
        assert verify(disk / "life.nacre") == []
        teach(loaded, "birds")
        for name in ("life.nacre", "another.nacre"):
            with pytest.raises(NacreError, match=r"could not be written: Read-only.*still in memory"):
                loaded.save(disk / name)
        loaded.save(tmp_path / "elsewhere")
        assert SharedSpace.load(tmp_path / "elsewhere").tasks == ("animals", "birds")


def test_a_folder_that_may_not_be_written_is_an_error(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    space = taught("animals")
    space.save(tmp_path / "s")
    teach(space, "birds")
    for path in (tmp_path / "s", tmp_path / "s" / "tasks", tmp_path):
        path.chmod(0o500)
    try:
        for name in ("s", "another"):
            with pytest.raises(NacreError, match="could not be written: Permission denied"):
                space.save(tmp_path / name)
        assert SharedSpace.load(tmp_path / "s").tasks == ("animals",)
    finally:
        for path in (tmp_path, tmp_path / "s", tmp_path / "s" / "tasks"):
            path.chmod(0o700)


# no code from a file

FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_METHODS = {"torch.load", "torch.save", "torch.jit.load", "np.load", "numpy.load"}


def code_runners(source: str) -> list[str]:
    """What in a module could run code out of a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module] if node.module and node.module.split(".")[0] in FORBIDDEN_MODULES else []
            found += [alias.name for alias in node.names if f"{node.module}.{alias.name}" in FORBIDDEN_METHODS]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found += [node.func.id] if node.func.id in FORBIDDEN_CALLS else []
        elif isinstance(node, ast.Attribute):
            found += [called] if (called := ast.unparse(node)) in FORBIDDEN_METHODS else []
    return found


def test_nothing_in_nacre_unpickles_or_evaluates() -> None:
    sources = sorted(Path(nacre.__file__).parent.rglob("*.py"))
    assert len(sources) > 20
    assert {str(path): found for path in sources if (found := code_runners(path.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import load",
        "from torch import load",
        "import torch\ntorch.load('x')",
        "eval('1')",
        "torch.jit.load('x')",
    ],
)
def test_the_search_for_code_runners_finds_them(source: str) -> None:
    assert code_runners(source) != []


# the roles of a second process


def role_learn(folder: str) -> None:
    taught("animals", "birds").save(folder)


def role_append(folder: str, name: str) -> None:
    space = SharedSpace.load(folder)
    teach(space, name)
    space.save(folder)


def role_hold(folder: str) -> None:
    with FileLock(Path(folder) / store.LOCK):
        print("held", flush=True)
        sys.stdin.readline()


def role_create(name: str) -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        space = taught(name)
        try:
            space.save(line.strip())
            answer = "won"
        except NacreError as error:
            answer = f"NacreError {error}"
        print(answer, flush=True)


def role_no_space(parent: str) -> None:
    """Saves under every limit on the size of a file at which another write fails."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    for rank, tasks in ((5, 1), (0, 14)):  # a task's file larger than the index, and smaller
        folder = Path(parent) / f"rank-{rank}"
        names = [f"task {number}" for number in range(tasks)]
        space = new_space()
        for position, name in enumerate(names):
            teach(space, name, rank=rank)
            if position == 0:
                space.save(Path(parent) / f"first-{rank}")
                largest = max(file.stat().st_size for file in (Path(parent) / f"first-{rank}").rglob("*.*"))
                _try_limits(space, folder, hard, [0, 1, 100, 1000, largest - 1], [])
            space.save(folder)
        teach(space, "last", rank=rank)
        space.save(Path(parent) / f"probe-{rank}")
        probe = Path(parent) / f"probe-{rank}"
        index_bytes = (probe / "space.json").stat().st_size
        task_bytes = next((probe / "tasks").glob("*-last.safetensors")).stat().st_size
        assert (task_bytes > index_bytes) == (rank == 5), (task_bytes, index_bytes)
        limits = [
            0,
            1,
            min(task_bytes, index_bytes) - 1,
            (task_bytes + index_bytes) // 2,
            max(task_bytes, index_bytes) - 1,
        ]
        _try_limits(space, folder, hard, limits, names)
        space.save(folder)
        assert_same(SharedSpace.load(folder), space)
        assert verify(folder) == []
    print("fine")


def _try_limits(space: SharedSpace, folder: Path, hard: int, limits: list[int], names: list[str]) -> None:
    before = snapshot(folder) if folder.exists() else None
    for limit in limits:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(NacreError, match="File too large"):
                space.save(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert not list(folder.parent.rglob("*.partial")), "a partial file remains"
        if before is None:
            assert not folder.exists()
            continue
        committed = {file: state for file, state in snapshot(folder).items() if "-last" not in file}
        assert committed == before
        assert verify(folder) == []
        loaded = SharedSpace.load(folder)
        assert list(loaded.tasks) == names
        assert torch.equal(logits(loaded, names[-1]), logits(space, names[-1]))


ROLES: dict[str, Callable[..., None]] = {
    "learn": role_learn,
    "append": role_append,
    "hold": role_hold,
    "create": role_create,
    "no-space": role_no_space,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    ROLES[sys.argv[1]](*sys.argv[2:])
