"""Tables of runs and grids, on standard output."""

from __future__ import annotations

from statistics import fmean
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
    if any(cell.get("dtype") for cell in cells):
        columns.append(Column("at 4 bytes a number", [f"{_mean(cell, 'megabytes_at_4_bytes'):.3f}" for cell in cells]))
    if any(beside := [_kept_beside(cell) for cell in cells]):
        columns.append(Column("kept beside, MB", [f"{each:.3f}" if each else "" for each in beside]))
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


def _kept_beside(result: dict[str, Any]) -> float:
    """MB of examples and numbers that are kept to learn later tasks and no answer needs."""
    return _mean(result, "image_megabytes") + _mean(result, "learning_megabytes")


def _mean(result: dict[str, Any], key: str) -> float:
    """Over the seeds."""
    return fmean(float(run.get(key, 0)) for run in result.get("runs", [result]))


def _summary(result: dict[str, Any]) -> str:
    line = (
        f"{result['method']['name']} on {result['scenario']}: ACC {_printed(result, 'acc')} %  "
        f"BWT {_printed(result, 'bwt')}  forgetting {_printed(result, 'forgetting')}  "
        f"{_printed(result, 'megabytes', 3)} MB"
    )
    if "bytes_on_disk" in result:
        line += f"  ({result['bytes_on_disk']:,} bytes on disk)"
    if beside := _kept_beside(result):
        line += f"  beside it {beside:.3f} MB are kept to learn later tasks"
    return line
