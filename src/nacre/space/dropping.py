"""Taking the last task out of a store again: the index first, then its file. Needs no network."""

from __future__ import annotations

import contextlib
from pathlib import Path

from nacre.errors import NacreError
from nacre.space import store
from nacre.space.naming import check_known


def drop(folder: Path, task: str) -> int:
    """Drops a store's last task and gives the bytes that its file took. No other file is touched, so the tasks before
    it answer as they did.

    The index is replaced first. A crash after that leaves a file that the store does not name, and that the next task
    under its number clears away.
    """
    store.read_index(folder)  # before a lock file is put into a folder that is no store
    try:
        with store.locked(folder):
            index = store.read_index(folder)
            _check_last(folder, index, task)
            *kept, last = index["tasks"]
            gone = {key: last[key] for key in ("name", "created", "sha256")}
            dropped = [*index.get("dropped", []), gone]
            store.replace_file(folder / store.INDEX, store.signed({**index, "tasks": kept, "dropped": dropped}))
            with contextlib.suppress(OSError):  # the store is whole, with it or without
                (folder / last["file"]).unlink()
                store.sync_folder(folder / store.TASKS)
            return int(last["bytes"])
    except OSError as error:
        raise NacreError(f"{folder} could not be written: {error.strerror or error}. It is as it was before") from error


def _check_last(folder: Path, index: store.Index, task: str) -> None:
    names = [entry["name"] for entry in index["tasks"]]
    check_known(task, names)
    position = names.index(task)
    later = index["tasks"][position + 1 :]
    if not later:
        return
    standing = [entry["name"] for entry in later if entry["shares"] and index["tasks"][position]["shares"]]
    why = (
        f"{_listed(standing)} learnt after it and would answer otherwise without it, for their weights are the sum of "
        "all that came before"
        if standing
        else f"{_listed([entry['name'] for entry in later])} learnt after it, and a store gives up tasks from its end"
    )
    raise NacreError(f"task {task!r} of {folder} cannot be dropped: {why}. Only the last one can: {names[-1]!r}")


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown} {'were' if len(names) > 1 else 'was'}"
