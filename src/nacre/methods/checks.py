"""Checks of a method's settings."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from nacre.errors import NacreError


def check_number(method: Any, name: str, least: float = 0.0, most: float = math.inf) -> None:
    """Refuses a setting that is no number between two."""
    value = getattr(method, name)
    number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not least <= float(value) <= most:
        upto = f" to {most:g}" if most < math.inf else ""
        raise NacreError(f"{type(method).__name__}.{name} is a number from {least:g}{upto}; got {value!r}")


def check_share(method: Any, name: str) -> None:
    check_number(method, name, 0.0, 1.0)


def check_count(method: Any, name: str, least: int = 0) -> None:
    """Refuses a setting that is no whole number."""
    value = getattr(method, name)
    if type(value) is not int or value < least:
        raise NacreError(f"{type(method).__name__}.{name} is a whole number from {least}; got {value!r}")
