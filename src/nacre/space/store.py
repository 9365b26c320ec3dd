"""The folder a shared space is kept in: append-only, atomic, locked, hashed. Knows bytes and names, no networks."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nacre.errors import NacreError
from nacre.space.container import canonical_json, parse_json

FORMAT, VERSION = "nacre space", 1
INDEX, TASKS, LOCK = "space.json", "tasks", ".lock"
BASE_FILE = "base.safetensors"
_FILE_NAME = re.compile(r"tasks/[0-9]{3,9}-[A-Za-z0-9_-]{0,40}\.safetensors|base\.safetensors")
_PATIENCE_S = 5.0  # a writer holds the lock for milliseconds

Index = dict[str, Any]


def task_file(position: int, name: str) -> str:
    """The file of a task: a number and what is left of its name without anything a path could mean.

    >>> task_file(0, "animals"), task_file(12, "../../etc/passwd")
    ('tasks/000-animals.safetensors', 'tasks/012-etc-passwd.safetensors')
    """
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:40]
    return f"{TASKS}/{position:03d}-{slug}.safetensors"


def fingerprint(data: bytes) -> dict[str, Any]:
    """What the index says of a file."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def read_index(folder: Path) -> Index:
    """The index of a store, its own hash checked."""
    path = folder / INDEX
    try:
        _size(path)
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        what = "does not exist" if not folder.exists() else f"has no {INDEX}, so it is no nacre store"
        raise NacreError(f"{folder} {what}; a store is made by SharedSpace.save or Learner.save") from None
    except OSError as error:
        raise NacreError(f"{path} cannot be read: {error.strerror}") from error
    try:
        index: Index = parse_json(data)
        if index["format"] != FORMAT:
            raise ValueError("it is not the index of a nacre store")
        if type(index["version"]) is int and index["version"] > VERSION:
            raise NacreError(
                f"{path} has format version {index['version']}, this nacre reads up to {VERSION}: install a newer nacre"
            )
        if data != _signed(index) or index["version"] != VERSION:
            raise ValueError("its contents do not match its own hash")
        _check_index(index)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NacreError(f"{path} is damaged: {error}") from error
    return index


def _signed(index: Index) -> bytes:
    """The index as bytes, with the hash of itself in it."""
    unsigned = canonical_json({**index, "sha256": ""})
    return (canonical_json({**index, "sha256": hashlib.sha256(unsigned.encode()).hexdigest()}) + "\n").encode()


def _check_index(index: Index) -> None:
    """Refuses an index whose files could lie outside the store, or whose tasks have no proper names."""
    for entry in entries(index):
        if not isinstance(entry["file"], str) or not _FILE_NAME.fullmatch(entry["file"]):
            raise ValueError(f"it names the file {entry['file']!r}, which no store of nacre's contains")
        if type(entry["bytes"]) is not int or not isinstance(entry["sha256"], str):
            raise ValueError(f"{entry['file']} has the size {entry['bytes']!r} and the hash {entry['sha256']!r}")
    if not isinstance(index["facts"], dict):
        raise ValueError(f"its facts are {index['facts']!r:.80}")
    names = [entry["name"] for entry in index["tasks"]]
    if len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
        raise ValueError("a task stands in it twice")


def entries(index: Index) -> list[dict[str, Any]]:
    """Every file that an index names: the tasks in order, and the dense base if there is one."""
    return [*index["tasks"], *([index["base_file"]] if index["base_file"] else [])]


