"""nacre compare in real processes: every cell kept as it comes, failures kept too, gaps filled, nobody left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nacre import NacreError
from nacre.errors import WrongUsage
from nacre.experiments.cell import Cell
from nacre.experiments.folder import GRID, RUN, claim
from nacre.experiments.grid import Grid, _summaries, compare
from nacre.experiments.local import default_jobs, settings_of_place
from nacre.experiments.protocols import Dials, Options, plan
from nacre.experiments.run import run
from nacre.scenarios import Choices
from nacre.space import verify

NACRE = (sys.executable, "-m", "nacre")
DEADLINE_S = 240
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SHORT = ("--epochs", "1", "--tasks", "1")
ASKED = Options(epochs=1, tasks=1)
COMMAND = ("compare", "digits", "--methods", "cacl", "single", *SHORT)


def nacre(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NACRE, *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A grid that meets a damaged seed, and the same command again once that is gone."""
    folder = tmp_path_factory.mktemp("grid")
    out = folder / "runs" / "digits-compare"
    prepare(out)
    failed = nacre(*COMMAND, "--jobs", 2, "--json", cwd=folder)
    note = out / "single" / "failed-seed-0.txt"
    kept = note.read_text() if note.exists() else None
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("task*/*.safetensors")}
    (out / "single" / "seed-0" / "accuracy.json").unlink()
    again = nacre(*COMMAND, "--jobs", 2, cwd=folder)
    return {
        "out": out,
        "failed": failed,
        "note": kept,
        "stamps": stamps,
        "again": again,
    }


def prepare(out: Path) -> None:
    """A grid that was asked for before; one of its seeds was damaged since."""
    asked = Grid("digits", ("cacl", "single"), (), ASKED)
    claim(out, GRID, asked.to_json(), resume=False)
    claim(out / "single", RUN, asked.plans()["single"].to_json(), resume=False)
    damaged = out / "single" / "seed-0" / "accuracy.json"
    damaged.parent.mkdir()
    damaged.write_text("[[")


@pytest.mark.parametrize("jobs", [0, -1])
def test_a_number_of_jobs_that_makes_no_sense_is_refused_before_anything_is_written(jobs: int, tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match=f"--jobs is a number from 1; got {jobs}"):
        compare(Grid("digits", ("cacl",)), tmp_path / "out", jobs=jobs)
    assert not (tmp_path / "out").exists()


def test_a_failed_cell_is_reported_and_kept_and_the_others_are_finished(grid: dict[str, Any]) -> None:
    done = grid["failed"]
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "accuracy.json is damaged" in grid["note"]
    assert done.stderr.splitlines()[-1].startswith("nacre: single, seed 0 failed: ")
    result = json.loads(done.stdout)
    (failed,) = result["failed"]
    assert (failed["cell"], failed["seed"], failed["error"]) == ("single", 0, grid["note"].strip())
    assert [(cell["cell"], cell["seeds"]) for cell in result["cells"]] == [("cacl", [0])]


def test_run_again_it_learns_only_what_is_missing(grid: dict[str, Any]) -> None:
    done = grid["again"]
    assert done.returncode == 0, done.stderr
    learnt = [line for line in done.stderr.splitlines() if "epoch" not in line]  # a slow machine says how far it is
    assert [line.split(":")[0] for line in learnt] == ["single, seed 0"]
    assert not (grid["out"] / "single" / "failed-seed-0.txt").exists()
    assert len(grid["stamps"]) == 1
    assert grid["stamps"] == {path: path.stat().st_mtime_ns for path in grid["stamps"]}


def test_the_table_is_what_the_runs_say(grid: dict[str, Any]) -> None:
    title, head, _, *rows = grid["again"].stdout.splitlines()
    assert title == "digits, protocol quick"
    assert head.split() == ["method", "seeds", "ACC", "%", "BWT", "MB"]
    for row, name in zip(rows, ("cacl", "single"), strict=True):
        result = read(grid["out"] / name / "result.json")
        assert row.split() == [name, "1", "of", "1", f"{result['acc']:.2f}", "0.00", f"{result['megabytes']:.3f}"]


