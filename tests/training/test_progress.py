from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nacre import Learner, Recipe
from nacre.training.progress import Progress

LINE = re.compile(
    r"animals  epoch (?P<epoch>\d+)/100000  loss \d+\.\d{3}  accuracy \d+\.\d %  "
    r"(orthogonality (?P<orthogonality>[\d.e+-]+)  rank (?P<rank>\d+)  )?(?P<speed>\d+) images/s  \d+:\d\d left"
)
DEADLINE_S = 90


def main(enough: Path) -> None:
    """Learns a task until a file is there, and prints what a user would."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 8, generator=draw)
    begun = time.monotonic()
    learner = Learner(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), device="cpu")
    learner.learn(
        "animals",
        (x, (x[:, 0] > 0).long()),
        recipe=Recipe(epochs=100_000, batch_size=8),
        callbacks=[lambda *_: enough.exists() or time.monotonic() - begun > DEADLINE_S],
    )
    print("learnt")


def lines_of(shown: bytes) -> list[str]:
    return [part.rstrip() for part in shown.decode().split("\r") if part.strip()]


def test_a_terminal_shows_one_living_line_and_standard_output_stays_clean(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    enough = tmp_path / "enough"
    child = subprocess.Popen([sys.executable, __file__, str(enough)], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # the child closed its end
            break
        if len(lines_of(shown)) > 3 and b"rank" in shown:
            enough.touch()
    os.close(ours)
    output, _ = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 0
    assert output == b"learnt\n"
    assert enough.exists(), shown
    assert b"\n" not in shown
    assert b"\x1b" not in shown
    found = [LINE.fullmatch(line) for line in lines_of(shown)]
    assert all(found), lines_of(shown)
    measured = [match for match in found if match and match["rank"] is not None]
    assert measured, "no line says how far the factors are from orthogonal, or their rank"
    assert all(int(match["epoch"]) > 1 for match in measured)  # what the first epoch measured is known after it
    epochs = [int(match["epoch"]) for match in found if match]
    assert epochs == sorted(epochs)
    assert epochs[0] < epochs[-1]
    assert shown.endswith(b"\r"), "the line is still there at the end"
    assert not shown.split(b"\r")[-2].strip(), "the line is still there at the end"


def test_a_log_gets_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("animals", "train", 10, 0, wanted=True)
    progress.show(0, 0.5, 0.25, None)
    progress.close()
    output, log = capsys.readouterr()
    assert re.fullmatch(r"animals  epoch 1/10  loss 0\.250  0 images/s  0:00 left\n", log)
    assert output == ""


def test_short_work_and_unwanted_lines_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    x: Tensor = torch.randn(16, 8)
    for progress in (True, False):
        learner = Learner(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), device="cpu", progress=progress)
        learner.learn("quick", (x, (x[:, 0] > 0).long()), recipe=Recipe(epochs=2))
    assert not Progress("t", "train", 1, 0, wanted=False).due()
    assert capsys.readouterr() == ("", "")


def shown(progress: Progress, epoch: int, share: float, capsys: pytest.CaptureFixture[str]) -> str:
    progress.show(epoch, share, None, None)
    return capsys.readouterr().err


def test_time_left_is_that_of_the_epochs_still_to_come(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("t", "train", 10, 4, wanted=True)  # four epochs were done before an interrupt
    progress._begun -= 60
    progress.count(1200)
    assert shown(progress, 5, 0.5, capsys) == "t  epoch 6/10  20 images/s  3:00 left\n"  # 1.5 epochs a minute, 4.5 left


def test_a_sampler_that_draws_more_than_there_is_leaves_no_negative_time(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("t", "train", 1, 0, wanted=True)
    progress._begun -= 10
    assert shown(progress, 0, 3.0, capsys).endswith("  0:00 left\n")


def test_another_phase_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(Progress("t", "retrain", 3, 0, wanted=True), 0, 0.1, capsys).startswith("t (retrain)  epoch 1/3")


def test_what_the_method_measures_is_shown_after_the_first_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("t", "train", 3, 0, wanted=True)
    progress.epoch({"orthogonality": 0.123456, "rank": 17})
    assert "  orthogonality 0.1235  rank 17  " in shown(progress, 1, 0.1, capsys)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
