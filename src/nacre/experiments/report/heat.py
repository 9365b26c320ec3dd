"""Heat maps with numbers: the accuracy matrix, and the rank that each task added to each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from nacre.experiments.report.axes import root
from nacre.experiments.report.details import rank_cells
from nacre.experiments.report.groups import Labelled, by_name
from nacre.experiments.report.inks import GAP, HEAT, number_ink
from nacre.experiments.report.numbers import Number
from nacre.experiments.report.style import NARROW, WIDE, Drawing, figure
from nacre.experiments.report.text import short

_MOST_NUMBERS = 25  # rows beyond which numbers are too small to read
_MOST_NAMES = 40
Grid = NDArray[np.float64]


def accuracy(each: Labelled, stem: str) -> Drawing | None:
    """Rows: after which task; columns: on which."""
    seeds = [seed for seed in each.run.shown if seed.matrix]
    if not seeds:
        return None
    count = max(len(seed.matrix) for seed in seeds)
    cells = np.full((count, count), np.nan)
    for row in range(count):
        for column in range(row + 1):
            cells[row, column] = np.mean([seed.matrix[row][column] for seed in seeds])
    one = len(seeds) == 1
    names = [short(name, 12) for name in seeds[0].tasks[:count]] if one else [str(at + 1) for at in range(count)]
    width = NARROW if count <= 8 else WIDE
    drawn = figure(width, max(2.2, width * 0.62) if count <= 8 else max(3.0, min(6.4, 1.2 + 0.27 * count)))
    axes = drawn.add_subplot()
    _map(axes, cells, names, names, digits=1, size=8 if count <= 8 else 6.5)
    axes.set_xlabel("accuracy (%) on task" if one else "accuracy (%) on task, by its place in the order")
    axes.set_ylabel("after learning task" if one else "after so many tasks")
    caption = "Test accuracy (%) on every task so far, after each task. A column that keeps its number is a task that"
    caption += " is not forgotten. "
    drawn_by_seed = "order" if by_name(each.run) else "classes"
    several = f"Mean of {len(seeds)} seeds; a seed draws the {drawn_by_seed} of the tasks."
    caption += _seeds(seeds[0].seed) if one else several
    return Drawing(f"{stem}-accuracy", "Accuracy matrix", caption, drawn)


def _seeds(seed: int) -> str:
    return f"Seed {seed}; tasks in the order learnt."


def ranks(each: Labelled, stem: str) -> Drawing | None:
    """Rows: tasks; columns: layers."""
    found = rank_cells(each.run)
    layers = list(dict.fromkeys(layer for _, cells in found for layer in cells))
    if not layers:
        return None
    numbers = [[Number.of(cells.get(layer, [])) for layer in layers] for _, cells in found]
    cells = np.array([[np.nan if number is None else number.mean for number in row] for row in numbers])
    width = NARROW if len(layers) <= 8 else WIDE
    drawn = figure(width, min(9.0, 1.1 + 0.21 * len(found)))
    axes = drawn.add_subplot()
    names = [short(name, 14) for name, _ in found]
    _map(axes, cells, names, [short(layer, 12) for layer in layers], digits=0, size=8 if width == NARROW else 6.5)
    axes.set_xlabel("layer")
    axes.set_ylabel("task")
    caption = "Rank that each task added to each layer, after the cut; every layer is coloured up to its largest. "
    caption += order_note(each)
    return Drawing(f"{stem}-ranks", "Rank of each task and layer", caption, drawn)


def order_note(each: Labelled) -> str:
    """How tasks stand in a figure that has one row a task."""
    seeds = each.run.shown
    if len(seeds) == 1:
        return f"Seed {seeds[0].seed}; tasks in the order learnt."
    if by_name(each.run):
        return f"Mean of {len(seeds)} seeds by task; each seed learns the tasks in another order."
    return f"Mean of {len(seeds)} seeds by place in the order; each seed makes tasks of other classes."


def _map(axes: Axes, cells: Grid, rows: Sequence[str], columns: Sequence[str], *, digits: int, size: float) -> None:
    """Cells with their numbers; where there are too many to be read, a bar that says what the colours are.

    With digits all cells share one scale, from the lowest to the highest; without, every column has its own from 0.
    """
    low, high = np.nanmin(cells), np.nanmax(cells)
    scale = Normalize(min(low, high - 1), high)
    shades = np.asarray(scale(cells)) if digits else cells / np.maximum(np.nanmax(cells, axis=0, initial=1), 1)
    drawn = axes.pcolormesh(np.ma.masked_invalid(shades), cmap=HEAT, vmin=0, vmax=1, edgecolors=GAP, linewidth=0.6)
    if len(rows) <= _MOST_NUMBERS:
        for row, column in np.argwhere(~np.isnan(cells)):
            look: dict[str, Any] = {
                "fontsize": size,
                "color": number_ink(shades[row, column]),
                "ha": "center",
                "va": "center",
            }
            axes.text(column + 0.5, row + 0.5, f"{cells[row, column]:.{digits}f}", **look)
    else:
        label = "accuracy (%)" if digits else "rank, as a share of the layer's largest"
        shown = FuncFormatter(lambda shade, _: f"{scale.inverse(shade):.{digits}f}" if digits else f"{shade:.1f}")
        root(axes).colorbar(drawn, ax=axes, label=label, format=shown, shrink=0.6)
    _name(axes, rows, columns)


def _name(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    axes.set_ylim(len(rows), 0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    every = -(-len(rows) // _MOST_NAMES)
    axes.set_yticks(np.arange(0, len(rows), every) + 0.5, list(rows)[::every])
    every = -(-len(columns) // _MOST_NAMES)
    long = max(map(len, columns)) > (6 if len(columns) <= 8 else 3)
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if long else {}
    axes.set_xticks(np.arange(0, len(columns), every) + 0.5, list(columns)[::every], **turned)