def test_every_cell_is_the_run_that_nacre_run_makes(grid: dict[str, Any], tmp_path: Path) -> None:
    alone = run(plan("digits", "cacl", ASKED), tmp_path / "run", progress=False)
    cell = grid["out"] / "cacl"
    assert read(cell / "run.json") == read(tmp_path / "run" / "run.json")
    assert {**read(cell / "result.json"), "seconds": 0} == {**alone, "seconds": 0}
    assert [session["seeds"] for session in read(cell / "environment.json")["sessions"]] == [[0]]
    life = Path("seed-0", "life.nacre")
    assert verify(cell / life) == []
    for path in (cell / life / "tasks").iterdir():
        assert path.read_bytes() == (tmp_path / "run" / life / "tasks" / path.name).read_bytes()


def test_a_grid_asked_for_with_other_settings_is_left_alone(grid: dict[str, Any]) -> None:
    named = r"methods was \['cacl', 'single'\], now \['cacl'\]; epochs was 1, now 2"
    with pytest.raises(NacreError, match=f"holds a grid with other settings than these: {named}"):
        compare(Grid("digits", ("cacl",), (), Options(epochs=2, tasks=1)), grid["out"])


def test_a_row_is_the_mean_of_the_seeds_that_are_finished(tmp_path: Path) -> None:
    """Nothing is left to learn but a seed that is damaged; the other two are there."""
    grid = Grid("digits", ("single",), (), Options(epochs=1, tasks=1, seeds=(0, 1, 2)))
    for seed, accuracy in ((0, 80.0), (2, 90.0)):
        result = {"seed": seed, "acc": accuracy, "bwt": 0.0, "forgetting": 0.0, "megabytes": 1.5}
        write_json_in(tmp_path / "single" / f"seed-{seed}" / "result.json", result)
    (row,) = _summaries(grid, tmp_path)
    assert (row["cell"], row["seeds"], row["acc"], row["megabytes"]) == ("single", [0, 2], 85.0, 1.5)
    assert row["std"]["acc"] == pytest.approx(50**0.5)


def write_json_in(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(data))


def test_a_killed_command_leaves_no_process_behind_and_its_grid_goes_on(tmp_path: Path) -> None:
    """SIGKILL of the parent alone. The children hold the write end of this pipe: it ends when the last of them has."""
    reading, writing = os.pipe()
    long = ("compare", "digits", "--methods", "cacl", "single", "--epochs", "2000", "--tasks", "1", "--jobs", "2")
    parent = subprocess.Popen([*NACRE, *long], cwd=tmp_path, env=ENVIRONMENT, stdout=writing, stderr=writing)
    os.close(writing)
    seeds = [tmp_path / "runs/digits-compare" / name / "seed-0" / "epochs.jsonl" for name in ("cacl", "single")]
    try:
        while not all(path.exists() for path in seeds):
            with pytest.raises(subprocess.TimeoutExpired):  # it has not ended
                parent.wait(0.05)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    said = b""
    while part := os.read(reading, 4096):
        said += part
    os.close(reading)
    assert b"Traceback" not in said
    assert (tmp_path / "runs/digits-compare/cacl/seed-0/checkpoints").exists()


def test_a_cell_goes_through_json_unchanged(tmp_path: Path) -> None:
    choices = Choices(data=tmp_path, class_order="random", holdout=0.15, augment=False, network="conv5")
    options = Options("paper", 7, 3, (1, 2), "tensorboard", choices)
    cell = Cell("digits", "cacl", Dials(0.4, 0.125, "int8"), 2, options)
    assert Cell.from_json(json.loads(json.dumps(cell.to_json()))) == cell
    assert (cell.name, str(cell)) == ("cacl-0.4-share-0.125-int8", "cacl-0.4-share-0.125-int8, seed 2")


def test_the_machine_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert default_jobs() == max(1, torch.accelerator.device_count())
    assert settings_of_place(0, 1) == {}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert settings_of_place(1, 3)["OMP_NUM_THREADS"] == "5"
    assert settings_of_place(1, 40)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert "OMP_NUM_THREADS" not in settings_of_place(1, 3)  # the user's own choice
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert [settings_of_place(place, 3)["CUDA_VISIBLE_DEVICES"] for place in range(3)] == ["2", "5", "2"]
