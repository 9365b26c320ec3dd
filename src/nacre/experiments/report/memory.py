"""Memory: how it grows with the tasks, and what each task takes (the paper's Figure 2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from nacre.experiments.report.axes import count_ticks
from nacre.experiments.report.groups import Group, Labelled, aligned
from nacre.experiments.report.heat import order_note
from nacre.experiments.report.inks import GAP, INK, MUTED
from nacre.experiments.report.numbers import Number
from nacre.experiments.report.stored import PARTS
from nacre.experiments.report.style import NARROW, Drawing, figure, series
from nacre.experiments.report.text import short, slug

_PART_COLOURS = ("#0072b2", "#e69f00", "#009e73", MUTED)
_HATCHES = ("", "////", "....", "")


def growth(group: Group) -> Drawing | None:
    """MB after each task, one line a run."""
    columns = 2 if all(len(each.label) <= 26 for each in group.runs) else 1
    drawn = figure(NARROW, 3.2 + 0.17 * -(-len(group.runs) // columns))
    axes = drawn.add_subplot()
    handles: list[tuple[Any, str]] = []
    most = 0
    for position, each in enumerate(group.runs):
        curves = [seed.stored.growth() for seed in each.run.shown if seed.stored]
        means = [Number.of([c[at] for c in curves if at < len(c)]) for at in range(max(map(len, curves), default=0))]
        points = [(at + 1, number) for at, number in enumerate(means) if number]
        if points:
            x, y = [at for at, _ in points], [number.mean for _, number in points]
            deviations = [number.std or 0.0 for _, number in points]
            handles.append((axes.errorbar(x, y, deviations, **series(position), capsize=2, elinewidth=0.8), each.label))
            most = max(most, len(points))
    if not handles:
        return None
    axes.set_ylim(bottom=0)
    axes.set_xlim(0.5, most + 0.5)
    count_ticks(axes, most)
    axes.set_xlabel("tasks learnt")
    axes.set_ylabel("size of all tasks (MB)")
    names = [short(label, 44) for _, label in handles]
    drawn.legend([handle for handle, _ in handles], names, loc="outside lower center", ncols=columns)
    caption = "Size of all that was learnt, after each task: factors, heads, norms and the ranks."
    if any(len(each.run.shown) > 1 for each in group.runs):
        caption += " Mean over seeds; bars are one standard deviation."
    return Drawing(f"{slug(group.title)}-growth", "Growth of memory", caption, drawn)


def by_task(each: Labelled, stem: str) -> Drawing | None:
    """MB of each task, by what they are for."""
    rows = [(name, [s.stored.tasks[at] for s, at in places if s.stored]) for name, places in aligned(each.run)]
    rows = [(name, tasks) for name, tasks in rows if tasks]
    if not rows:
        return None
    drawn = figure(NARROW, min(9.0, 1.2 + 0.2 * len(rows)))
    axes = drawn.add_subplot()
    left, at = np.zeros(len(rows)), np.arange(len(rows))
    for part, colour, hatch in zip(PARTS, _PART_COLOURS, _HATCHES, strict=True):
        widths = np.array([np.mean([task.parts[part] for task in tasks]) for _, tasks in rows])
        if widths.sum() > 0.002 * sum(np.mean([task.megabytes for task in tasks]) for _, tasks in rows):
            look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": GAP, "linewidth": 0.4}
            axes.barh(at, widths, 0.74, left, label=part, **look)
        left += widths
    totals = [Number.of([task.megabytes for task in tasks]) for _, tasks in rows]
    if any(total and total.std for total in totals):
        deviations = [total.std or 0.0 if total else 0.0 for total in totals]
        axes.errorbar(left, at, xerr=deviations, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
    axes.set_yticks(at, [short(name, 14) for name, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("size of the task (MB)")
    axes.set_ylabel("task")
    drawn.legend(loc="outside lower center", ncols=2)
    caption = "What each task takes, as in the paper's Figure 2. "
    caption += order_note(each) + (" Bars are one standard deviation." if len(each.run.shown) > 1 else "")
    return Drawing(f"{stem}-memory", "Memory of each task", caption, drawn)
