"""`nacre predict`: what a task sees on pictures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from nacre.cli.options import AsJson, Store, TaskName
from nacre.cli.output import print_json, say
from nacre.errors import WrongUsage

if TYPE_CHECKING:
    from nacre.images import Answer


def predict(
    store: Store,
    task: TaskName,
    pictures: Annotated[Positional[tuple[Path, ...]], arg(metavar="PICTURES...")],
    /,
    *,
    top: int = 1,
    json: AsJson = False,
) -> None:
    """Say what a task sees on pictures: file, class, probability. They are prepared as those were that it learnt from.

    Files that cannot be read are named, and the exit status is then 1.

    Args:
        store: The folder of what has been learnt.
        task: Which task to ask; nacre inspect lists them.
        pictures: Files of any size and mode, and folders of them.
        top: How many classes to show for every picture, the most probable first.
        json: Print it as JSON.
    """
    from nacre.images import predict as predict_pictures

    if top < 1:
        raise WrongUsage(f"--top is a whole number from 1; got {top}")
    if not pictures:
        raise WrongUsage("predict takes pictures, or folders of them")
    answers, broken = predict_pictures(store, task, pictures, top)
    if json:
        print_json({"task": task, "pictures": [_as_json(answer) for answer in answers], "broken": broken})
    elif answers:
        _print(answers)
    if broken:
        sys.stdout.flush()
        for problem in broken:
            say(f"nacre: {problem}")
        sys.exit(1)


def _as_json(answer: Answer) -> dict[str, object]:
    classes = [{"class": name, "probability": share} for name, share in answer.classes]
    return {"file": str(answer.file), **classes[0], "top": classes}


def _print(answers: Sequence[Answer]) -> None:
    from nacre.tables import Column, print_table

    rows = [(str(answer.file) if at == 0 else "", *one) for answer in answers for at, one in enumerate(answer.classes)]
    files, classes, shares = zip(*rows, strict=True)
    columns = [Column("class", classes, text=True), Column("probability", [f"{share:.3f}" for share in shares])]
    print_table("", Column("file", files, text=True), columns)
