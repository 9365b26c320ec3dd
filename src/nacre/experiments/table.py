"""Tables of runs and grids, on standard output."""

from __future__ import annotations

from typing import Any

from nacre.experiments.metrics import printed
from nacre.tables import Column, print_line, print_table


def print_run(result: dict[str, Any]) -> None:
    """The result of `run` on standard output."""
    for run in result.get("runs", [result]):
        print_table(f"Accuracy in % after each task (seed {run['seed']})", *_accuracies(run))
        if any(run["ranks"].values()):
            print_table(*ranks_table(run["ranks"]))
    print_line(_summary(result))


def print_grid(result: dict[str, Any]) -> None:
    """The result of `compare` on standard output: a row for every method with its dials."""
    cells, wanted = result["cells"], len(result["seeds"])
    columns = [
        Column("seeds", [f"{len(cell['seeds'])} of {wanted}" for cell in cells]),
        Column("ACC %", [_printed(cell, "acc") for cell in cells]),
        Column("BWT", [_printed(cell, "bwt") for cell in cells]),
        Column("MB", [_printed(cell, "megabytes", 3) for cell in cells]),
    ]
    title = f"{result['scenario']}, protocol {result['protocol']}"
    print_table(title, Column("method", [cell["cell"] for cell in cells], text=True), columns)


def _accuracies(run: dict[str, Any]) -> tuple[Column, list[Column]]:
    rows = run["accuracy_matrix"]
    columns = [
        Column(task, ["" if row[at] is None else f"{row[at]:.2f}" for row in rows])
        for at, task in enumerate(run["tasks"])
    ]
    return Column("after task", run["tasks"], text=True), columns


def ranks_table(ranks: dict[str, dict[str, int]]) -> tuple[str, Column, list[Column]]:
    """A row a task, a column a layer."""
    layers = dict.fromkeys(layer for added in ranks.values() for layer in added)
    columns = [Column(layer, [str(added.get(layer, "")) for added in ranks.values()]) for layer in layers]
    return "Rank that each task added to each layer", Column("task", list(ranks), text=True), columns


def _printed(result: dict[str, Any], key: str, digits: int = 2) -> str:
    return printed(result[key], result["std"][key] if "std" in result else None, digits)


def _summary(result: dict[str, Any]) -> str:
    line = (
        f"{result['method']['name']} on {result['scenario']}: ACC {_printed(result, 'acc')} %  "
        f"BWT {_printed(result, 'bwt')}  forgetting {_printed(result, 'forgetting')}  "
        f"{_printed(result, 'megabytes', 3)} MB"
    )
    if "bytes_on_disk" in result:
        line += f"  ({result['bytes_on_disk']:,} bytes on disk)"
    return line
