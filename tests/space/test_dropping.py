"""The last task can be dropped, and nothing else: no earlier one; and who was late does not undo it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nacre import NacreError, SharedSpace
from nacre.space import drop, store, verify
from nacre.space.store import read_index

TASKS = 3
LATER = "2030-01-01T00:00:00+00:00"
INPUTS = torch.linspace(-2, 2, 5 * 6).view(5, 6)


def backbone() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))


def new_space() -> SharedSpace:
    return SharedSpace(backbone())


def learn_next(space: SharedSpace, created: str | None = None) -> None:
    """Appends the task that is drawn from its number: the same bits each time; `created` in place of now."""
    number = len(space.tasks)
    torch.manual_seed(number)
    space.append(f"task {number}", space.expand(nn.Linear(5, 3)))
    if created is not None:
        space._entries[f"task {number}"].created = created


def answers(space: SharedSpace, tasks: int) -> list[Tensor]:
    with torch.no_grad():
        return [space.network(f"task {number}")(INPUTS) for number in range(tasks)]


def assert_holds(space: SharedSpace, tasks: int) -> None:
    """The first so many tasks, to the bit."""
    never_dropped = new_space()
    for _ in range(tasks):
        learn_next(never_dropped)
    assert space.tasks == never_dropped.tasks
    found, wanted = answers(space, tasks), answers(never_dropped, tasks)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def a_store(folder: Path, tasks: int = TASKS) -> Path:
    space = new_space()
    for _ in range(tasks):
        learn_next(space)
    space.save(folder)
    return folder


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return a_store(tmp_path / "life.nacre")


def test_the_last_task_is_gone_and_every_other_file_is_as_it_was(folder: Path) -> None:
    files = {path.name: path.read_bytes() for path in (folder / "tasks").iterdir()}
    freed = drop(folder, "task 2")
    left = {path.name: path.read_bytes() for path in (folder / "tasks").iterdir()}
    assert freed == len(files.pop("002-task-2.safetensors"))
    assert left == files
    assert verify(folder) == []
    assert_holds(SharedSpace.load(folder), 2)


def test_a_store_goes_on_after_a_drop_and_may_be_dropped_to_nothing(folder: Path) -> None:
    drop(folder, "task 2")
    space = SharedSpace.load(folder)
    learn_next(space, LATER)  # the same bits, learnt at another time
    space.save(folder)
    assert_holds(SharedSpace.load(folder), 3)
    for number in (2, 1, 0):
        drop(folder, f"task {number}")
        assert verify(folder) == []
    space = SharedSpace.load(folder, backbone=backbone())  # where its first task starts from is kept in no file
    assert space.tasks == ()
    assert list((folder / "tasks").iterdir()) == []
    learn_next(space, LATER)
    space.save(folder)
    assert_holds(SharedSpace.load(folder), 1)
    assert [gone["name"] for gone in read_index(folder)["dropped"]] == ["task 2", "task 2", "task 1", "task 0"]


def test_an_earlier_task_is_kept_and_the_reason_said(folder: Path) -> None:
    before = (folder / "space.json").read_bytes()
    with pytest.raises(
        NacreError, match="'task 1', 'task 2' were learnt after it and would answer otherwise"
    ) as caught:
        drop(folder, "task 0")
    assert "Only the last one can: 'task 2'" in str(caught.value)
    assert (folder / "space.json").read_bytes() == before
    assert_holds(SharedSpace.load(folder), TASKS)


def test_a_task_on_which_none_stands_is_kept_too_for_another_reason(tmp_path: Path) -> None:
    space = new_space()
    for name in ("a", "b"):
        space.append(name, space.expand(nn.Linear(5, 3), sharing=False))
    space.save(tmp_path / "alone.nacre")
    with pytest.raises(NacreError, match="a store gives up tasks from its end"):
        drop(tmp_path / "alone.nacre", "a")


def test_a_name_of_no_task_is_answered_with_those_there_are(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NacreError, match="no task is called 'task 7'; the tasks are 'task 0', 'task 1', 'task 2'"):
        drop(folder, "task 7")
    with pytest.raises(NacreError, match="does not exist"):
        drop(tmp_path / "nowhere", "task 0")
    (tmp_path / "folder").mkdir()
    with pytest.raises(NacreError, match="is no nacre store"):
        drop(tmp_path / "folder", "task 0")
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize("more", [0, 1])
def test_who_loaded_before_a_drop_cannot_bring_the_task_back(folder: Path, more: int, tmp_path: Path) -> None:
    late = SharedSpace.load(folder)
    late.record("task 2")  # in memory
    for _ in range(more):
        learn_next(late)
    drop(folder, "task 2")
    after = (folder / "space.json").read_bytes()
    (tmp_path / "another name.nacre").symlink_to(folder)
    for place in (folder, tmp_path / "another name.nacre"):
        with pytest.raises(NacreError, match=r"task 'task 2' was dropped from .* load the store again"):
            late.save(place)
    assert (folder / "space.json").read_bytes() == after
    assert_holds(SharedSpace.load(folder), 2)


def test_that_it_was_dropped_outlives_further_tasks(folder: Path) -> None:
    late = SharedSpace.load(folder)
    late.record("task 2")
    drop(folder, "task 2")
    again = SharedSpace.load(folder)
    learn_next(again, LATER)
    again.save(folder)
    drop(folder, "task 2")
    with pytest.raises(NacreError, match="was dropped"):
        late.save(folder)


def test_a_forged_list_of_dropped_tasks_is_a_damaged_index(folder: Path) -> None:
    index = {**read_index(folder), "dropped": [{"sha256": 1, "created": "now"}]}
    (folder / "space.json").write_bytes(store.signed(index))
    with pytest.raises(NacreError, match=r"space\.json is damaged"):
        read_index(folder)
