"""The folder beside a store that keeps what is being learnt: an interrupt leaves the store as it was."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nacre.errors import NacreError
from nacre.space.container import canonical_json
from nacre.training.processes import Processes

_LOCK = ".lock"


@contextlib.contextmanager
def learning(store: Path) -> Iterator[Path]:
    """STORE.learning, this process's alone; taken away when the block has ended well or nothing was begun in it."""
    place = store.resolve()
    folder = place.with_name(f"{place.name}.learning")
    if not Processes.current().main:
        yield folder
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise NacreError(
            f"{store} is being learnt into by another process: one task is learnt after the other"
        ) from None
    try:
        yield folder
        for begun in folder.glob("*/"):  # also what was begun before this task was there, and could not go on now
            shutil.rmtree(begun, ignore_errors=True)
    finally:
        lock.release()
        if not any(folder.glob("*/")):
            with contextlib.suppress(OSError):  # somebody else has begun this moment
                (folder / _LOCK).unlink(missing_ok=True)
                folder.rmdir()


def checkpoints(folder: Path, plan: dict[str, Any]) -> Path:
    """The checkpoints of exactly this plan: another recipe, other pictures or another store begin anew."""
    return folder / hashlib.sha256(canonical_json(plan).encode()).hexdigest()[:16]
