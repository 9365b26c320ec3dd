"""nacre learn, predict, inspect and drop as a user has them: real processes, what they print, how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nacre import cli
from nacre.space import verify

NACRE = str(Path(sys.executable).with_name("nacre"))
DEADLINE_S = 120


def paint(folder: Path, *levels: int, count: int = 12) -> None:
    """A class for every level of grey."""
    draw = np.random.default_rng(0)
    for level in levels:
        (folder / f"grey {level}").mkdir(parents=True)
        for number in range(count):
            pixels = np.clip(level + draw.normal(0, 10, (12, 12)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"grey {level}" / f"{number:02d}.png")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with pictures and a store of one task, made in this process; nobody changes it."""
    folder = tmp_path_factory.mktemp("pictures")
    paint(folder / "greys", 40, 200)
    paint(folder / "more", 90, 130, 170)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NACRE_CACHE", str(folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["nacre", "learn", "life.nacre", "greys", "greys", "--epochs", "5"])
        cli.main()
        yield folder


def nacre(
    *words: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int | str | None, str, str]:
    """In this process: exit status, standard output, standard error."""
    monkeypatch.setattr(sys, "argv", ["nacre", *map(str, words)])
    code: int | str | None = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code
    output, log = capsys.readouterr()
    return code, output, log


def process(*words: object, cwd: Path) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": os.environ}
    return subprocess.Popen([NACRE, *map(str, words)], cwd=cwd, text=True, **pipes)


def contents(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.rglob("*") if path.is_file() and path.name != ".lock"}


