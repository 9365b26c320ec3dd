"""What commands write: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(line: str) -> None:
    """One line on standard error."""
    print(line, file=sys.stderr, flush=True)


def print_json(data: dict[str, Any]) -> None:
    """A result on standard output."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
