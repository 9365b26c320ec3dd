"""`nacre verify`: whether a store is as it was written."""

from __future__ import annotations

import sys

from nacre.cli.options import Store


def verify(store: Store, /) -> None:
    """Check every file of a store against its hash; exit status 1 and the file's name if one is damaged.

    Args:
        store: The folder that was saved to.
    """
    from nacre.space import verify as problems_in

    problems = problems_in(store)
    if problems:
        sys.exit("\n".join(f"nacre: {problem}" for problem in problems))
    print(f"{store}: every file is as it was written")
