"""Tables: as wide as a terminal is, in several pieces where need be; whole and unfolded into a pipe or a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nacre.experiments.metrics import printed

_UNLIMITED = 1 << 20  # of a pipe; COLUMNS says nothing about those
_FOLDED = 24  # texts longer than this may be folded on a terminal
_HEADING = 12  # and headings of numbers longer than this
_GAP = 2


def print_run(result: dict[str, Any]) -> None:
    """The result of `run` on standard output."""
    console = _console()
    for run in result.get("runs", [result]):
        _print_table(console, f"Accuracy in % after each task (seed {run['seed']})", *_accuracies(run))
        if any(run["ranks"].values()):
            _print_table(console, *_ranks(run["ranks"]))
    _print_line(console, _summary(result))


def print_grid(result: dict[str, Any]) -> None:
    """The result of `compare` on standard output: a row for every method with its dials."""
    console, cells, wanted = _console(), result["cells"], len(result["seeds"])
    columns = [
        _Column("seeds", [f"{len(cell['seeds'])} of {wanted}" for cell in cells]),
        _Column("ACC %", [_printed(cell, "acc") for cell in cells]),
        _Column("BWT", [_printed(cell, "bwt") for cell in cells]),
        _Column("MB", [_printed(cell, "megabytes", 3) for cell in cells]),
    ]
    if any(beside := [_kept_beside(cell) for cell in cells]):
        columns.append(_Column("kept beside, MB", [f"{each:.3f}" if each else "" for each in beside]))
    title = f"{result['scenario']}, protocol {result['protocol']}"
    _print_table(console, title, _Column("method", [cell["cell"] for cell in cells], text=True), columns)


def print_space(described: dict[str, Any]) -> None:
    """What a store holds, on standard output."""
    console, tasks = _console(), described["tasks"]
    columns = [
        _Column("learnt (UTC)", [str(task["learnt"])[:16].replace("T", " ") for task in tasks]),
        _Column("MB", [f"{task['megabytes']:.4f}" for task in tasks]),
        _Column("bytes", ["" if task["bytes_on_disk"] is None else f"{task['bytes_on_disk']:,}" for task in tasks]),
        _Column("classes", [_classes(task["classes"]) for task in tasks], text=True),
    ]
    _print_table(console, described["store"], _Column("task", [task["task"] for task in tasks], text=True), columns)
    if any(task["ranks"] for task in tasks):
        _print_table(console, *_ranks({task["task"]: task["ranks"] for task in tasks}))
    _print_line(
        console,
        f"{len(tasks)} tasks, {described['megabytes']:.3f} MB at 4 bytes a number, "
        f"{described['bytes_on_disk']:,} bytes on disk",
    )
    if _kept_beside(described):
        _print_line(
            console,
            f"kept to learn later tasks: {described['images_kept']} examples, {described['image_megabytes']:.3f} MB; "
            f"numbers, {described['learning_megabytes']:.3f} MB",
        )


def _classes(names: Sequence[str] | None) -> str:
    return "" if names is None else f"{len(names)}: {', '.join(names)}"


class _Column:
    """A heading and a cell a row; text may be folded, numbers may not."""

    def __init__(self, heading: str, cells: Sequence[str], *, text: bool = False) -> None:
        self.heading, self.cells, self.text = _printable(heading), [_printable(cell) for cell in cells], text
        heading_width, cells_width = cell_len(self.heading), max(map(cell_len, self.cells), default=0)
        self.most = max(heading_width, cells_width)
        self.least = min(self.most, _FOLDED) if text else max(cells_width, min(heading_width, _HEADING))


def _accuracies(run: dict[str, Any]) -> tuple[_Column, list[_Column]]:
    rows = run["accuracy_matrix"]
    columns = [
        _Column(task, ["" if row[at] is None else f"{row[at]:.2f}" for row in rows])
        for at, task in enumerate(run["tasks"])
    ]
    return _Column("after task", run["tasks"], text=True), columns


def _ranks(ranks: dict[str, dict[str, int]]) -> tuple[str, _Column, list[_Column]]:
    layers = dict.fromkeys(layer for added in ranks.values() for layer in added)
    columns = [_Column(layer, [str(added.get(layer, "")) for added in ranks.values()]) for layer in layers]
    return "Rank that each task added to each layer", _Column("task", list(ranks), text=True), columns


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _UNLIMITED, highlight=False)


def _print_line(console: Console, line: str) -> None:
    console.print(Text(_printable(line)))


def _print_table(console: Console, title: str, names: _Column, columns: Sequence[_Column]) -> None:
    """The rows' names before as many columns as fit, and again before the next ones."""
    _print_line(console, title)
    for piece in _pieces(names, columns, console.width):
        console.print(_table(piece, console.width))


def _pieces(names: _Column, columns: Sequence[_Column], width: int) -> Iterator[list[_Column]]:
    piece = [names]
    for column in columns:
        if len(piece) > 1 and sum(each.least + _GAP for each in (*piece, column)) > width:
            yield piece
            piece = [names]
        piece.append(column)
    yield piece


def _table(columns: Sequence[_Column], width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))  # a line takes one
    spare = width - sum(column.least + _GAP for column in columns)
    for column in columns:
        more = max(0, min(spare, column.most - column.least))
        spare -= more
        table.add_column(
            Text(column.heading),
            justify="left" if column.text else "right",
            width=column.least + more,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table


def _printable(text: str) -> str:
    """A name as it is, but for what would move the cursor or cannot be shown."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _printed(result: dict[str, Any], key: str, digits: int = 2) -> str:
    return printed(result[key], result["std"][key] if "std" in result else None, digits)


def _kept_beside(result: dict[str, Any]) -> float:
    """MB of examples and numbers that are kept to learn later tasks and no answer needs; of several seeds the mean."""
    runs = result.get("runs", [result])
    return fmean(float(run.get("image_megabytes", 0) + run.get("learning_megabytes", 0)) for run in runs)


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
