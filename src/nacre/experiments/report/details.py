"""The tables of one run: accuracies, growth, ranks, singular values, training."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

from nacre.experiments.report.groups import Labelled, aligned
from nacre.experiments.report.numbers import Number, megabytes
from nacre.experiments.report.runs import Json, Run, Seed
from nacre.experiments.report.stored import PARTS, Spectra
from nacre.experiments.report.tables import Cell, Table


def tables(each: Labelled, stem: str, after: Spectra) -> Iterator[Table]:
    """Every table of a run that it has the files for."""
    run = each.run
    yield from (accuracies(seed, each.label, stem) for seed in run.seeds if seed.matrix)
    if any(seed.stored for seed in run.shown):
        yield growth(each, stem)
        yield sizes(each, stem)
    if any(rank_cells(run)):
        yield ranks(each, stem)
    if after:
        yield cuts(run.shown[0], each.label, stem, after)
    if any(seed.epochs for seed in run.shown):
        yield training(each, stem)


def accuracies(seed: Seed, label: str, stem: str) -> Table:
    """A seed's accuracy matrix: after each task, on each task so far."""
    names = seed.tasks[: len(seed.matrix)]
    rows = [
        (name, *(Number(value) for value in row), *[None] * (len(names) - len(row)))
        for name, row in zip(names, seed.matrix, strict=True)
    ]
    title = f"{label}, seed {seed.seed}: accuracy (%) after each task (rows) on each task (columns)"
    return Table(f"{stem}-accuracy-seed-{seed.seed}", title, ("after task", *names), tuple(rows))


def growth(each: Labelled, stem: str) -> Table:
    """MB after so many tasks."""
    rows: list[tuple[Cell, ...]] = []
    for at in range(max(len(seed.stored.tasks) for seed in each.run.shown if seed.stored)):
        values = [s.stored.growth()[at] for s in each.run.shown if s.stored and at < len(s.stored.tasks)]
        rows.append((at + 1, megabytes(values), len(values)))
    return Table(f"{stem}-growth", f"{each.label}: growth", ("tasks learnt", "size (MB)", "seeds"), tuple(rows))


def sizes(each: Labelled, stem: str) -> Table:
    """MB of each task by what they are for."""
    rows: list[tuple[Cell, ...]] = []
    for name, places in aligned(each.run):
        stored = [seed.stored.tasks[at] for seed, at in places if seed.stored]
        if stored:
            parts = [megabytes([task.parts[part] for task in stored]) for part in PARTS]
            rows.append((name, *parts, megabytes([task.megabytes for task in stored])))
    headings = ("task", *(f"{part} (MB)" for part in PARTS), "all (MB)")
    return Table(f"{stem}-memory", f"{each.label}: memory of each task", headings, tuple(rows))


def rank_cells(run: Run) -> list[tuple[str, dict[str, list[int]]]]:
    """The ranks that each task added, by layer; one number a seed."""
    cells = []
    for name, places in aligned(run):
        found = [seed.stored.tasks[at].ranks for seed, at in places if seed.stored]
        layers = dict.fromkeys(layer for ranks in found for layer in ranks)
        if layers:
            cells.append((name, {layer: [ranks[layer] for ranks in found if layer in ranks] for layer in layers}))
    return cells


def ranks(each: Labelled, stem: str) -> Table:
    """The rank that each task added to each layer."""
    cells = rank_cells(each.run)
    layers = list(dict.fromkeys(layer for _, found in cells for layer in found))
    digits = 0 if len(each.run.shown) == 1 else 1
    rows = [(name, *(Number.of(found.get(layer, []), digits) for layer in layers)) for name, found in cells]
    return Table(f"{stem}-ranks", f"{each.label}: rank that each task added", ("task", *layers), tuple(rows))


def cuts(seed: Seed, label: str, stem: str, after: Spectra) -> Table:
    """How much of the singular values the cut kept."""
    rows: list[tuple[Cell, ...]] = []
    for task, layers in after.items():
        for layer, kept in layers.items():
            before = seed.before.get(task, {}).get(layer)
            energy = fsum(value**2 for value in before or ())
            lost = fsum(value**2 for value in (before or ())[len(kept) :])
            rows.append(
                (
                    task,
                    layer,
                    None if before is None else len(before),
                    len(kept),
                    kept[0] if kept else None,
                    kept[-1] if kept else None,
                    before[len(kept)] if before and len(before) > len(kept) else None,
                    lost / energy if energy else None,
                )
            )
    headings = ("task", "layer", "before", "kept", "largest", "smallest kept", "largest cut", "energy cut")
    title = f"{label}, seed {seed.seed}: singular values before and after the cut"
    return Table(f"{stem}-spectra", title, headings, tuple(rows))


def training(each: Labelled, stem: str) -> Table:
    """Where training ended for each task."""
    rows: list[tuple[Cell, ...]] = []
    for name, places in aligned(each.run):
        logs = [log for seed, at in places if (log := log_of(seed, seed.tasks[at]))]
        if logs:
            ends = [log[-1] for log in logs]
            rows.append(
                (
                    name,
                    Number.of([float(len(log)) for log in logs], 0),
                    Number.of([end["loss"] for end in ends], 3),
                    Number.of([end["accuracy"] for end in ends if end.get("accuracy") is not None]),
                    Number.of([rank for end in ends if (rank := rank_of(end)) is not None], 0),
                    Number.of([fsum(epoch.get("seconds") or 0 for epoch in log) for log in logs], 1),
                )
            )
    headings = ("task", "epochs", "last loss", "training accuracy (%)", "last rank", "seconds")
    return Table(f"{stem}-training", f"{each.label}: training of each task", headings, tuple(rows))


def log_of(seed: Seed, task: str) -> list[Json]:
    """The epochs of a task, all its phases one after the other."""
    return [epoch for epoch in seed.epochs if epoch["task"] == task]


def rank_of(epoch: Json) -> float | None:
    """The rank that the cut would have left after an epoch, all layers together."""
    found = (epoch.get("measures") or {}).get("rank")
    return float(found) if isinstance(found, int | float) else None
