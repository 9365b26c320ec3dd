"""A store outlives its writer: SIGKILL at any moment leaves a beginning of its tasks, whole and ready for the next.

Run as a script it is the parent of the writers: `python test_crash.py ROLE ARGUMENTS` imports torch once and forks a
writer for every kill, so that no kill waits for an import and the tests' own process never forks.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nacre import Factors, SharedSpace
from nacre.space import drop, verify

SHAPES = {"fc1": (8, 6), "fc2": (5, 8)}
INPUTS = torch.linspace(-2, 2, 5 * 6).view(5, 6)
SPAN = 5  # kills fall before a life's fifth task is saved
ENDLESS = 10_000  # tasks of a life that nobody ends
FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}


# what is learnt: drawn from the task's number, so that every process knows it


def drawn(number: int) -> dict[str, Tensor]:
    """All that task `number` adds. Some add nothing to a layer, and the files differ in size."""
    generator = torch.Generator().manual_seed(number)
    ranks = {"fc1": number % 4, "fc2": (number + 1) % 3}
    parts = {name: torch.randn(rows, generator=generator) for name, (rows, _) in SHAPES.items()}
    for name, (rows, columns) in SHAPES.items():
        for part, shape in (("U", (rows, ranks[name])), ("s", (ranks[name],)), ("V", (columns, ranks[name]))):
            parts[f"{name}.{part}"] = torch.randn(shape, generator=generator)
    parts["head.weight"] = torch.randn(3, 5, generator=generator)
    parts["head.bias"] = torch.randn(3, generator=generator)
    return parts


@functools.cache
def expected(number: int) -> Tensor:
    """The logits of task `number`, written out without nacre: the sum of all so far, in order."""
    weights = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    for earlier in range(number + 1):
        parts = drawn(earlier)
        for name in SHAPES:
            if len(parts[f"{name}.s"]):
                weights[name] = weights[name] + (parts[f"{name}.U"] * parts[f"{name}.s"]) @ parts[f"{name}.V"].T
    own = drawn(number)
    hidden = F.relu(F.linear(INPUTS, weights["fc1"], own["fc1"]))
    return F.linear(F.linear(hidden, weights["fc2"], own["fc2"]), own["head.weight"], own["head.bias"])


def new_space() -> SharedSpace:
    return SharedSpace(nn.Sequential(OrderedDict(fc1=nn.Linear(6, 8), act=nn.ReLU(), fc2=nn.Linear(8, 5))))


def learn_next(space: SharedSpace) -> None:
    """Appends the task that is drawn from its number."""
    parts = drawn(len(space.tasks))
    network = space.expand(nn.Linear(5, 3), rank=0)
    network.load_factors({name: Factors(*(parts[f"{name}.{part}"] for part in ("U", "s", "V"))) for name in SHAPES})
    with torch.no_grad():
        for name in SHAPES:
            network.get_parameter(f"backbone.{name}.bias").copy_(parts[name])
        for name in ("head.weight", "head.bias"):
            network.get_parameter(name).copy_(parts[name])
    space.append(f"task {len(space.tasks)}", network)


# the parent of the writers


class Writer:
    """A forked process that goes on with the store in a folder, task after task, and says when one is saved."""

    def __init__(self, folder: Path, tasks: int = ENDLESS, before: Callable[[], None] = lambda: None) -> None:
        self._hear, tell = os.pipe()
        self._heard = 0
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                before()
                space = SharedSpace.load(folder) if folder.exists() else new_space()
                for _ in range(tasks):
                    learn_next(space)
                    space.save(folder)
                    os.write(tell, b".")
                status = 0
            finally:
                os._exit(status)
        os.close(tell)

    def await_tasks(self, count: int) -> float:
        """Waits until so many more tasks were saved; the moment of the last one."""
        for _ in range(count):
            if os.read(self._hear, 1) == b"":
                raise SystemExit("the writer ended by itself")
            self._heard += 1
        return time.perf_counter()

    def kill(self) -> dict[str, Any]:
        os.kill(self._pid, signal.SIGKILL)
        return self.ended()

    def ended(self) -> dict[str, Any]:
        """How it ended, and how many tasks it has said to be saved."""
        _, status = os.waitpid(self._pid, 0)
        while part := os.read(self._hear, 4096):
            self._heard += len(part)
        os.close(self._hear)
        return {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None, "said": self._heard}


def role_moments(parent: str, count: str, way: str) -> None:
    """Kills writers at moments drawn over the creation and the first tasks of an uninterrupted life.

    Each has a store of its own, or all go on with the same one, of which a copy is kept after every kill.
    """
    here = Path(parent)
    lengths = [_measured(here / f"measured {number}") for number in range(3)]
    draw = random.Random(0)
    # a moment is 2.7: after the second task was saved, at 0.7 of the time that the third one takes
    moments = [(stratum + draw.random()) * SPAN / int(count) for stratum in range(int(count))]
    draw.shuffle(moments)
    for number, moment in enumerate(moments):
        place = here / ("the same" if way == "continued" else str(number))
        place.mkdir(exist_ok=True)
        tasks, share = int(moment), moment % 1
        writer = Writer(place / "life.nacre")
        writer.await_tasks(tasks)  # so that a machine that is slow for a while does not turn them all into early ones
        time.sleep(share * median(length[tasks] for length in lengths))
        ended = writer.kill()
        if way == "continued":
            shutil.copytree(place, here / str(number))
        print(json.dumps({"place": str(here / str(number)), **ended}), flush=True)


def _measured(place: Path) -> list[float]:
    """The seconds that each of the first tasks takes, the creation of the store in the first."""
    place.mkdir()
    start = time.perf_counter()
    writer = Writer(place / "life.nacre")
    moments = [start, *(writer.await_tasks(1) for _ in range(SPAN))]
    writer.kill()
    return [after - before for before, after in itertools.pairwise(moments)]


def role_operations(parent: str, tasks: str) -> None:
    """Kills a writer before each single thing that it does to files, one writer for each."""
    for number in range(1, 1000):
        place = Path(parent) / str(number)
        place.mkdir()
        writer = Writer(place / "life.nacre", int(tasks), lambda at=number, at_place=place: die_at(at, at_place))  # type: ignore[misc]
        ended = writer.ended()
        print(json.dumps({"place": str(place), **ended}), flush=True)
        if ended["signal"] is None:  # it has done fewer things
            return
    raise SystemExit("a life of so few tasks should have ended")


def role_drops(parent: str) -> None:
    """Kills a process that drops the last of three tasks before each single thing that it does to files."""
    origin = Path(parent) / "origin.nacre"
    space = new_space()
    for _ in range(3):
        learn_next(space)
    space.save(origin)
    for number in range(1, 1000):
        place = Path(parent) / str(number)
        shutil.copytree(origin, place / "life.nacre")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_at(number, place)
                drop(place / "life.nacre", "task 2")
                status = 0
            finally:
                os._exit(status)
        _, ended = os.waitpid(pid, 0)
        killed = os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else None
        print(json.dumps({"place": str(place), "signal": killed, "status": ended}), flush=True)
        if killed is None:
            return


def die_at(number: int, place: Path) -> None:
    """Makes this process kill itself before the numbered thing that it does to files in a place."""
    done = 0

    def watch(event: str, args: tuple[Any, ...]) -> None:
        nonlocal done
        if event in FILE_EVENTS and str(place) in str(args[0]):
            done += 1
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


ROLES: dict[str, Callable[..., None]] = {"moments": role_moments, "operations": role_operations, "drops": role_drops}


# the tests


def play(role: str, *arguments: object) -> list[dict[str, Any]]:
    """Runs this file as the writers' parent; what it says of each writer."""
    command = [sys.executable, __file__, role, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def files_in(place: Path) -> set[str]:
    return {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file() and path.name != ".lock"}


def wanted_files(tasks: int) -> set[str]:
    """Exactly what a store of so many tasks consists of."""
    names = {f"life.nacre/tasks/{number:03d}-task-{number}.safetensors" for number in range(tasks)}
    return names | ({"life.nacre/space.json"} if tasks else set())


def assert_holds(space: SharedSpace, tasks: int) -> None:
    """The first so many tasks, to the bit."""
    assert space.tasks == tuple(f"task {number}" for number in range(tasks))
    with torch.no_grad():
        for number, task in enumerate(space.tasks):
            assert torch.equal(space.network(task)(INPUTS), expected(number)), task


def assert_survived(place: Path, at_least: int, at_most: int) -> int:
    """The store of a killed writer is whole and goes on; how many tasks it holds."""
    folder = place / "life.nacre"
    space = new_space()
    if folder.exists():
        assert verify(folder) == []
        space = SharedSpace.load(folder)
    held = len(space.tasks)
    assert at_least <= held <= at_most, "a task that was said to be saved is gone"
    assert_holds(space, held)
    learn_next(space)
    space.save(folder)
    assert verify(folder) == []
    assert_holds(SharedSpace.load(folder), held + 1)
    assert files_in(place) == wanted_files(held + 1), "the killed writer's leavings stay for ever"
    return held


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", ["created", "continued"])
def test_a_store_outlives_its_writer_killed_at_random_moments(way: str, count: int, tmp_path: Path) -> None:
    ends = play("moments", tmp_path, count, way)
    assert [end["signal"] for end in ends] == [signal.SIGKILL] * count
    held, torn = [], 0
    before = 0  # what a continued store held when the writer found it
    for end in ends:
        place = Path(end["place"])
        leavings = files_in(place)
        tasks = assert_survived(place, before + end["said"], before + end["said"] + 1)
        torn += leavings != wanted_files(tasks)
        held.append(tasks - before)
        before = tasks if way == "continued" else 0
    # the moments were worth something: over the whole life, and while files were written
    print(sorted(held), torn)
    assert set(held) >= set(range(SPAN)), held
    assert torn >= count // 10, (torn, held)


def test_a_store_outlives_its_writer_killed_before_any_single_thing_it_does_to_files(tmp_path: Path) -> None:
    """What random moments may miss: between every two operations on files, from creation to the third task."""
    *ends, whole = play("operations", tmp_path, 3)
    assert whole["signal"] is None
    assert whole["said"] == 3
    assert [end["signal"] for end in ends] == [signal.SIGKILL] * len(ends)
    assert_survived(Path(whole["place"]), 3, 3)
    held, torn = [], 0
    for end in ends:
        leavings = files_in(Path(end["place"]))
        held.append(assert_survived(Path(end["place"]), end["said"], end["said"] + 1))
        torn += leavings != wanted_files(held[-1])
    assert held == sorted(held), "a later death leaves no fewer tasks"
    assert set(held) == {0, 1, 2, 3}
    assert torn > len(ends) / 3


def test_killed_while_it_drops_a_task_a_store_has_it_or_not(tmp_path: Path) -> None:
    *killed, last = ends = play("drops", tmp_path)
    assert [end["signal"] for end in killed] == [signal.SIGKILL] * len(killed)
    assert (last["signal"], last["status"]) == (None, 0)
    held = [len(SharedSpace.load(Path(end["place"]) / "life.nacre").tasks) for end in ends]
    torn = [end for end, tasks in zip(ends, held, strict=True) if files_in(Path(end["place"])) != wanted_files(tasks)]
    assert torn, "no process was killed between the index and the file"
    for end in ends:
        place = Path(end["place"])
        folder = place / "life.nacre"
        assert verify(folder) == []
        space = SharedSpace.load(folder)
        assert_holds(space, len(space.tasks))
        learn_next(space)
        space._entries[space.tasks[-1]].created = "another time"  # the bits of a task that was dropped a moment ago
        space.save(folder)
        assert verify(folder) == []
        assert_holds(SharedSpace.load(folder), len(space.tasks))
        assert files_in(place) == wanted_files(len(space.tasks)), "the killed process's leavings stay for ever"
    assert held == sorted(held, reverse=True)
    assert set(held) == {3, 2}


if __name__ == "__main__":
    torch.set_num_threads(1)
    ROLES[sys.argv[1]](*sys.argv[2:])
