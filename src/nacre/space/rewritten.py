"""The one file of knowledge that changes as a whole with each task: versioned, hashed, replaced atomically, no pickle.

A SharedSpace only ever adds files; what overwrites its weights has nothing to add to. The file lies in a folder, so
that both are saved, loaded, inspected and verified under the same names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from nacre.errors import NacreError
from nacre.space.container import FACTS, canonical_json, decode, encode
from nacre.space.store import locked, replace_file

FILE = "weights.safetensors"
FORMAT, VERSION = "nacre weights", 1
Facts = dict[str, Any]


def is_rewritten(folder: Path) -> bool:
    return (folder / FILE).exists()


def write(folder: Path, tensors: Mapping[str, Tensor], facts: Facts) -> int:
    """Replaces the file, and gives its bytes; what it held must be the beginning of what is written."""
    signed: Facts = {**json.loads(canonical_json(facts)), "format": FORMAT, "version": VERSION}
    signed["sha256"] = _digest(tensors, signed)
    data = encode(tensors, signed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not is_rewritten(folder) and any(path.name != f"{FILE}.partial" for path in folder.iterdir()):
            raise NacreError(f"{folder} holds something else: save to another folder")
        if is_rewritten(folder):
            _check_continues(folder, signed)
        with locked(folder):
            replace_file(folder / FILE, data)
    except OSError as error:
        raise NacreError(
            f"{folder} could not be written: {error.strerror or error}. What it held is as it was before; "
            "what was learnt is still in memory: save again, here or elsewhere"
        ) from error
    return len(data)


def _check_continues(folder: Path, facts: Facts) -> None:
    old, new = read_facts(folder)["tasks"], facts["tasks"]
    for position, entry in enumerate(old):
        mine = new[position] if position < len(new) else None
        if mine is None or (mine["name"], mine["created"]) != (entry["name"], entry["created"]):
            here = "there is none" if mine is None else f"it is {mine['name']!r}, learnt {mine['created']}"
            raise NacreError(
                f"{folder} holds something else that was learnt: its task {position} is {entry['name']!r}, learnt "
                f"{entry['created']}, here {here}"
            )


def read(folder: Path) -> tuple[dict[str, Tensor], Facts]:
    """The tensors and facts of the file, exactly those that were written."""
    path = folder / FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NacreError(f"{path} cannot be read: {error.strerror}") from error
    tensors, facts = decode(data, path)
    _check_facts(path, facts)
    if facts["sha256"] != _digest(tensors, {key: value for key, value in facts.items() if key != "sha256"}):
        raise NacreError(f"{path} is damaged: its contents do not match its own hash")
    return tensors, facts


def read_facts(folder: Path) -> Facts:
    """The facts alone, without the tensors: nothing is hashed."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        facts: Facts = json.loads(header["__metadata__"][FACTS])
    except OSError as error:
        raise NacreError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, MemoryError, OverflowError, RecursionError) as error:
        raise NacreError(f"{path} is damaged: {error}") from error
    _check_facts(path, facts)
    return facts


def _check_facts(path: Path, facts: Any) -> None:
    try:
        if facts["format"] != FORMAT or not isinstance(facts["facts"], dict):
            raise ValueError(f"it is none of nacre's {FORMAT}")
        if type(facts["version"]) is int and facts["version"] > VERSION:
            raise NacreError(
                f"{path} has format version {facts['version']}, this nacre reads up to {VERSION}: install a newer nacre"
            )
        names = [entry["name"] for entry in facts["tasks"]]
        if len(set(names)) < len(names) or facts["version"] != VERSION:
            raise ValueError(f"it has version {facts['version']!r} and the tasks {names}")
    except (ValueError, KeyError, TypeError) as error:
        raise NacreError(f"{path} is damaged: {error!r}") from error


def _digest(tensors: Mapping[str, Tensor], facts: Facts) -> str:
    """A hash of all that the file says, whichever version of safetensors laid it out."""
    digest = hashlib.sha256(canonical_json(facts).encode())
    for name in sorted(tensors):
        stored = tensors[name].detach().to("cpu").contiguous()
        digest.update(canonical_json([name, str(stored.dtype), list(stored.shape)]).encode())
        digest.update(stored.numpy().tobytes())
    return digest.hexdigest()
