"""`nacre inspect`: what a store holds, where its bytes go, and what would make it smaller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nacre.cli.options import AsJson, Store
from nacre.cli.output import print_json

_WIDE = 120  # characters of all headings
_BASES = ("backbone", "external")


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
    _print_counts("Rank that each task added to each layer", "ranks", tasks)
    _print_counts("Where the bytes of a task go", "parts", tasks)
    _print_counts("Of those for factors, by layer", "layers", tasks)
    if described.get("base") in _BASES:
        print_line(_base(described))
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


def _print_counts(title: str, key: str, tasks: Sequence[dict[str, Any]]) -> None:
    """A row for each task, a column for each of what is counted; the other way round where that is too wide."""
    from nacre.tables import Column, print_table

    counted = list(dict.fromkeys(heading for task in tasks for heading in task[key]))
    cells = {task["task"]: [f"{task[key].get(heading, 0):,}" for heading in counted] for task in tasks}
    if sum(map(len, counted)) > _WIDE:
        columns = [Column(task, column) for task, column in cells.items()]
        print_table(title, Column("layer", counted, text=True), columns)
    elif counted:
        columns = [Column(heading, [row[at] for row in cells.values()]) for at, heading in enumerate(counted)]
        print_table(title, Column("task", list(cells), text=True), columns)


def _base(described: dict[str, Any]) -> str:
    """What is under every task, and where it is."""
    source = described["base_source"] or {"name": None, "sha256": ""}
    size = f"{described['base_megabytes']:.3f} MB"
    if described["base"] == "backbone":
        where = f"{size}, {described['base_bytes']:,} bytes on disk, once for all tasks"
    else:
        where = f"{size}, outside of the store, known by its hash {source['sha256'][:12]}"
    return f"Under every task {source['name'] or described['network']}: {where}"


def _classes(names: Sequence[str] | None) -> str:
    return "" if names is None else f"{len(names)}: {', '.join(names)}"
