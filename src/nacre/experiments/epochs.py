"""The epochs of a run, one line of JSON each."""

from __future__ import annotations

import json
from pathlib import Path

from nacre.errors import NacreError
from nacre.experiments.plan import Json
from nacre.space.container import canonical_json
from nacre.space.store import replace_file
from nacre.training import Epoch


class EpochLog:
    """A callback of `learn` that writes a line for every epoch. An epoch learnt again after a kill has one line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._phase: tuple[str, str] | None = None

    def __call__(self, epoch: Epoch, _: object) -> None:
        if self._phase != (epoch.task, epoch.phase):
            self._drop(epoch)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(canonical_json(epoch.to_json()) + "\n")

    def _drop(self, first: Epoch) -> None:
        """Takes out what a killed run wrote of epochs that are learnt again, and the part of a line."""
        lines = _lines(self._path)
        try:
            kept = [line for line in lines if line.endswith("\n") and not _again(json.loads(line), first)]
        except (ValueError, KeyError, TypeError) as error:
            raise NacreError(f"{self._path} is damaged: {error!r}") from error
        if kept != lines:
            replace_file(self._path, "".join(kept).encode())
        self._phase = first.task, first.phase


def seconds_of(path: Path) -> float:
    """How long all epochs took together, whatever the number of sessions."""
    try:
        return float(sum(json.loads(line)["seconds"] for line in _lines(path)))
    except (ValueError, KeyError, TypeError) as error:
        raise NacreError(f"{path} is damaged: {error!r}") from error


def _lines(path: Path) -> list[str]:
    """The lines with their ends; names of tasks may hold what else Python takes for the end of a line."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="\n") as file:
        return list(file)


def _again(line: Json, first: Epoch) -> bool:
    return (line["task"], line["phase"]) == (first.task, first.phase) and line["epoch"] >= first.epoch