def read_file(folder: Path, entry: Mapping[str, Any]) -> bytes:
    """The bytes of one file of the store, exactly those that were committed."""
    path = folder / str(entry["file"])
    try:
        size = _size(path)
        if size != entry["bytes"]:  # before reading: a swapped file may be huge
            raise NacreError(f"{path} is damaged: it has {size} bytes, {entry['bytes']} were written")
        data = path.read_bytes()
    except OSError as error:
        raise NacreError(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise NacreError(f"{path} is damaged: its contents do not match the hash in {INDEX}")
    return data


def _size(path: Path) -> int:
    """The bytes of a file. Anything else is refused: reading a pipe or a device might never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise NacreError(f"{path} cannot be read: it is no file")
    return status.st_size


def size_on_disk(folder: Path) -> int:
    """Bytes of the index and every file it names."""
    index = read_index(folder)
    return (folder / INDEX).stat().st_size + sum(int(entry["bytes"]) for entry in entries(index))


def write(folder: Path, index: Index, contents: Callable[[Mapping[str, Any]], bytes]) -> None:
    """Makes the store say `index`; `contents` gives the bytes of an entry that is not yet there.

    A store that exists is only ever continued: what it holds must be the beginning of what is written.
    """
    index = parse_json(canonical_json(index).encode())  # as it will be read: tuples are lists there
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            _create(Path(os.path.realpath(folder)), index, contents)  # where a link leads, which stays one
        else:
            read_index(folder)  # before a lock file is put into a folder that is no store
            with locked(folder):
                _extend(folder, index, contents)
    except OSError as error:
        raise NacreError(
            f"{folder} could not be written: {error.strerror or error}. The store on disk is as it was before; "
            "what was learnt is still in memory: save again, here or elsewhere"
        ) from error


def _extend(folder: Path, index: Index, contents: Callable[[Mapping[str, Any]], bytes]) -> None:
    present = read_index(folder)
    old, new = present["tasks"], index["tasks"]
    _check_continues(folder, present, index)
    index = {**index, "tasks": [*old, *new[len(old) :]]}  # when a task was learnt does not change either
    if index == {key: value for key, value in present.items() if key != "sha256"}:
        return
    (folder / TASKS).mkdir(exist_ok=True)
    for entry in new[len(old) :]:
        replace_file(folder / entry["file"], contents(entry))
    replace_file(folder / INDEX, _signed(index))
    _clear_strays(folder, [entry["file"] for entry in new[len(old) :]])


def _clear_strays(folder: Path, files: list[str]) -> None:
    """Removes what a killed writer left under the numbers of tasks that are now committed under other names."""
    for file in files:
        number = file.removeprefix(f"{TASKS}/").split("-")[0]
        for path in (folder / TASKS).glob(f"{number}-*"):
            if path != folder / file:
                with contextlib.suppress(OSError):  # the store is whole, with it or without
                    path.unlink()


def _check_continues(folder: Path, present: Index, index: Index) -> None:
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
    for key in ("layout", "base", "base_file"):
        if present[key] != index[key]:
            raise NacreError(f"{folder} holds another space: it was made for another backbone ({key} differs)")


def _create(folder: Path, index: Index, contents: Callable[[Mapping[str, Any]], bytes]) -> None:
    """A new store appears whole or not at all: it is made beside its place and renamed."""
    made = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.partial"
    try:
        (made / TASKS).mkdir(parents=True)
        for entry in entries(index):
            replace_file(made / entry["file"], contents(entry))
        replace_file(made / INDEX, _signed(index))
        made.rename(folder)  # fails if another writer was first: a store is not empty
        _sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    partial = re.compile(re.escape(f".{folder.name}.") + r"[0-9a-f]{32}\.partial")
    with contextlib.suppress(OSError):  # a parent that cannot be listed
        for path in folder.parent.iterdir():
            if partial.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)  # of a writer that was killed, or came second


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file so that after a crash it is the old one or the new one, never part of either."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(PermissionError):  # Windows opens no folders; there the rename is all there is
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / LOCK, timeout=_PATIENCE_S)
    try:
        with lock:
            yield
    except Timeout:
        raise NacreError(
            f"{folder} is being written by another process (it has held {folder / LOCK} for {_PATIENCE_S:g} s): "
            "try again when that one is done"
        ) from None
