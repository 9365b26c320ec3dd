"""Accuracy against size: ours, and the paper's points where they are comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from nacre.experiments.report.axes import logarithmic, root
from nacre.experiments.report.groups import Group
from nacre.experiments.report.inks import INK, MUTED
from nacre.experiments.report.numbers import Number
from nacre.experiments.report.published import Published
from nacre.experiments.report.style import NARROW, Drawing, figure, lay_out, series
from nacre.experiments.report.text import short, slug

_HOLLOW: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": MUTED}
_SIDES = ((6, 0, "left"), (-6, 0, "right"), (0, 8, "center"), (0, -9, "center"))
_PLACES = (*_SIDES, (6, 8, "left"), (6, -8, "left"), (-6, 8, "right"), (-6, -8, "right"))  # in points


@dataclass(frozen=True)
class _Point:
    """One of our runs."""

    label: str
    size: Number
    at_4_bytes: float  # larger where its numbers are stored in fewer bits
    acc: Number
    position: int  # among the group's runs

    @property
    def look(self) -> dict[str, Any]:
        """A colour and a marker, with an edge so that all are seen."""
        look = series(self.position)
        return {key: look[key] for key in ("color", "marker")} | {"markeredgecolor": INK, "markeredgewidth": 0.6}


def scatter(group: Group) -> Drawing | None:
    """One point a run; what is further left and higher is better."""
    ours = _points(group)
    if not ours:
        return None
    paper = group.benchmark if not group.differences() else None
    rows = [row for row in paper.rows if not row.repeated] if paper else []
    drawn = figure(NARROW, 3.6 + 0.17 * (len(ours) + 2))
    axes = drawn.add_subplot()
    sizes = [size for point in ours for size in (point.size.mean, point.at_4_bytes)]
    logarithmic(axes, "x", [*sizes, *(row.megabytes.mean for row in rows)], 1.8)
    _draw_paper(axes, rows)
    for point in ours:
        _draw(axes, point)
    axes.margins(y=0.12)
    axes.set_xlabel("size of all tasks (MB)")
    axes.set_ylabel("ACC (%)")
    _legend(axes, ours, rows)
    _place(axes, rows, [(point.size, point.acc) for point in ours])
    return Drawing(f"{slug(group.title)}-scatter", "Accuracy against size", _caption(group, ours, rows), drawn)


def _points(group: Group) -> list[_Point]:
    found = []
    for position, each in enumerate(group.runs):
        done = [seed for seed in each.run.finished if seed.megabytes]
        acc, size = Number.of([s.acc for s in done]), Number.of([s.megabytes for s in done if s.megabytes])
        if acc and size:
            large = Number.of([s.megabytes_at_4_bytes for s in done if s.megabytes_at_4_bytes])
            found.append(_Point(each.label, size, max(size.mean, large.mean if large else 0.0), acc, position))
    return found


def _draw(axes: Axes, point: _Point) -> None:
    size, acc = point.size, point.acc
    if point.at_4_bytes > size.mean:
        axes.plot([size.mean, point.at_4_bytes], [acc.mean] * 2, ":", color=INK, linewidth=0.8, zorder=3)
        axes.plot(point.at_4_bytes, acc.mean, "|", color=INK, markersize=9, zorder=3)
    error: dict[str, Any] = {"xerr": size.std, "yerr": acc.std, "ecolor": INK, "elinewidth": 0.8, "capsize": 2}
    axes.errorbar(size.mean, acc.mean, linestyle="none", markersize=7, zorder=4, **point.look, **error)


def _draw_paper(axes: Axes, rows: Sequence[Published]) -> None:
    for row in rows:
        look = _HOLLOW | {"marker": "o" if row.source is None else "s", "linestyle": "none", "markersize": 5.5}
        look |= {"yerr": row.acc.std, "ecolor": MUTED, "elinewidth": 0.7, "capsize": 2, "zorder": 3}
        axes.errorbar(row.megabytes.mean, row.acc.mean, **look)


def _legend(axes: Axes, ours: Sequence[_Point], rows: Sequence[Published]) -> None:
    own, copied = _HOLLOW | {"marker": "o"}, _HOLLOW | {"marker": "s"}
    shown = [(point.look, f"ours: {short(point.label, 44)}") for point in ours]
    shown += [(own, "paper: its own")] if any(row.source is None for row in rows) else []
    shown += [(copied, "paper: copied, or of others")] if any(row.source is not None for row in rows) else []
    handles = [Line2D([], [], linestyle="none", markersize=6, **look) for look, _ in shown]
    columns = 2 if all(len(text) < 28 for _, text in shown) else 1
    names = [text for _, text in shown]
    root(axes).legend(handles, names, loc="outside lower center", ncols=columns, handletextpad=0.2)


def _place(axes: Axes, rows: Sequence[Published], ours: Sequence[tuple[Number, Number]]) -> None:
    """Writes each of the paper's names where it covers no point, no error bar and no other name."""
    lay_out(root(axes))  # only then is known where points will be
    taken = [_box(axes, *point) for point in (*ours, *((row.megabytes, row.acc) for row in rows))]
    inside = axes.get_window_extent()

    def cost(text: Text) -> float:
        box = text.get_window_extent()
        return sum(_overlap(box, other) for other in taken) + 4 * (box.width * box.height - _overlap(box, inside))

    for row in rows:
        texts = [_name(axes, row, *place) for place in _PLACES]
        best = min(texts, key=cost)
        taken.append(best.get_window_extent())
        for text in texts:
            if text is not best:
                text.remove()


def _box(axes: Axes, size: Number, acc: Number) -> Bbox:
    """Where a point and its error bar are, in pixels."""
    bar = acc.std or 0.0
    (x, low), (_, high) = axes.transData.transform([(size.mean, acc.mean - bar), (size.mean, acc.mean + bar)])
    return Bbox.from_extents(x - 6, low - 6, x + 6, high + 6)


def _name(axes: Axes, row: Published, dx: float, dy: float, side: str) -> Text:
    look: dict[str, Any] = {"ha": side, "va": "center", "fontsize": 7.5, "color": MUTED}
    point = (row.megabytes.mean, row.acc.mean)
    return axes.annotate(short(row.label, 18), point, (dx, dy), textcoords="offset points", **look)


def _overlap(one: Bbox, other: Bbox) -> float:
    both = Bbox.intersection(one, other)
    return float(both.width * both.height) if both is not None else 0.0


def _caption(group: Group, ours: Sequence[_Point], rows: Sequence[Published]) -> str:
    said = "Mean accuracy over all tasks after the last one, against the size of all that was learnt."
    said += " Further left and higher is better; bars are one standard deviation over seeds."
    if any(point.at_4_bytes > point.size.mean for point in ours):
        said += " A dotted line leads from the size in fewer bits to the size at 4 bytes a number, as the paper counts."
    if rows:
        return f"{said} Filled: our runs. Hollow: the paper's numbers, under the protocols that the table names."
    if differences := group.differences():
        return said + f" The paper's points are left out, as they are not comparable: {'; '.join(differences)}."
    return said + " The paper prints no numbers for this scenario and network."
