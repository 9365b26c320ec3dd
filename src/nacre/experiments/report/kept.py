"""What a method keeps beside what its answers need: examples of earlier tasks, numbers to learn the next with."""

from __future__ import annotations

from nacre.experiments.report.groups import Group, Labelled
from nacre.experiments.report.numbers import Number, megabytes
from nacre.experiments.report.tables import Cell, Table
from nacre.experiments.report.text import slug

HEADINGS = (
    "method",
    "size (MB)",
    "without masks (MB)",
    "examples kept",
    "examples (MB)",
    "kept to learn (MB)",
    "images trained on",
)


def kept(group: Group) -> Table | None:
    """Sizes of every kind, where any run has more than one; masks are one bit a weight in the first."""
    rows = [_row(each) for each in group.runs]
    if not any(_more(each) for each in group.runs):
        return None
    title = f"{group.title}: what is kept, and the images seen in training"
    return Table(f"{slug(group.title)}-kept", title, HEADINGS, tuple(rows))


def _more(each: Labelled) -> bool:
    results = [seed.result for seed in each.run.finished]
    sizes = [(result.get("megabytes"), result.get("megabytes_without_masks")) for result in results]
    masked = any(bare is not None and bare != whole for whole, bare in sizes)
    return masked or any(result.get(key) for result in results for key in ("images_kept", "learning_megabytes"))


def _row(each: Labelled) -> tuple[Cell, ...]:
    done = each.run.finished

    def values(key: str) -> list[float]:
        return [float(seed.result[key]) for seed in done if seed.result.get(key) is not None]

    seen = [sum(int(epoch.get("images") or 0) for epoch in seed.epochs) for seed in done if seed.epochs]
    return (
        each.label,
        megabytes([seed.megabytes for seed in done if seed.megabytes is not None]),
        megabytes(values("megabytes_without_masks")),
        Number.of(values("images_kept"), 0),
        megabytes(values("image_megabytes")),
        megabytes(values("learning_megabytes")),
        Number.of(seen, 0),
    )
