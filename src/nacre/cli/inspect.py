"""`nacre inspect`: what a store holds, where its bytes go, and what would make it smaller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nacre.cli.options import AsJson, Store
from nacre.cli.output import print_json


def inspect(store: Store, /, *, json: AsJson = False) -> None:
    """Show what a store holds: tasks, classes, ranks, dates; where its bytes go, and what would save some.

    Args:
        store: The folder that was saved to.
        json: Print it as JSON.
    """
    from nacre.space import describe

    described = describe(store)
    if json:
        print_json(described)
    else:
        _print(described)


def _print(described: dict[str, Any]) -> None:
    from nacre.experiments.table import ranks_table
    from nacre.tables import Column, print_line, print_table

    tasks = described["tasks"]
    names = Column("task", [task["task"] for task in tasks], text=True)
    columns = [
        Column("learnt (UTC)", [str(task["learnt"])[:16].replace("T", " ") for task in tasks]),
        Column("MB", [f"{task['megabytes']:.4f}" for task in tasks]),
        Column("bytes", ["" if task["bytes_on_disk"] is None else f"{task['bytes_on_disk']:,}" for task in tasks]),
        Column("classes", [_classes(task["classes"]) for task in tasks], text=True),
    ]
    print_table(described["store"], names, columns)
    if any(task["ranks"] for task in tasks):
        print_table(*ranks_table({task["task"]: task["ranks"] for task in tasks}))
    for title, key in (("Where the bytes of a task go", "parts"), ("Of those for factors, by layer", "layers")):
        headings = dict.fromkeys(heading for task in tasks for heading in task[key])
        cells = {heading: [f"{task[key].get(heading, 0):,}" for task in tasks] for heading in headings}
        if cells:
            print_table(title, names, [Column(heading, column) for heading, column in cells.items()])
    each = "in the bits they are stored in" if described["fewer_bits"] else "at 4 bytes a number"
    print_line(
        f"{len(tasks)} tasks, {described['megabytes']:.3f} MB {each}, {described['bytes_on_disk']:,} bytes on disk"
    )
    if described.get("image_megabytes") or described.get("learning_megabytes"):
        print_line(
            f"kept to learn later tasks: {described['images_kept']} examples, {described['image_megabytes']:.3f} MB; "
            f"numbers, {described['learning_megabytes']:.3f} MB"
        )
    for suggestion in described["suggestions"]:
        print_line(f"- {suggestion}")


def _classes(names: Sequence[str] | None) -> str:
    return "" if names is None else f"{len(names)}: {', '.join(names)}"
