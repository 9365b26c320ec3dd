"""Parts that several figures share: plain numbers on ticks, the bar that says which task is which."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from nacre.experiments.report.style import step

_MOST_TICKS = 25


def root(axes: Axes) -> Figure:
    """The figure that axes stand in."""
    found = axes.get_figure(root=True)
    assert found is not None
    return found


def logarithmic(axes: Axes, which: str, values: Sequence[float], margin: float = 1.35) -> None:
    """A logarithmic axis with numbers as people write them; a linear one where values hardly differ."""
    low, high = min(values), max(values)
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xlim if which == "x" else axes.set_ylim)(low / margin, high * margin)
    if high < 1.5 * low:
        axis.set_major_locator(MaxNLocator(5))
        return
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    decades = math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def count_ticks(axes: Axes, count: int) -> None:
    """1, 2, ... count along x; fewer where there are many."""
    every = math.ceil(count / _MOST_TICKS) if count > _MOST_TICKS else 1
    axes.set_xticks([at for at in range(1, count + 1) if (at - 1) % every == 0])


def order_bar(bar: Axes, count: int) -> None:
    """Which colour is which task: one box a task, in the order learnt."""
    for at in range(count):
        bar.add_patch(Rectangle((at + 0.5, 0), 1, 1, facecolor=step(at, count), edgecolor="none"))
    bar.set_xlim(0.5, count + 0.5)
    bar.set_ylim(0, 1)
    bar.set_yticks([])
    bar.grid(visible=False)
    bar.spines[:].set_visible(False)
    every = math.ceil(count / _MOST_TICKS)
    bar.set_xticks(range(1, count + 1, every))
    bar.tick_params(length=0, pad=2, labelsize=7.5)
    bar.set_xlabel("task, in the order learnt", labelpad=1)
