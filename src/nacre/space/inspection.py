"""What a store on disk holds, and whether it is whole: looks at files only, needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.space import rewritten, store
from nacre.space.container import decode
from nacre.space.continuing import PREPROCESSING
from nacre.space.encodings import restored, saved
from nacre.space.layout import Layout
from nacre.space.naming import check_known
from nacre.space.saving import PARTS
from nacre.space.size import BYTES_A_NUMBER, Size
from nacre.space.spending import Spending, suggestions


def is_saved(folder: Path) -> bool:
    """Whether a folder holds something that was learnt."""
    return (folder / store.INDEX).exists() or rewritten.is_rewritten(folder)


def facts_of(folder: Path) -> dict[str, Any]:
    """The JSON that was saved along with what was learnt."""
    kept = rewritten.read_facts(folder) if rewritten.is_rewritten(folder) else store.read_index(folder)
    return dict(kept["facts"])


def describe(folder: Path) -> dict[str, Any]:
    """What a store holds, as JSON: tasks, classes, ranks, dates, where its bytes go, what would save some."""
    if rewritten.is_rewritten(folder):
        return _describe_rewritten(folder)
    index = store.read_index(folder)
    try:
        return _describe(folder, index)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NacreError(f"{folder / store.INDEX} is damaged: {error!r}") from error


def _describe(folder: Path, index: store.Index) -> dict[str, Any]:
    layout = Layout.from_json(index["layout"])
    tasks, total = [], dict.fromkeys(layout.layers, 0)
    for entry in index["tasks"]:
        tensors, facts = decode(store.read_file(folder, entry), folder / entry["file"])
        ranks = dict(entry["ranks"])
        if entry["shares"]:
            total = {name: rank + ranks[name] for name, rank in total.items()}
        size = BYTES_A_NUMBER * (sum(entry["numbers"].values()) + len(ranks)) - sum(entry.get("saved", {}).values())
        tasks.append(
            {
                "task": entry["name"],
                "classes": facts["classes"],
                "learnt": entry["created"],
                "ranks": ranks,
                "identifier": dict(total) if entry["shares"] else ranks,
                "megabytes": size / 1e6,
                "bytes_on_disk": entry["bytes"],
                **asdict(Spending.of(tensors, ranks, entry["bytes"])),
            }
        )
    base = layout.on_base().base_numbers * BYTES_A_NUMBER / 1e6 if index["base"] != "zero" else 0.0
    return {
        "store": str(folder),
        "network": index["network"]["class"],
        "base": index["base"],
        "base_bytes": index["base_file"]["bytes"] if index["base_file"] else 0,
        "base_megabytes": base,
        "base_source": index.get("base_source"),
        "preprocessing": index["facts"].get(PREPROCESSING),
        "tasks": tasks,
        "megabytes": base + sum(task["megabytes"] for task in tasks),
        "fewer_bits": any(entry.get("saved") for entry in index["tasks"]),
        "bytes_on_disk": store.size_on_disk(folder),
        "suggestions": suggestions(tasks),
    }


def classes_of(folder: Path, task: str) -> tuple[str, ...] | None:
    """The names of a task's classes, in the order of their numbers."""
    index = store.read_index(folder)
    check_known(task, [entry["name"] for entry in index["tasks"]])
    entry = next(entry for entry in index["tasks"] if entry["name"] == task)
    _, facts = decode(store.read_file(folder, entry), folder / entry["file"])
    return None if facts["classes"] is None else tuple(map(str, facts["classes"]))


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
                "parts": {},
                "layers": {},
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
            "fewer_bits": False,
            "bytes_on_disk": path.stat().st_size,
            "suggestions": [],
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NacreError(f"{path} is damaged: {error!r}") from error


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
        tensors, dtypes = restored(tensors, facts["encodings"], str(path))
        for name, tensor in tensors.items():
            counts[name.split("/")[0]] += tensor.numel()
        if saved(tensors, dtypes) != entry.get("saved", {}):
            raise ValueError(f"fewer bits save {saved(tensors, dtypes)} bytes, {store.INDEX} says {entry.get('saved')}")
        if (facts["task"], counts) != (entry["name"], entry["numbers"]):
            raise ValueError(f"it holds the task {facts['task']!r} with {counts} numbers, not what {store.INDEX} says")
    except (ValueError, KeyError, TypeError) as error:
        raise NacreError(f"{path} is damaged: {error}") from error
