"""Damage to any byte of any file of a store: the file is named, or nothing is different. Never a wrong answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nacre import NacreError, SharedSpace
from nacre.space import store, verify

INDEX, BASE, LOCK = store.INDEX, store.BASE_FILE, store.LOCK
INPUTS = torch.arange(10).view(5, 2) % 7
# what each task's network is made of: alone and dense stand on nothing, cars on all that share
NEEDS = {
    "animals": {"tasks/000-animals.safetensors"},
    "birds": {"tasks/000-animals.safetensors", "tasks/001-birds.safetensors"},
    "alone": {"tasks/002-alone.safetensors"},
    "dense": {"tasks/003-dense.safetensors"},
    "cars": {"tasks/000-animals.safetensors", "tasks/001-birds.safetensors", "tasks/004-cars.safetensors"},
}
Bits = dict[str, Tensor]


class Whole:
    """A store that nobody damages, and what its tasks answer; `other`: one of other tasks with the same names."""

    def __init__(self, folder: Path, base: Literal["zero", "backbone"], seed: int, other: Whole | None = None) -> None:
        learnt(base, seed, folder)
        self.folder, self.other = folder, other
        self.bits = {task: bits(SharedSpace.load(folder), task) for task in NEEDS}
        self.files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if path.name != LOCK)
        with_base = [BASE] if base == "backbone" else []
        assert self.files == sorted([INDEX, *with_base, *set().union(*NEEDS.values())])
        assert (folder / LOCK).exists()


def learnt(base: Literal["zero", "backbone"], seed: int, folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts: dict[str, nn.Module] = {"emb": nn.Embedding(7, 3), "flat": nn.Flatten(), "fc1": nn.Linear(6, 8)}
        parts |= {"norm": nn.BatchNorm1d(8), "act": nn.ReLU(), "fc2": nn.Linear(8, 5)}
        space = SharedSpace(nn.Sequential(OrderedDict(parts)), base=base)
        for task in NEEDS:
            torch.manual_seed(zlib.crc32(task.encode()) + seed)
            rank = None if task == "dense" else {"fc1": 2, "fc2": 0} if task == "birds" else 2
            network = space.expand(nn.Linear(5, 3), rank=rank, sharing=task != "alone", dense=task == "dense")
            optimizer = torch.optim.SGD(network.parameters(), 0.1)
            network(torch.randint(7, (16, 2))).square().sum().backward()
            optimizer.step()
            space.append(task, network, classes=["cat", "dog", "cow"])
            space.save(folder)


def bits(space: SharedSpace, task: str) -> Bits:
    """All that decides a task's answers, and the answers."""
    network = space.network(task)
    with torch.no_grad():
        return {**network.state_dict(), "answers": network(INPUTS)}


def same(one: Bits, other: Bits) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module", params=["zero", "backbone"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    parent = tmp_path_factory.mktemp("stores")
    return Whole(parent / "life", request.param, 0, Whole(parent / "other", request.param, 1))


