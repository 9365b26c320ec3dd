"""What commands write: results on standard output, everything else on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any


def say(line: str) -> None:
    """One line on standard error."""
    print(line, file=sys.stderr, flush=True)


def print_json(data: dict[str, Any]) -> None:
    """A result on standard output."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


@contextlib.contextmanager
def interruptible(then: str) -> Iterator[None]:
    """Ctrl-C in the block says how to go on, unless what was interrupted knows better."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(str(interrupt) or f"interrupted; {then}") from None
