"""Names of tasks, layers and folders may be any text: shown, shortened and made into names of files."""

from __future__ import annotations

import re


def printable(text: str) -> str:
    """A name as it is, but for what would break a line or cannot be shown.

    >>> printable("cats\\nand dogs")
    'cats\\\\nand dogs'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def short(text: str, length: int = 16) -> str:
    """What of a name fits beside an axis.

    >>> short("a very long name of a task"), short("0-4")
    ('a very long nam…', '0-4')
    """
    shown = printable(text)
    return shown if len(shown) <= length else shown[: length - 1] + "…"


def slug(text: str) -> str:
    """A name of a file that is safe everywhere.

    >>> slug("CACL 0.1 (../x)"), slug("猫")
    ('cacl-0.1-x', 'unnamed')
    """
    return re.sub(r"(?:[^A-Za-z0-9.]|\.(?![0-9]))+", "-", text).strip("-.").lower()[:60] or "unnamed"


def unique(names: list[str]) -> list[str]:
    """The same names, those that stand twice numbered.

    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a-2']
    """
    found: list[str] = []
    for name in names:
        count, candidate = 1, name
        while candidate in found:
            count += 1
            candidate = f"{name}-{count}"
        found.append(candidate)
    return found
