"""The command as a user has it: real processes, what they print, how they end. Runs are shared by the tests."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nacre import cli

NACRE = str(Path(sys.executable).with_name("nacre"))
DEADLINE_S = 120
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # as many threads in every process, so that bits can be compared


def start(*arguments: object, cwd: Path, **more: Any) -> subprocess.Popen[str]:
    given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT, **more}
    return subprocess.Popen([NACRE, *map(str, arguments)], cwd=cwd, text=True, encoding="utf-8", **given)


def nacre(*arguments: object, cwd: Path) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    child = start(*arguments, cwd=cwd)
    output, log = child.communicate(timeout=DEADLINE_S)
    return child.returncode, output, log


@dataclass
class Run:
    """A run that nothing interrupted."""

    folder: Path
    printed: str
    log: str

    @property
    def result(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.printed)
        return read

    @property
    def store(self) -> Path:
        return self.folder / "seed-0" / "life.nacre"


SHORT = ("--epochs", 6, "--tasks", 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`nacre run` with nothing but its length said, and --json."""
    cwd = tmp_path_factory.mktemp("whole")
    status, output, log = nacre("run", *SHORT, "--json", cwd=cwd)
    assert status == 0, log
    return Run(cwd / "runs" / "digits-cacl", output, log)


def tasks_in(store: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (store / "tasks").iterdir()}


# run


def test_json_on_standard_output_is_the_result_and_nothing_else(whole: Run) -> None:
    result = whole.result
    keys = {"acc", "bwt", "forgetting", "megabytes", "bytes_on_disk", "accuracy_matrix", "ranks", "tasks"}
    assert keys | {"method", "scenario", "protocol", "recipe", "seeds", "seed"} <= set(result)
    assert (result["scenario"], result["protocol"], result["method"]["name"]) == ("digits", "quick", "cacl")
    assert (result["seeds"], result["seed"], result["bwt"]) == ([0], 0, 0.0)
    assert sorted(result["tasks"]) == ["0-1", "2-3"]
    first, last = result["accuracy_matrix"]
    assert first[1] is None
    assert result["acc"] == sum(last) / 2
    assert set(result["ranks"]) == set(result["tasks"])
    assert set(result["ranks"]["0-1"]) == {"conv1", "conv2", "conv3", "conv4", "conv5"}
    assert json.loads((whole.folder / "result.json").read_text()) == result


def test_logs_are_on_standard_error(whole: Run) -> None:
    assert all(re.match(r"[02]-[13](?: \(refine\))?  epoch \d/6  ", line) for line in whole.log.splitlines())


def test_a_finished_run_prints_its_result_again_as_a_table_too(whole: Run) -> None:
    cwd = whole.folder.parents[1]
    assert nacre("run", *SHORT, "--json", "--resume", cwd=cwd) == (0, whole.printed, "")
    status, table, log = nacre("run", *SHORT, "--resume", cwd=cwd)
    assert (status, log) == (0, "")
    result = whole.result
    rows = [line.split() for line in table.splitlines()]
    last = [f"{accuracy:.2f}" for accuracy in result["accuracy_matrix"][1]]
    assert [result["tasks"][1], *last] in rows
    for task, ranks in result["ranks"].items():
        assert [task, *map(str, ranks.values())] in rows
    assert f"ACC {result['acc']:.2f} %  BWT 0.00" in table
    assert f"{result['megabytes']:.3f} MB" in table


def test_a_folder_that_holds_a_run_is_not_written_to_again(whole: Run) -> None:
    status, output, log = nacre("run", *SHORT, cwd=whole.folder.parents[1])
    assert (status, output) == (1, "")
    assert log == (
        "nacre: runs/digits-cacl holds a run already: go on with it with --resume, or give another folder with --out\n"
    )


def test_interrupted_and_killed_in_the_middle_of_tasks_it_ends_in_the_same_bits(whole: Run, tmp_path: Path) -> None:
    """Ctrl-C in the first task, SIGKILL in the second; each time --resume goes on (the first time it starts)."""
    out = tmp_path / "run"
    command = ("run", *SHORT, "--out", out, "--resume", "--json")
    interrupted = after_epochs(2, out, start(*command, cwd=tmp_path))
    interrupted.send_signal(signal.SIGINT)
    output, log = interrupted.communicate(timeout=DEADLINE_S)
    assert (interrupted.returncode, output) == (1, "")
    assert log.endswith("nacre: interrupted; the same command with --resume goes on from the last epoch\n")
    assert "Traceback" not in log
    killed = after_epochs(8, out, start(*command, cwd=tmp_path))
    killed.send_signal(signal.SIGKILL)
    assert killed.communicate(timeout=DEADLINE_S)[0] == ""
    assert killed.returncode == -signal.SIGKILL
    assert len(epochs(out)) < 12
    status, output, log = nacre(*command, cwd=tmp_path)
    assert status == 0, log
    assert {**json.loads(output), "seconds": 0} == {**whole.result, "seconds": 0}
    assert tasks_in(out / "seed-0" / "life.nacre") == tasks_in(whole.store)
    assert [(line["task"], line["epoch"]) for line in epochs(out)] == [
        (task, epoch) for task in whole.result["tasks"] for epoch in range(1, 7)
    ]
    assert len(json.loads((out / "environment.json").read_text())["sessions"]) == 3


