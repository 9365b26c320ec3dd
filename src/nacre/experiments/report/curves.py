"""Curves: loss and rank over epochs, and singular values before and after the cut. One colour a task, by its order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from nacre.experiments.report.axes import logarithmic, order_bar
from nacre.experiments.report.details import log_of, rank_of
from nacre.experiments.report.groups import Labelled
from nacre.experiments.report.inks import MUTED
from nacre.experiments.report.runs import Json, Seed
from nacre.experiments.report.stored import Spectra
from nacre.experiments.report.style import NARROW, WIDE, Drawing, figure, step
from nacre.experiments.report.text import short

Value = Callable[[Json], float | None]


def training(each: Labelled, stem: str) -> Drawing | None:
    """Loss above, rank below."""
    seeds = [seed for seed in each.run.shown if seed.epochs]
    count = max((len(seed.tasks) for seed in seeds), default=0)
    shown: list[tuple[str, list[list[float]]]] = [
        ("loss", _lines(seeds, count, lambda epoch: epoch["loss"])),
        ("rank, all layers", _lines(seeds, count, rank_of)),
    ]
    shown = [(name, lines) for name, lines in shown if any(lines)]
    if not shown:
        return None
    drawn = figure(NARROW, 0.75 + 1.75 * len(shown))
    heights = [1.0] * len(shown) + [0.07]
    grid = drawn.add_gridspec(len(heights), 1, height_ratios=heights)
    axes = [drawn.add_subplot(grid[at]) for at in range(len(heights))]
    for panel, (name, lines) in zip(axes, shown, strict=False):
        _draw(panel, lines)
        panel.set_ylabel(name)
    axes[len(shown) - 1].set_xlabel("epoch of the task")
    order_bar(axes[-1], count)
    several = f"Mean of {len(seeds)} seeds by place in the order." if len(seeds) > 1 else f"Seed {seeds[0].seed}."
    caption = "Training of every task: mean loss of each epoch, penalties counted in"
    caption += ", and the rank that the cut would have left." if len(shown) > 1 else "."
    caption += " Dashed: the first task." if count > 1 else ""
    return Drawing(f"{stem}-training", "Loss and rank over epochs", f"{caption} {several}", drawn)


def _lines(seeds: Sequence[Seed], count: int, value: Value) -> list[list[float]]:
    """For each place in the order the mean over seeds, epoch by epoch."""
    lines = []
    for at in range(count):
        logs = [log_of(seed, seed.tasks[at]) for seed in seeds if at < len(seed.tasks)]
        columns = zip_longest(*([value(epoch) for epoch in log] for log in logs))
        known = [[number for number in column if number is not None] for column in columns]
        lines.append([fmean(numbers) for numbers in known if numbers])
    return lines


def _draw(panel: Axes, lines: Sequence[Sequence[float]]) -> None:
    for at, line in enumerate(lines):
        look: dict[str, Any] = {
            "color": step(at, len(lines)),
            "linewidth": 1.1,
            "linestyle": "--" if at == 0 < len(lines) - 1 else "-",
        }
        look |= {"marker": "o", "markersize": 2.5} if len(line) < 6 else {}
        panel.plot(range(1, len(line) + 1), line, **look)
    values = [value for line in lines for value in line]
    if min(values) > 0 and max(values) > 3 * min(values):
        logarithmic(panel, "y", values, 1.15)
    elif all(value == round(value) for value in values):
        panel.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    panel.set_xlim(0.5, max(map(len, lines)) + 0.5)
    panel.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))


def spectra(each: Labelled, stem: str, after: Spectra) -> Drawing | None:
    """Singular values of one seed, a panel a layer."""
    seed = each.run.shown[0] if each.run.shown else None
    if seed is None or not any(any(kept.values()) for kept in after.values()):
        return None
    layers = list(dict.fromkeys(layer for kept in after.values() for layer in kept))
    columns = 2 if len(layers) <= 6 else 3
    rows = -(-len(layers) // columns)
    drawn = figure(NARROW if columns == 2 else WIDE, 0.75 + 1.55 * rows)
    grid = drawn.add_gridspec(rows + 1, columns, height_ratios=[1.0] * rows + [0.08])
    for at, layer in enumerate(layers):
        panel = drawn.add_subplot(grid[at // columns, at % columns])
        _draw_layer(panel, layer, seed, after)
        panel.text(0.97, 0.95, short(layer, 20), transform=panel.transAxes, ha="right", va="top")
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        if at % columns == 0:
            panel.set_ylabel("singular value")
        if at + columns >= len(layers):  # the lowest of its column
            panel.set_xlabel("number, from the largest")
    order_bar(drawn.add_subplot(grid[rows, :]), len(seed.tasks))
    caption = "Singular values of every layer, from the largest to the smallest. "
    if seed.before:
        caption += "Thin: just before the first cut. Thick, ending in a dot: what is kept; after a cut halfway, where "
        caption += "there is one, it has learnt on. "
    else:
        caption += "Only what the cut has left: the run kept no spectra from before it. "
    caption += f"Seed {seed.seed}."
    return Drawing(f"{stem}-spectra", "Singular values before and after the cut", caption, drawn)


def _draw_layer(panel: Axes, layer: str, seed: Seed, after: Spectra) -> None:
    seen: list[float] = []
    for at, task in enumerate(seed.tasks):
        colour = step(at, len(seed.tasks))
        for values, width in (
            (seed.before.get(task, {}).get(layer, []), 0.6),
            (after.get(task, {}).get(layer, []), 1.5),
        ):
            line = [value for value in values if value > 0]
            panel.plot(range(1, len(line) + 1), line, color=colour, linewidth=width)
            seen += line
            if line and width > 1:
                panel.plot(len(line), line[-1], "o", color=colour, markersize=3)
    if seen:
        logarithmic(panel, "y", [max(min(seen), max(seen) * 1e-6), max(seen)], 1.4)
    else:
        panel.text(0.5, 0.5, "rank 0", transform=panel.transAxes, ha="center", color=MUTED)
