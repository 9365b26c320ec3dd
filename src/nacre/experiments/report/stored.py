"""What a store says of sizes, ranks and singular values, read from its files alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.space.container import decode
from nacre.space.rewritten import FILE, is_rewritten, read_facts
from nacre.space.size import BYTES_A_NUMBER, Size
from nacre.space.store import INDEX, read_file, read_index, size_on_disk

Spectra = dict[str, dict[str, list[float]]]  # singular values by task and layer
_PARTS = {"factors": "factors", "head": "head", "private": "norms, biases, dense weights"}
REST = "identifiers and the rest"
PARTS = (*_PARTS.values(), REST)


@dataclass(frozen=True)
class StoredTask:
    """A task's ranks by layer, and its MB by what they are for."""

    name: str
    ranks: dict[str, int]
    parts: dict[str, float]
    saved: float = 0.0  # MB by which fewer bits make it smaller than 4 bytes a number

    @property
    def megabytes(self) -> float:
        return math.fsum(self.parts.values())


@dataclass(frozen=True)
class Stored:
    """A store: its tasks in the order learnt."""

    folder: Path
    tasks: tuple[StoredTask, ...]
    base: float  # MB of a dense base
    disk: int  # bytes

    @property
    def megabytes(self) -> float:
        return self.base + math.fsum(task.megabytes for task in self.tasks)

    @property
    def megabytes_at_4_bytes(self) -> float:
        return self.megabytes + math.fsum(task.saved for task in self.tasks)

    def growth(self) -> list[float]:
        """MB after each task."""
        return [self.base + math.fsum(task.megabytes for task in self.tasks[: at + 1]) for at in range(len(self.tasks))]


def read_store(folder: Path) -> Stored:
    """A store's sizes from its index: no task file is opened."""
    if is_rewritten(folder):
        return _rewritten(folder)
    index = read_index(folder)
    try:
        tasks = tuple(_task(entry) for entry in index["tasks"])
        base = sum(math.prod(layer["shape"]) for layer in index["layout"]["layers"]) if index["base_file"] else 0
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NacreError(f"{folder / INDEX} is damaged: {error!r}") from error
    return Stored(folder, tasks, base * BYTES_A_NUMBER / 1e6, size_on_disk(folder))


def _rewritten(folder: Path) -> Stored:
    """Of weights that tasks have in common: those are the base, beside it stands what is a task's alone."""
    facts = read_facts(folder)
    try:
        sizes = {str(entry["name"]): Size(**entry["size"]) for entry in facts["tasks"]}
        whole = Size(**facts["size"])
    except (KeyError, TypeError, AttributeError) as error:
        raise NacreError(f"{folder / FILE} is damaged: {error!r}") from error
    tasks = []
    for name, size in sizes.items():
        counts = {_PARTS["factors"]: 0, _PARTS["head"]: size.heads, _PARTS["private"]: size.private}
        parts = {part: count * BYTES_A_NUMBER / 1e6 for part, count in counts.items()}
        tasks.append(StoredTask(name, {}, {**parts, REST: size.megabytes - math.fsum(parts.values())}))
    base = whole.megabytes - math.fsum(task.megabytes for task in tasks)
    return Stored(folder, tuple(tasks), base, (folder / FILE).stat().st_size)


def _task(entry: Mapping[str, Any]) -> StoredTask:
    numbers, ranks = dict(entry["numbers"]), {str(layer): int(rank) for layer, rank in dict(entry["ranks"]).items()}
    saved = {str(part): int(less) for part, less in dict(entry.get("saved", {})).items()}
    taken = {shown: BYTES_A_NUMBER * numbers.pop(part) - saved.get(part, 0) for part, shown in _PARTS.items()}
    taken[REST] = BYTES_A_NUMBER * (sum(numbers.values()) + len(ranks))
    parts = {part: count / 1e6 for part, count in taken.items()}
    return StoredTask(entry["name"], ranks, parts, sum(saved.values()) / 1e6)


def kept_values(folder: Path) -> Spectra:
    """The singular values that are left after the cut, falling."""
    kept: Spectra = {}
    for entry in [] if is_rewritten(folder) else read_index(folder)["tasks"]:
        if entry["ranks"]:
            tensors, _ = decode(read_file(folder, entry), folder / entry["file"])
            named = {layer: tensors[f"factors/{layer}/s"] for layer in dict(entry["ranks"])}
            kept[entry["name"]] = {layer: sorted(map(abs, s.tolist()), reverse=True) for layer, s in named.items()}
    return kept
