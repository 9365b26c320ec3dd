"""What takes longer than two seconds says how far it is; what does not is silent."""

from __future__ import annotations

import io
import sys
import time

import pytest

from nacre.scenarios.progress import Counting


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def count_for(seconds: int, clock: Clock) -> None:
    with Counting("decoding digits", 60_000) as counting:
        for _ in range(seconds):
            clock.now += 1
            counting.add(1_000)


def test_two_seconds_are_silent(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    count_for(1, clock)
    assert capsys.readouterr().err == ""


def test_a_log_gets_a_line_every_ten_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    count_for(25, clock)
    assert capsys.readouterr().err.splitlines() == [
        f"nacre: decoding digits: {done:,} of 60,000" for done in (2_000, 12_000, 22_000)
    ]


def test_a_terminals_line_is_written_over_and_taken_away(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    count_for(4, clock)
    *written, blank, end = terminal.getvalue().split("\r")[1:]
    assert written == [f"decoding digits: {done},000 of 60,000" for done in (2, 3, 4)]
    assert (blank.strip(), end) == ("", "")
    assert len(blank) == len(written[-1])
