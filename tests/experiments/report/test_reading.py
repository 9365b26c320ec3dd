"""Run folders of every state are read: finished, unfinished, damaged, in a grid, with files missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nacre import NacreError, SharedSpace
from nacre.experiments.report.runs import read_run, read_runs
from nacre.experiments.report.stored import kept_values, read_store

MakeRun = Callable[..., Path]


def test_sizes_ranks_and_singular_values_are_those_of_the_space(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run") / "seed-0" / "life.nacre"
    space, stored, kept = SharedSpace.load(folder), read_store(folder), kept_values(folder)
    assert tuple(task.name for task in stored.tasks) == space.tasks
    assert stored.megabytes == pytest.approx(space.size().megabytes, rel=1e-12)
    assert stored.disk == space.size().disk
    for at, task in enumerate(stored.tasks):
        assert task.ranks == space.ranks(task.name)
        assert task.megabytes == pytest.approx(space.size(task.name).megabytes, rel=1e-12)
        so_far = sum(space.size(name).numbers for name in space.tasks[: at + 1]) * 4 / 1e6
        assert stored.growth()[at] == pytest.approx(so_far, rel=1e-12)
        for layer, factors in space.record(task.name).factors.items():
            np.testing.assert_array_equal(kept[task.name][layer], factors.s.numpy())


def test_a_dense_base_counts(tmp_path: Path) -> None:
    from torch import nn

    space = SharedSpace(nn.Sequential(nn.Linear(6, 8)), base="backbone")
    space.append("a", space.expand(nn.Linear(8, 2), rank=1))
    space.save(tmp_path / "store")
    assert read_store(tmp_path / "store").megabytes == pytest.approx(space.size().megabytes, rel=1e-12)


def test_what_is_unfinished_is_said_in_words(tmp_path: Path, make_run: MakeRun) -> None:
    run = read_run(make_run(tmp_path / "run", seeds=(0, 1, 5), done={1: 2, 5: -1}))
    assert [seed.seed for seed in run.finished] == [0]
    assert run.unfinished() == ["seed 1 has 2 of 3 tasks", "seed 5 has not begun"]


def test_figures_are_of_finished_seeds_or_of_the_one_that_has_come_furthest(tmp_path: Path, make_run: MakeRun) -> None:
    some = read_run(make_run(tmp_path / "some", seeds=(0, 1, 2), done={1: 2}))
    none = read_run(make_run(tmp_path / "none", seeds=(0, 1, 2), done={0: 1, 1: 2, 2: 0}))
    nothing = read_run(make_run(tmp_path / "nothing", done={0: -1}))
    assert [[seed.seed for seed in run.shown] for run in (some, none, nothing)] == [[0, 2], [1], []]


def test_of_a_run_that_has_only_its_plan_nothing_is_known_and_nothing_is_wrong(tmp_path: Path) -> None:
    plan = {"scenario": "digits", "tasks": ["a"], "method": {"name": "cacl", "settings": {}}, "seeds": [0]}
    (tmp_path / "run.json").write_text(json.dumps(plan))
    run = read_run(tmp_path)
    assert (run.seeds, run.environment, run.problems, run.protocol) == ((), {}, (), None)


def test_a_line_that_is_being_written_is_no_damage(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run")
    log = folder / "seed-0" / "epochs.jsonl"
    whole = read_run(folder).seeds[0]
    log.write_text(log.read_text() + '{"task": "0-')
    torn = read_run(folder).seeds[0]
    assert torn.epochs == whole.epochs
    assert len(torn.problems) == 1
    assert "was being written" in torn.problems[0]


@pytest.mark.parametrize("name", ["accuracy.json", "epochs.jsonl", "spectra.json"])
@pytest.mark.parametrize("content", ["{", "[[1], [2]]", '{"a": 3}\n', "[1, 2]", ""])
def test_a_damaged_file_is_named_and_the_rest_is_read(
    tmp_path: Path, make_run: MakeRun, name: str, content: str
) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "seed-0" / name).write_text(content)
    seed = read_run(folder).seeds[0]
    assert seed.stored is not None
    assert all(name in problem for problem in seed.problems)
    assert len(seed.tasks) == 3


def test_a_damaged_store_is_named(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "seed-0" / "life.nacre" / "space.json").write_text("{}")
    seed = read_run(folder).seeds[0]
    assert seed.stored is None
    assert "space.json is damaged" in " ".join(seed.problems)
    assert len(seed.matrix) == len(seed.tasks) == 3  # the log of epochs knows their order too


def test_without_a_store_the_size_is_what_the_result_says(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run", seeds=(0, 1))
    for seed in (0, 1):
        (folder / f"seed-{seed}" / "life.nacre").rename(tmp_path / f"away-{seed}")
    (folder / "result.json").write_text(json.dumps({"runs": [{"seed": 0, "megabytes": 1.5}]}))
    (folder / "seed-1" / "result.json").write_text(json.dumps({"seed": 1, "megabytes": 2.5}))
    assert [seed.megabytes for seed in read_run(folder).seeds] == [1.5, 2.5]


def test_a_grid_stands_for_its_runs_and_failures_are_told(tmp_path: Path, make_run: MakeRun) -> None:
    (tmp_path / "grid" / "empty").mkdir(parents=True)
    (tmp_path / "grid" / "grid.json").write_text("{}")
    cell = make_run(tmp_path / "grid" / "cacl", seeds=(0, 1), done={1: -1})
    (cell / "failed-seed-1.txt").write_text("Traceback ...\nnacre.NacreError: the disk is full\n")
    make_run(tmp_path / "grid" / "single", method="single")
    runs, notes = read_runs([tmp_path / "grid", cell])  # the cell named twice is read once
    assert [run.folder.name for run in runs] == ["cacl", "single"]
    assert runs[0].problems == ("seed 1 failed: nacre.NacreError: the disk is full",)
    assert len(notes) == 1
    assert "empty" in notes[0]


@pytest.mark.parametrize("plan", ["", "[]", "{}", '{"scenario": "digits", "seeds": [0], "tasks": []}', "null"])
def test_a_folder_whose_plan_cannot_be_read_is_refused_by_name(tmp_path: Path, plan: str) -> None:
    (tmp_path / "run.json").write_text(plan)
    with pytest.raises(NacreError, match=r"run\.json is damaged"):
        read_run(tmp_path)


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NacreError, match="neither a run folder"):
        read_runs([tmp_path])
    with pytest.raises(NacreError, match="does not exist"):
        read_runs([tmp_path / "nowhere"])
    (tmp_path / "grid.json").write_text("{}")
    with pytest.raises(NacreError, match="no run of the grid"):
        read_runs([tmp_path])
