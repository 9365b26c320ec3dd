"""Choices: what a user may choose about a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Choices:
    """The data, which classes make a task, and how they are prepared."""

    data: Path | None = None  # folder with local parquet (the hub's names below it) or folders of images
    class_order: Literal["consecutive", "random", "superclass"] = "consecutive"  # which classes make a task
    holdout: float = 0.0  # share of each training set kept out of training (0.15: the rivals' protocol)
    augment: bool = True  # change training images at random, as the scenario does
    network: str | None = None  # a backbone by name; the scenario's own (conv5) if none is given