def test_ctrl_c_leaves_the_store_as_it_was_and_the_same_command_goes_on_to_the_same_bits(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = here / "torn.nacre"
    subprocess.run(["cp", "-r", here / "life.nacre", store], check=True)
    subprocess.run(["cp", "-r", here / "life.nacre", here / "whole.nacre"], check=True)
    before = contents(store)
    words = ("more", "more", "--epochs", 12, "--json")
    torn = process("learn", "torn.nacre", *words, cwd=here)
    while not list(here.glob("torn.nacre.learning/*/*.safetensors")):  # an epoch is done
        with pytest.raises(subprocess.TimeoutExpired):  # it has not ended
            torn.wait(0.01)
    torn.send_signal(signal.SIGINT)
    output, log = torn.communicate(timeout=DEADLINE_S)
    assert (torn.returncode, output) == (1, "")
    assert log.endswith("nacre: interrupted; torn.nacre is as it was, and the same command goes on\n")
    assert "Traceback" not in log
    assert contents(store) == before
    assert verify(store) == []
    status, output, log = nacre("learn", "torn.nacre", *words, monkeypatch=monkeypatch, capsys=capsys)
    assert status == 0, log
    assert "nacre: more: going on where it was interrupted\n" in log
    status, whole_output, log = nacre("learn", "whole.nacre", *words, monkeypatch=monkeypatch, capsys=capsys)
    assert status == 0, log
    learnt, never_torn = json.loads(output), json.loads(whole_output)
    assert {**learnt, "seconds": 0} == {**never_torn, "seconds": 0}
    assert learnt["unchanged"] == ["greys"]
    task = "tasks/001-more.safetensors"
    assert (store / task).read_bytes() == (here / "whole.nacre" / task).read_bytes()
    assert not (here / "torn.nacre.learning").exists()


def test_a_prediction_is_a_table_or_json(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("predict", "life.nacre", "greys", "greys/grey 40/00.png", "greys/grey 200")
    status, output, log = nacre(*words, "--top", 2, "--json", monkeypatch=monkeypatch, capsys=capsys)
    assert (status, log) == (0, "")
    said = json.loads(output)
    assert [picture["class"] for picture in said["pictures"]] == ["grey 40"] + ["grey 200"] * 12
    for picture in said["pictures"]:
        assert picture["top"][0] == {"class": picture["class"], "probability": picture["probability"]}
        assert sum(one["probability"] for one in picture["top"]) == pytest.approx(1)
    status, output, log = nacre(*words, monkeypatch=monkeypatch, capsys=capsys)
    assert (status, log) == (0, "")
    heading, _, *rows = output.splitlines()
    assert heading.split() == ["file", "class", "probability"]
    wanted = [(picture["file"], picture["class"], f"{picture['probability']:.3f}") for picture in said["pictures"]]
    assert [tuple(part.strip() for part in row.split("  ") if part.strip()) for row in rows] == wanted


def test_ctrl_c_promises_nothing_that_a_command_cannot_do(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nacre.images.predicting.open_store", ctrl_c)
    status, output, _ = nacre("predict", "life.nacre", "greys", "greys", monkeypatch=monkeypatch, capsys=capsys)
    assert (status, output) == ("nacre: interrupted", "")


def test_a_broken_picture_is_named_after_the_others_and_the_status_is_1(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    words = ("predict", "life.nacre", "greys", tmp_path / "broken.png", "greys/grey 40/00.png")
    status, output, log = nacre(*words, monkeypatch=monkeypatch, capsys=capsys)
    assert status == 1
    assert "greys/grey 40/00.png" in output
    assert log == f"nacre: {tmp_path}/broken.png is no picture that Pillow reads: cannot identify image file\n"


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("predict life.nacre greyz greys", 1, "no task is called 'greyz'; the tasks are 'greys'"),
        ("predict nowhere greys greys", 1, "nowhere does not exist"),
        ("predict life.nacre greys greys --top 0", 2, "--top is a whole number from 1; got 0"),
        ("predict life.nacre greys", 2, ""),
        ("learn life.nacre greys greys", 1, "a task called 'greys' is already learnt"),
        ("learn life.nacre more nowhere", 1, "nowhere does not exist: a task is learnt from a folder"),
        ("learn life.nacre more greys/grey\\ 40", 1, "holds no pictures"),
        ("learn life.nacre more more --budget 3 apples", 2, ""),
        ("learn life.nacre more more --budget many", 2, "--budget is a number of bytes, as 200KB or 1.5MB; got 'many'"),
        ("learn life.nacre more more --epochs 0", 2, "epochs: a whole number from 1; got 0"),
        ("learn life.nacre more more --test-share 2", 2, "from 0 to below 1; got 2"),
        ("learn new.nacre more more --network conv6", 1, "the networks are conv5, vgg16_bn"),
        ("drop life.nacre greyz", 1, "no task is called 'greyz'"),
    ],
)
def test_mistakes_are_answered_in_words(
    words: str,
    status: int,
    message: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import shlex

    before = contents(here / "life.nacre")
    code, output, log = nacre(*shlex.split(words), monkeypatch=monkeypatch, capsys=capsys)
    said = log if isinstance(code, int) else str(code)
    assert (1 if isinstance(code, str) else code, output) == (status, "")
    assert message in said
    assert contents(here / "life.nacre") == before
    assert not (here / "new.nacre").exists()
    assert not list(here.glob("life.nacre.learning"))


def test_drop_takes_the_last_task_and_keeps_the_others(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["cp", "-r", "life.nacre", "two.nacre"], cwd=here, check=True)
    tools = {"monkeypatch": monkeypatch, "capsys": capsys}
    status, output, _ = nacre("learn", "two.nacre", "more", "more", "--epochs", 1, "--budget", "40KB", **tools)  # type: ignore[arg-type]
    assert status == 0
    lines = output.splitlines()
    assert lines[0] == "more: 3 classes, learnt from 30 pictures"
    assert any(line.startswith("  budget     40,000 bytes cost ") for line in lines)
    assert "  before it  greys gives the same bits as before, on 6 of these pictures" in lines
    code, _, _ = nacre("drop", "two.nacre", "greys", **tools)  # type: ignore[arg-type]
    assert "'more' was learnt after it and would answer otherwise without it" in str(code)
    size = (here / "two.nacre/tasks/001-more.safetensors").stat().st_size
    status, output, _ = nacre("drop", "two.nacre", "more", **tools)  # type: ignore[arg-type]
    assert (status, output) == (0, f"two.nacre: dropped 'more', {size:,} bytes freed\n")
    assert contents(here / "two.nacre/tasks") == contents(here / "life.nacre/tasks")


def test_inspect_shows_where_the_bytes_go(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = {"monkeypatch": monkeypatch, "capsys": capsys}
    _, output, _ = nacre("inspect", "life.nacre", "--json", **tools)  # type: ignore[arg-type]
    described = json.loads(output)
    status, table, _ = nacre("inspect", "life.nacre", **tools)  # type: ignore[arg-type]
    assert status == 0
    (task,) = described["tasks"]
    rows = [line.split() for line in table.splitlines()]
    assert ["greys", *(f"{size:,}" for size in task["parts"].values())] in rows
    assert ["greys", *(f"{size:,}" for size in task["layers"].values())] in rows
    for suggestion in described["suggestions"]:
        assert f"- {suggestion}" in table


@pytest.mark.parametrize(
    ("command", "known"),
    [
        (
            "learn",
            [
                "--network",
                "hf:",
                "--base",
                "--size",
                "--epochs N",
                "--budget BYTES",
                "--test-share",
                "--flip",
                "--label",
                "--seed",
                "--json",
            ],
        ),
        ("predict", ["--top", "--json"]),
        ("export", ["--to {onnx,torch,peft}", "--optimize {counted,measured}", "--with-preprocessing", "LoRA"]),
        ("drop", ["cannot be dropped", "folder of the store"]),
    ],
)
def test_help_teaches(
    command: str, known: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, output, _ = nacre(command, "--help", monkeypatch=monkeypatch, capsys=capsys)
    assert status == 0
    assert [word for word in known if word not in output] == []
    assert "None" not in output  # what is left out has a default, which the help says in words
