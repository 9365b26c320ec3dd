"""What a store on disk holds, and whether it is whole: looks at files only, needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.lowrank import BYTES_A_NUMBER
from nacre.space import rewritten, store
from nacre.space.container import decode
from nacre.space.saving import PARTS
from nacre.space.size import Size


def is_saved(folder: Path) -> bool:
    """Whether a folder holds something that was learnt."""
    return (folder / store.INDEX).exists() or rewritten.is_rewritten(folder)


def facts_of(folder: Path) -> dict[str, Any]:
    """The JSON that was saved along with what was learnt."""
    kept = rewritten.read_facts(folder) if rewritten.is_rewritten(folder) else store.read_index(folder)
    return dict(kept["facts"])


def describe(folder: Path) -> dict[str, Any]:
    """The tasks of a store with classes, ranks, sizes and dates, as JSON."""
    if rewritten.is_rewritten(folder):
        return _describe_rewritten(folder)
    index = store.read_index(folder)
    try:
        return _describe(folder, index)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NacreError(f"{folder / store.INDEX} is damaged: {error!r}") from error


def _describe(folder: Path, index: store.Index) -> dict[str, Any]:
    tasks, total = [], dict.fromkeys((name for name, _ in _layers(index)), 0)
    for entry in index["tasks"]:
        _, facts = decode(store.read_file(folder, entry), folder / entry["file"])
        ranks = dict(entry["ranks"])
        if entry["shares"]:
            total = {name: rank + ranks[name] for name, rank in total.items()}
        numbers = sum(entry["numbers"].values()) + len(ranks)
        tasks.append(
            {
                "task": entry["name"],
                "classes": facts["classes"],
                "learnt": entry["created"],
                "ranks": ranks,
                "identifier": dict(total) if entry["shares"] else ranks,
                "megabytes": numbers * BYTES_A_NUMBER / 1e6,
                "bytes_on_disk": entry["bytes"],
            }
        )
    base = sum(numbers for _, numbers in _layers(index)) * BYTES_A_NUMBER / 1e6 if index["base_file"] else 0.0
    return {
        "store": str(folder),
        "network": index["network"]["class"],
        "base": index["base"],
        "tasks": tasks,
        "megabytes": base + sum(task["megabytes"] for task in tasks),
        "bytes_on_disk": store.size_on_disk(folder),
    }


def _describe_rewritten(folder: Path) -> dict[str, Any]:
    facts, path = rewritten.read_facts(folder), folder / rewritten.FILE
    try:
        tasks = [
            {
                "task": entry["name"],
                "classes": entry["record"]["classes"],
                "learnt": entry["created"],
                "ranks": {},
                "identifier": {},
                "megabytes": Size(**entry["size"]).megabytes,
                "bytes_on_disk": None,  # all tasks are in one file
            }
            for entry in facts["tasks"]
        ]
        size = Size(**facts["size"])
        return {
            "store": str(folder),
            "network": facts["network"]["class"],
            "base": "rewritten",
            "tasks": tasks,
            "megabytes": size.megabytes,
            **size.kept(),
            "bytes_on_disk": path.stat().st_size,
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NacreError(f"{path} is damaged: {error!r}") from error


def _layers(index: store.Index) -> list[tuple[str, int]]:
    """The factorised layers and how many numbers each weight has."""
    sizes = []
    for layer in index["layout"]["layers"]:
        numbers = 1
        for extent in layer["shape"]:
            numbers *= extent
        sizes.append((layer["name"], numbers))
    return sizes


def verify(folder: Path) -> list[str]:
    """Reads every file of a store and checks it; what is wrong, one message a file."""
    try:
        if rewritten.is_rewritten(folder):
            rewritten.read(folder)
            return []
        index = store.read_index(folder)
    except NacreError as error:
        return [str(error)]
    problems = []
    for entry in store.entries(index):
        try:
            _verify_file(folder, entry)
        except NacreError as error:
            problems.append(str(error))
    return problems


def _verify_file(folder: Path, entry: Mapping[str, Any]) -> None:
    """Hash, contents, and that the file holds the task and the numbers that the index says."""
    path = folder / entry["file"]
    tensors, facts = decode(store.read_file(folder, entry), path)
    if path.name == store.BASE_FILE:
        return
    counts = dict.fromkeys(PARTS, 0)
    try:
        for name, tensor in tensors.items():
            counts[name.split("/")[0]] += tensor.numel()
        if (facts["task"], counts) != (entry["name"], entry["numbers"]):
            raise ValueError(f"it holds the task {facts['task']!r} with {counts} numbers, not what {store.INDEX} says")
    except (ValueError, KeyError, TypeError) as error:
        raise NacreError(f"{path} is damaged: {error}") from error
