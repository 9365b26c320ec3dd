"""How figures look: Okabe and Ito's colours, one font, lines and markers that differ as well."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from nacre.experiments.report.inks import GROUND, INK, MUTED, RAMP, RULE

# Okabe and Ito, without the yellow, which white swallows
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))
NARROW, WIDE = 4.2, 7.4  # inches
_DPI = 300
_FONT = "DejaVu Sans"  # matplotlib brings it; elsewhere the next best will do
_FALLBACK = re.compile(rb"(font: [^'\";]*'DejaVu Sans')")

_SETTINGS: Any = {
    "font.family": [_FONT],
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.facecolor": "none",
    "figure.facecolor": GROUND,
    "savefig.facecolor": GROUND,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "legend.frameon": False,
    "text.parse_math": False,  # names may hold a $
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "svg.hashsalt": "nacre",
}


@dataclass(frozen=True)
class Drawing:
    """A figure and what is said of it."""

    name: str  # of its files
    title: str
    caption: str
    figure: Figure

    @property
    def wide(self) -> bool:
        return bool(self.figure.get_figwidth() > NARROW)


@contextmanager
def styled() -> Iterator[None]:
    """Everything drawn or written inside looks like nacre's; the caller's matplotlib is as it was afterwards."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        warnings.filterwarnings("ignore", message=".*Glyph.*missing from")  # a browser has fonts that matplotlib lacks
        yield


def figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height))  # without a layout engine, which would draw twice for each format


def lay_out(drawn: Figure) -> None:
    """Makes room for labels and legends."""
    ConstrainedLayoutEngine().execute(drawn)


def series(position: int) -> dict[str, Any]:
    """Colour, marker and line of the series at a position: no two of the first 140 look the same."""
    return {
        "color": _COLOURS[position % len(_COLOURS)],
        "marker": _MARKERS[position % len(_MARKERS)],
        "linestyle": _LINES[(position // len(_COLOURS)) % len(_LINES)],
    }


def step(position: int, count: int) -> str:
    """The colour of a task by its place in the order."""
    return RAMP[round(position * (len(RAMP) - 1) / (count - 1))] if count > 1 else RAMP[-1]


def written(drawn: Figure) -> tuple[bytes, bytes]:
    """SVG and PNG; the same data give the same bytes."""
    svg, png = io.BytesIO(), io.BytesIO()
    lay_out(drawn)
    drawn.savefig(svg, format="svg", metadata={"Date": None})
    drawn.savefig(png, format="png", dpi=_DPI, metadata={"Software": None}, pil_kwargs={"compress_level": 4})
    return _FALLBACK.sub(rb"\1, Verdana, Arial, sans-serif", svg.getvalue()), png.getvalue()