def epochs(out: Path) -> list[dict[str, Any]]:
    path = out / "seed-0" / "epochs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def after_epochs(count: int, out: Path, child: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """The child, as soon as it has learnt so many epochs."""
    while len(epochs(out)) < count:
        with pytest.raises(subprocess.TimeoutExpired):  # it has not ended
            child.wait(0.02)
    return child


# wrong usage and failures


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run digitz", "invalid choice 'digitz'"),
        ("run --tusks 2", "--tasks"),
        ("run --epochs 0", "epochs is a whole number from 1; got 0"),
        ("run --tasks 9", "digits has 5 tasks; got --tasks 9"),
        ("run --method single --sparsity 0.1", "the method single has no --sparsity"),
        ("run --holdout 1.5", "from 0 to below 1; got 1.5"),
        ("run --network resnet", "resnet50 or vit_tiny; got 'resnet'"),
        ("run --class-order superclass", "digits has no class order superclass"),
        ("run --data .", "they take no --data"),
        ("report", "no run folder was given"),
        ("compare digits --methods", "--methods"),
        ("compare digits --methods cacl --seeds 1 1", "--seeds takes different numbers"),
        ("", "run"),
    ],
)
def test_wrong_usage_has_status_2(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: the command is the same function, and torch is imported already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["nacre", *words.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    output, log = capsys.readouterr()
    assert (ended.value.code, output) == (2, "")
    assert message in log
    assert not list(tmp_path.iterdir())


def test_wrong_usage_in_a_process_of_its_own_suggests_what_was_meant(tmp_path: Path) -> None:
    status, output, log = nacre("run", "--tusks", 2, cwd=tmp_path)
    assert (status, output) == (2, "")
    assert "Perhaps you meant" in log
    assert "--tasks" in log


def test_a_failure_has_status_1_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for words in (("inspect", "nowhere"), ("run", "--out", "file")):
        status, output, log = nacre(*words, cwd=tmp_path)
        assert (status, output) == (1, "")
        assert log.startswith("nacre: ")
        assert log.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("--help", ["nacre run", "nacre compare", "--resume", "run", "compare", "report", "inspect", "verify"]),
        (
            "run --help",
            [
                *(
                    "--method",
                    "--sparsity",
                    "--share",
                    "--dtype",
                    "--epochs",
                    "--tasks",
                    "--seeds",
                    "--protocol",
                    "quick,paper,published",
                ),
                *("--data", "--class-order", "--holdout", "--no-augment", "--network", "--track", "--out", "--resume"),
                *("--json", "cifar100", "miniimagenet", "five-datasets", "torchrun"),
                *("Hugging", "neighbouring", "share of every", "mirror", "vgg16_bn"),
            ],
        ),
        (
            "compare --help",
            [
                "--methods",
                "--sparsities",
                "--shares",
                "--dtypes",
                "--jobs",
                "--ray",
                "--seeds",
                "--data",
                "--out",
                "--json",
            ],
        ),
        ("report --help", ["--out", "report.html"]),
    ],
)
def test_help_teaches(
    words: str, known: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["nacre", *words.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    output, log = capsys.readouterr()
    assert (ended.value.code, log) == (0, "")
    assert [word for word in known if word not in output] == []


# stores


def test_inspect_shows_what_a_store_holds(whole: Run) -> None:
    status, output, log = nacre("inspect", whole.store, "--json", cwd=whole.folder)
    assert (status, log) == (0, "")
    described, result = json.loads(output), whole.result
    assert [task["task"] for task in described["tasks"]] == result["tasks"]
    assert {task["task"]: task["ranks"] for task in described["tasks"]} == result["ranks"]
    assert described["megabytes"] == pytest.approx(result["megabytes"])
    assert described["bytes_on_disk"] == result["bytes_on_disk"]
    status, table, log = nacre("inspect", whole.store, cwd=whole.folder)
    assert (status, log) == (0, "")
    for task in described["tasks"]:
        assert f"{task['bytes_on_disk']:,}" in table
        assert f"2: {', '.join(task['classes'])}" in table


def test_verify_names_the_file_that_is_damaged(whole: Run, tmp_path: Path) -> None:
    status, output, log = nacre("verify", whole.store, cwd=tmp_path)
    assert (status, output, log) == (0, f"{whole.store}: every file is as it was written\n", "")
    shutil.copytree(whole.store, tmp_path / "life")
    (name,) = [name for name in tasks_in(tmp_path / "life") if name.startswith("001-")]
    path = tmp_path / "life" / "tasks" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    status, output, log = nacre("verify", "life", cwd=tmp_path)
    assert (status, output) == (1, "")
    assert log == f"nacre: life/tasks/{name} is damaged: its contents do not match the hash in space.json\n"


def test_report_writes_a_page_of_a_run(whole: Run, tmp_path: Path) -> None:
    status, output, log = nacre("report", whole.folder, "--out", "page.html", cwd=tmp_path)
    assert (status, log) == (0, "")
    assert output == "page.html\n"
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")


# the defaults


@pytest.mark.slow
def test_on_the_digits_cacl_is_as_good_as_one_network_a_task_in_half_the_space(tmp_path: Path) -> None:
    """The defaults; both methods at the same time."""
    runs = {
        method: start("run", "--json", "--method", method, "--seeds", 0, 1, 2, cwd=tmp_path)
        for method in ("cacl", "single")
    }
    said = {method: child.communicate(timeout=1800) for method, child in runs.items()}
    assert [child.returncode for child in runs.values()] == [0, 0], said
    cacl, single = (json.loads(said[method][0]) for method in ("cacl", "single"))
    for ours, dense in [(cacl, single), *zip(cacl["runs"], single["runs"], strict=True)]:
        print({key: (ours[key], dense[key]) for key in ("acc", "bwt", "megabytes")}, ours.get("seconds"))
        assert ours["acc"] >= dense["acc"] - 2
        assert ours["megabytes"] <= dense["megabytes"] / 2
        assert ours["bwt"] == 0.0
    assert [run["seed"] for run in cacl["runs"]] == [run["seed"] for run in single["runs"]] == [0, 1, 2]
