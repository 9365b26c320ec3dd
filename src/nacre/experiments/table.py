"""Tables for a terminal: what a run came to, what a store holds."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table


def print_run(result: dict[str, Any]) -> None:
    """The result of `run` on standard output."""
    runs = result.get("runs", [result])
    parts: list[RenderableType] = []
    for run in runs:
        parts += [_accuracies(run), *([_ranks(run)] if any(run["ranks"].values()) else [])]
    Console().print(Group(*parts, _summary(result)))


def _accuracies(run: dict[str, Any]) -> Table:
    table = Table(title=f"Accuracy in % after each task (seed {run['seed']})", title_justify="left")
    table.add_column("after task")
    for task in run["tasks"]:
        table.add_column(task, justify="right")
    for task, row in zip(run["tasks"], run["accuracy_matrix"], strict=True):
        table.add_row(task, *("" if value is None else f"{value:.2f}" for value in row))
    return table


def _ranks(run: dict[str, Any]) -> Table:
    table = Table(title="Rank that each task added to each layer", title_justify="left")
    table.add_column("task")
    layers = next(list(ranks) for ranks in run["ranks"].values() if ranks)
    for layer in layers:
        table.add_column(layer, justify="right")
    for task, ranks in run["ranks"].items():
        table.add_row(task, *(str(ranks.get(layer, "")) for layer in layers))
    return table


def _summary(result: dict[str, Any]) -> str:
    std = result.get("std")

    def shown(key: str, digits: int) -> str:
        return f"{result[key]:.{digits}f}" + (f"({std[key]:.{digits}f})" if std else "")

    method = result["method"]["name"]
    lines = (
        f"{method} on {result['scenario']}: ACC {shown('acc', 2)} %  BWT {shown('bwt', 2)}  {shown('megabytes', 3)} MB"
    )
    if "bytes_on_disk" in result:
        lines += f"  ({result['bytes_on_disk']:,} bytes on disk)"
    return lines


def print_space(described: dict[str, Any]) -> None:
    """What a store holds, on standard output."""
    layers = list(dict.fromkeys(layer for task in described["tasks"] for layer in task["ranks"]))
    table = Table(title=described["store"], title_justify="left")
    for name in ("task", "classes", "learnt"):
        table.add_column(name)
    for name in (*layers, "MB", "bytes"):
        table.add_column(name, justify="right")
    for task in described["tasks"]:
        classes = task["classes"]
        named = (
            "" if classes is None else f"{len(classes)}: {', '.join(classes[:6])}" + ("..." if len(classes) > 6 else "")
        )
        ranks = [str(task["ranks"].get(layer, "")) for layer in layers]
        table.add_row(
            repr(task["task"])[1:-1],
            named,
            task["learnt"],
            *ranks,
            f"{task['megabytes']:.4f}",
            f"{task['bytes_on_disk']:,}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"{len(described['tasks'])} tasks, {described['megabytes']:.3f} MB at 4 bytes a number, "
        f"{described['bytes_on_disk']:,} bytes on disk"
    )
