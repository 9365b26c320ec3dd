"""Whether what is to be written continues what a store holds: the same beginning, nothing that was dropped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nacre.errors import NacreError

PREPROCESSING = "preprocessing"  # among a space's facts: what is done to a picture before the network reads it


def check_continues(folder: Path, present: Mapping[str, Any], index: Mapping[str, Any]) -> None:
    """Refuses to write an index whose first tasks are not those of the store, or that would change what they answer."""
    old, new = present["tasks"], index["tasks"]
    for position, entry in enumerate(old):
        if position >= len(new):
            raise NacreError(
                f"{folder} has a task {entry['name']!r} that this space does not: another writer added it. "
                "Load the store again and learn on top of that"
            )
        if entry["sha256"] != new[position]["sha256"] or entry["name"] != new[position]["name"]:
            raise NacreError(
                f"{folder} holds another space: its task {position} is {entry['name']!r} "
                f"({entry['sha256'][:8]}), here it is {new[position]['name']!r} ({new[position]['sha256'][:8]})"
            )
    gone = dropped(present)
    for entry in new[len(old) :]:
        if (entry["sha256"], entry["created"]) in gone:
            raise NacreError(
                f"task {entry['name']!r} was dropped from {folder} after this space had been loaded, and saving would "
                "bring it back: load the store again and learn on top of that"
            )
    for key in ("layout", "base", "base_file", "base_source"):
        if present.get(key) != index.get(key):
            raise NacreError(f"{folder} holds another space: it was made for another backbone ({key} differs)")
    if PREPROCESSING in present["facts"] and present["facts"][PREPROCESSING] != index["facts"].get(PREPROCESSING):
        raise NacreError(f"{folder} holds another space: its pictures are prepared in another way")


def dropped(index: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The tasks that were dropped, each by the hash of its file and by when it was learnt: the same task may be learnt
    again, to the same bits."""
    return {(gone["sha256"], gone["created"]) for gone in index.get("dropped", [])}
