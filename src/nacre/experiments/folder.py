"""The folder of a run or of a grid: whose it is, who writes there, its JSON files. Every file is replaced whole."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nacre.errors import NacreError
from nacre.space.store import replace_file

RUN, GRID, ENVIRONMENT, RESULT = "run.json", "grid.json", "environment.json", "result.json"
LOCK = ".lock"
_PATIENCE_S = 5.0  # a killed command's processes need a moment to end
Json = dict[str, Any]


def claim(out: Path, name: str, config: Json, *, resume: bool) -> None:
    """Makes a folder the one of a run (or a grid) with these settings; what another one made is left alone."""
    path, what = out / name, Path(name).stem
    if not path.exists():
        if out.exists() and not out.is_dir():
            raise NacreError(f"{out} is no folder: give another one with --out")
        if out.exists() and any(found.name not in (f"{name}.partial", LOCK) for found in out.iterdir()):
            raise NacreError(f"{out} holds something that is not a {what} of nacre's: give another folder with --out")
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, config)
        return
    if not resume:
        raise NacreError(
            f"{out} holds a {what} already: go on with it with --resume, or give another folder with --out"
        )
    if differences := _differences(path, config):
        raise NacreError(f"{out} holds a {what} with other settings than these: {differences}")


def _differences(path: Path, config: Json) -> str:
    try:
        old, new = flat(json.loads(path.read_bytes())), flat(json.loads(json.dumps(config)))
    except (ValueError, AttributeError) as error:
        raise NacreError(f"{path} is damaged: {error}") from error
    changed = [key for key in {**new, **old} if old.get(key) != new.get(key)]
    return "; ".join(f"{key} was {old.get(key)}, now {new.get(key)}" for key in changed)


def flat(settings: Json, above: str = "") -> Json:
    """Settings within settings by their full names: recipe.epochs."""
    found: Json = {}
    for key, value in settings.items():
        found |= flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


def read_json(path: Path) -> Json | None:
    """A file's object; None where there is no file."""
    try:
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict):
            raise ValueError("it holds no JSON object")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise NacreError(f"{path} is damaged: {error}") from error
    return data


def write_json(path: Path, data: Json) -> None:
    replace_file(path, (json.dumps(data, indent=2, allow_nan=False) + "\n").encode())


@contextlib.contextmanager
def locked(folder: Path, *, wanted: bool = True) -> Iterator[None]:
    """Keeps other processes out of a folder; a lock ends with the process that holds it, however that ends."""
    if not wanted:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=_PATIENCE_S)
    try:
        lock.acquire()
    except Timeout:
        raise NacreError(f"{folder} is in use by another nacre process: wait for it, or give another folder") from None
    try:
        yield
    finally:
        lock.release()
