"""Tables: as wide as a terminal is, in several pieces where need be; whole and unfolded into a pipe or a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNLIMITED = 1 << 20  # of a pipe; COLUMNS says nothing about those
_FOLDED = 24  # texts longer than this may be folded on a terminal
_HEADING = 12  # and headings of numbers longer than this
_GAP = 2


class Column:
    """A heading and a cell a row; text may be folded, numbers may not."""

    def __init__(self, heading: str, cells: Sequence[str], *, text: bool = False) -> None:
        self.heading, self.cells, self.text = _printable(heading), [_printable(cell) for cell in cells], text
        heading_width, cells_width = cell_len(self.heading), max(map(cell_len, self.cells), default=0)
        self.most = max(heading_width, cells_width)
        self.least = min(self.most, _FOLDED) if text else max(cells_width, min(heading_width, _HEADING))


def console() -> Console:
    """Standard output."""
    return Console(width=None if sys.stdout.isatty() else _UNLIMITED, highlight=False)


def print_line(line: str) -> None:
    console().print(Text(_printable(line)))


def print_table(title: str, names: Column, columns: Sequence[Column]) -> None:
    """The rows' names before as many columns as fit, and again before the next ones."""
    wide = console()
    if title:
        print_line(title)
    for piece in _pieces(names, columns, wide.width):
        wide.print(_table(piece, wide.width))


def _pieces(names: Column, columns: Sequence[Column], width: int) -> Iterator[list[Column]]:
    piece = [names]
    for column in columns:
        if len(piece) > 1 and sum(each.least + _GAP for each in (*piece, column)) > width:
            yield piece
            piece = [names]
        piece.append(column)
    yield piece


def _table(columns: Sequence[Column], width: int) -> Table:
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
