"""What users name: tasks, their classes and folders. Which names are allowed, and errors that say which exist."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nacre.errors import NacreError


def check_new(name: object, tasks: Sequence[str]) -> None:
    """Refuses what cannot become the name of the next task. Any text a user types can."""
    if not isinstance(name, str) or not name.strip():
        raise NacreError(f"a task's name is a text that is not blank; got {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise NacreError(f"a task's name must be valid Unicode; got {name!r}") from error
    if name in tasks:
        raise NacreError(f"a task called {name!r} is already learnt; {existing(tasks)}")


def check_known(name: object, tasks: Sequence[str]) -> None:
    """Refuses the name of no task, and the lack of one."""
    if name is None:
        raise NacreError(f"say which task with task=; {existing(tasks)}")
    if name not in tasks:
        raise NacreError(f"no task is called {name!r}; {existing(tasks)}")


def class_names(given: Any) -> tuple[str, ...] | None:
    """The names of a task's classes, in the order of their numbers.

    >>> class_names(["cat", "dog"])
    ('cat', 'dog')
    """
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise NacreError(f"classes= is a list of names, one for each class number; got {given!r:.80}")
    names = tuple(str(name) for name in given)
    if len(set(names)) < len(names):
        raise NacreError(f"classes= gives two classes one name: {', '.join(names)}")
    return names


def as_path(given: Any) -> Path:
    try:
        path = Path(given)
        if b"\0" in os.fsencode(path):
            raise ValueError("no file has a NUL character in its name")
    except (TypeError, ValueError) as error:
        raise NacreError(f"a path is a text or a pathlib.Path that a file can have; got {given!r:.80}") from error
    return path


def existing(tasks: Sequence[str]) -> str:
    if not tasks:
        return "nothing has been learnt yet"
    more = f" and {len(tasks) - 20} more" if len(tasks) > 20 else ""
    return f"the tasks are {', '.join(map(repr, tasks[:20]))}{more}"
