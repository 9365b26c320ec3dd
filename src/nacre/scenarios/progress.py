"""A line on standard error for what takes longer than two seconds before training begins."""

from __future__ import annotations

import sys
import time

_QUIET_S, _TERMINAL_S, _LOG_S = 2.0, 0.2, 10.0  # a terminal's line is rewritten, a log gets a new one


def say(line: str) -> None:
    """One line on standard error."""
    if sys.stderr is not None:
        sys.stderr.write(f"nacre: {line}\n")
        sys.stderr.flush()


class Counting:
    """Says how many pictures are done of how many.

    >>> with Counting("decoding digits", 100) as counting:
    ...     counting.add(100)
    """

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._due = time.monotonic() + _QUIET_S
        self._width = 0

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()

    def add(self, count: int) -> None:
        self._done += count
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + (_TERMINAL_S if self._live else _LOG_S)
        line = f"{self._what}: {self._done:,} of {self._total:,}"
        if self._live:
            sys.stderr.write(f"\r{line:<{self._width}}")
            sys.stderr.flush()
            self._width = max(self._width, len(line))
        else:
            say(line)