@contextlib.contextmanager
def copied(whole: Whole) -> Iterator[Path]:
    """A copy to damage, for at most as long as nothing hangs."""

    def hangs(*_: object) -> None:
        raise AssertionError("reading a damaged store hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, 30)
    try:
        with tempfile.TemporaryDirectory() as parent:
            yield shutil.copytree(whole.folder, Path(parent) / "life.nacre")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcomes(folder: Path) -> tuple[dict[str, Bits], dict[str, str]]:
    """What each task answers, and what was said where it does not; anything but a NacreError is raised."""
    answered: dict[str, Bits] = {}
    refused: dict[str, str] = {}
    try:
        space = SharedSpace.load(folder)
    except NacreError as error:
        return {}, dict.fromkeys(NEEDS, str(error))
    for task in reversed(NEEDS):  # the one that needs most first: an error must spoil nothing for the others
        try:
            answered[task] = bits(space, task)
        except NacreError as error:
            refused[task] = str(error)
    return answered, refused


def contents(folder: Path, files: list[str]) -> dict[str, bytes | None]:
    return {file: (folder / file).read_bytes() if (folder / file).is_file() else None for file in files}


def check(whole: Whole, folder: Path) -> None:
    """Whatever depends on a changed file is refused by that file's name; everything else is as it was."""
    old, new = contents(whole.folder, whole.files), contents(folder, whole.files)
    if whole.other is not None and new[INDEX] == (whole.other.folder / INDEX).read_bytes():
        check(whole.other, folder)  # a good index: it is the other files that are wrong
        return
    changed = {file for file in old if old[file] != new[file]}
    answered, refused = outcomes(folder)
    assert all(same(whole.bits[task], came) for task, came in answered.items()), "a wrong answer"
    for task, needs in NEEDS.items():
        guilty = changed & {INDEX, BASE, *needs}
        assert (task in refused) == bool(guilty), (task, refused)
        assert not guilty or any(file in refused[task] for file in guilty), (guilty, refused[task])
    problems = verify(folder)
    expected = {INDEX} if INDEX in changed else changed  # without an index nothing is known of the others
    assert len(problems) == len(expected)
    assert all(sum(file in problem for problem in problems) == 1 for file in expected), problems


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@settings(deadline=None, max_examples=120)
@given(data=st.data())
def test_damage_is_named_or_changes_nothing(whole: Whole, data: st.DataObject) -> None:
    with copied(whole) as folder:
        for _ in range(data.draw(st.integers(1, 2))):
            file = data.draw(st.sampled_from([*whole.files, LOCK]))
            path, size = folder / file, (whole.folder / file).stat().st_size
            place, some = st.integers(0, max(0, size - 1)), st.binary(min_size=1, max_size=8)
            match data.draw(
                st.sampled_from(["flip", "truncate", "append", "insert", "cut", "delete", "swap", "other"])
            ):
                case "flip" if size:
                    at, mask = data.draw(place), data.draw(st.integers(1, 255))
                    edit(path, lambda b: b[:at] + bytes(x ^ mask for x in b[at : at + 1]) + b[at + 1 :])
                case "truncate":
                    at = data.draw(place)
                    edit(path, lambda b: b[:at])
                case "append":
                    more = data.draw(some)
                    edit(path, lambda b: b + more)
                case "insert":
                    at, more = data.draw(place), data.draw(some)
                    edit(path, lambda b: b[:at] + more + b[at:])
                case "cut":
                    at, length = data.draw(place), data.draw(st.integers(1, 8))
                    edit(path, lambda b: b[:at] + b[at + length :])
                case "delete":
                    path.unlink()
                    break
                case "swap":
                    other = folder / data.draw(st.sampled_from(whole.files))
                    one, two = path.read_bytes(), other.read_bytes()
                    path.write_bytes(two)
                    other.write_bytes(one)
                case "other":
                    assert whole.other is not None
                    shutil.copy(whole.other.folder / file, path)
        check(whole, folder)


def test_a_single_bit_is_seen_wherever_it_is(whole: Whole) -> None:
    with copied(whole) as folder:
        for file in whole.files:
            good = (folder / file).read_bytes()
            for place in range(0, 8 * len(good), 8 * len(good) // 61):
                changed = bytearray(good)
                changed[place // 8] ^= 1 << place % 8
                (folder / file).write_bytes(changed)
                (problem,) = verify(folder)
                assert file in problem
            (folder / file).write_bytes(good)
        check(whole, folder)


def as_folder(path: Path) -> None:
    path.mkdir()


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def as_link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


def as_endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


NO_FILES = (as_folder, as_pipe, as_link_to_itself, as_link_to_nothing, as_endless_device)


@pytest.mark.parametrize("become", NO_FILES, ids=lambda become: become.__name__)
def test_what_is_no_file_is_refused_by_name_and_never_waited_for(whole: Whole, become: Callable[[Path], None]) -> None:
    for file in whole.files:
        with copied(whole) as folder:
            (folder / file).unlink()
            become(folder / file)
            check(whole, folder)


def test_a_file_where_the_folder_of_tasks_should_be_is_named(whole: Whole) -> None:
    with copied(whole) as folder:
        shutil.rmtree(folder / store.TASKS)
        (folder / store.TASKS).write_text("hello")
        check(whole, folder)


def test_a_link_to_the_same_bytes_is_as_good_as_the_file(whole: Whole) -> None:
    with copied(whole) as folder:
        for file in whole.files:
            (folder / file).unlink()
            (folder / file).symlink_to(whole.folder / file)
        check(whole, folder)


def test_other_files_in_the_folder_and_the_lock_are_not_the_store(whole: Whole) -> None:
    with copied(whole) as folder:
        (folder / LOCK).unlink()
        (folder / "notes.txt").write_text("hello")
        (folder / "tasks" / "005-more.safetensors").write_bytes(b"not one")
        (folder / "tasks" / "000-animals.safetensors.partial").write_bytes(b"half of one")
        check(whole, folder)


def test_damage_after_loading_is_seen_when_the_file_is_read(whole: Whole) -> None:
    with copied(whole) as folder:
        space = SharedSpace.load(folder)
        before = bits(space, "animals")
        birds = folder / "tasks" / "001-birds.safetensors"
        good = birds.read_bytes()
        birds.write_bytes(bytes([*good[:-1], good[-1] ^ 1]))
        for task in ("birds", "cars"):
            with pytest.raises(NacreError, match="001-birds"):
                space.network(task)
        assert same(bits(space, "animals"), before)
        birds.write_bytes(good)
        assert same(bits(space, "cars"), whole.bits["cars"]), "once the file is back, all is well again"
