"""Inks: what figures are drawn in on white paper, and what the page makes of each by light and by dark."""

from __future__ import annotations

from matplotlib.colors import LinearSegmentedColormap, ListedColormap, to_hex

INK, MUTED, RULE, GROUND = "#1b1b1f", "#63676e", "#d9dce0", "#fffffe"
GAP = "#fffffd"  # between bars and cells: the ground behind them
ON_LOW, ON_HIGH = "#000001", "#fffffc"  # numbers in the cells of a heat map
_HEAT_STEPS, _RAMP_STEPS = 16, 12


def _steps(count: int, *stops: tuple[float, str]) -> tuple[str, ...]:
    colours = LinearSegmentedColormap.from_list("", list(stops))
    return tuple(to_hex(colours(at / (count - 1))) for at in range(count))


# tasks from the first to the last: hue and lightness both change
RAMP = _steps(_RAMP_STEPS, (0, "#c99a1c"), (0.5, "#7d7f78"), (1, "#0b2a55"))
_RAMP_DARK = _steps(_RAMP_STEPS, (0, "#f5d25f"), (0.5, "#a9aca8"), (1, "#4f94e0"))
# heat maps from low to high; low is near the ground in both
_HEAT = _steps(_HEAT_STEPS, (0, "#f3f6f9"), (0.33, "#a3c6e0"), (0.6, "#5f9bc8"), (0.667, "#3a7aae"), (1, "#0f3f6e"))
_HEAT_DARK = _steps(_HEAT_STEPS, (0, "#1f2a35"), (0.6, "#41739a"), (0.667, "#6fa3cc"), (1, "#cfe8ff"))
_HIGH = 10  # from this step on, numbers are in the other ink
HEAT = ListedColormap(_HEAT)

# what stands in a figure, its name on the page, the colour by light and by dark
_PLAIN = (
    (INK, "ink", "#1b1b1f", "#e9eaec"),
    (MUTED, "muted", "#5c6066", "#a4a9b0"),
    (RULE, "rule", "#d9dce0", "#3a3f46"),
    (GAP, "page", "#ffffff", "#14161a"),
    (ON_LOW, "on-low", "#000000", "#ffffff"),
    (ON_HIGH, "on-high", "#ffffff", "#000000"),
)
_NUMBERED = (("order", RAMP, _RAMP_DARK), ("heat", _HEAT, _HEAT_DARK))
_ALL = (
    *_PLAIN,
    *(
        (light, f"{name}-{at}", light, dark)
        for name, *scales in _NUMBERED
        for at, (light, dark) in enumerate(zip(*scales, strict=True))
    ),
)
VARIABLES = {GROUND: "none"} | {drawn: f"var(--{name})" for drawn, name, _, _ in _ALL}


def style_sheet() -> str:
    """The inks as CSS, by light and by dark."""
    light = "".join(f"--{name}:{colour};" for _, name, colour, _ in _ALL)
    dark = "".join(f"--{name}:{colour};" for _, name, _, colour in _ALL)
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def number_ink(shade: float) -> str:
    """The ink of a number on a cell with a shade from 0 to 1."""
    return ON_HIGH if int(shade * _HEAT_STEPS) >= _HIGH else ON_LOW
