"""A table, and how it is written: CSV for programs, Markdown, LaTeX for a paper, HTML for the page."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nacre.experiments.report.numbers import Number
from nacre.experiments.report.text import printable

Cell = str | int | float | Number | None
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",  # whatever the font's encoding
    "…": r"\ldots{}",
    "·": r"\textperiodcentered{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


@dataclass(frozen=True)
class Table:
    """Rows under headings. `marks` says of each row what it is, for the page's colours."""

    name: str  # of its files
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marks: tuple[str, ...] = ()

    def csv(self) -> str:
        """Every digit; a column of deviations after each column that has any."""
        deviating = [any(_std(row[at]) is not None for row in self.rows) for at in self._at]
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        heads: list[str] = []
        for heading, deviates in zip(self.headings, deviating, strict=True):
            heads += [heading, f"{heading} std"] if deviates else [heading]
        writer.writerow(heads)
        for row in self.rows:
            cells: list[object] = []
            for cell, deviates in zip(row, deviating, strict=True):
                cells.append(cell.mean if isinstance(cell, Number) else cell)
                cells += [_std(cell)] if deviates else []  # None is written as nothing
            writer.writerow(cells)
        return file.getvalue()

    @property
    def _at(self) -> range:
        return range(len(self.headings))

    def markdown(self) -> str:
        rule = ["---:" if self._numeric(at) else "---" for at in self._at]
        rows = [[_markdown(heading) for heading in self.headings], rule]
        rows += [[_markdown(_shown(cell)) for cell in row] for row in self.rows]
        return "".join(f"| {' | '.join(row)} |\n" for row in rows)

    def latex(self) -> str:
        """A tabular that compiles with no package."""
        columns = "".join("r" if self._numeric(at) else "l" for at in self._at)
        rows = [" & ".join(_latex(_shown(cell)) for cell in row) + r" \\" for row in self.rows]
        head = " & ".join(_latex(heading) for heading in self.headings) + r" \\"
        lines = [rf"% {printable(self.title)}", rf"\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline"]
        return "\n".join([*lines, *rows, r"\hline", r"\end{tabular}", ""])

    def html(self) -> str:
        """The table alone; the page puts it into a box that can be scrolled."""
        head = "".join(f'<th scope="col"{self._side(at)}>{escape(text)}</th>' for at, text in enumerate(self.headings))
        rows = []
        for at, row in enumerate(self.rows):
            mark = f' class="{self.marks[at]}"' if self.marks else ""
            cells = "".join(f"<td{self._side(place)}>{escape(_shown(cell))}</td>" for place, cell in enumerate(row))
            rows.append(f"<tr{mark}>{cells}</tr>")
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"

    def _side(self, at: int) -> str:
        return ' class="number"' if self._numeric(at) else ""

    def _numeric(self, at: int) -> bool:
        return not any(isinstance(row[at], str) for row in self.rows)


def escape(text: str) -> str:
    """Any text as HTML."""
    return html.escape(printable(text))


def _std(cell: Cell) -> float | None:
    return cell.std if isinstance(cell, Number) else None


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>|~#$])", r"\\\1", printable(text)).replace("&", "&amp;")


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in printable(text))


def bullets(items: Sequence[str]) -> str:
    """A list in HTML."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>" if items else ""
