"""The tables of a group: what was run, and our numbers beside those that the paper prints."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from nacre.experiments.report.groups import Group, Labelled, images_by_task
from nacre.experiments.report.numbers import Number, megabytes
from nacre.experiments.report.published import UNSAID, Benchmark
from nacre.experiments.report.runs import Json, Run
from nacre.experiments.report.tables import Cell, Table
from nacre.experiments.report.text import printable, slug

HEADINGS = (
    *("method", "whose", "ACC (%)", "BWT (%)", "size (MB)", "at 4 bytes a number (MB)", "on disk (MB)"),
    *("seeds", "tasks", "protocol", "from"),
)
_OF_A_SESSION = ("begun", "sessions", "seeds")
_WHOSE, _SIZE, _AT_4 = (HEADINGS.index(heading) for heading in ("whose", "size (MB)", "at 4 bytes a number (MB)"))


def results(group: Group) -> Table:
    """Our rows, and the paper's beside them where both did the same."""
    rows = [_ours(each) for each in group.runs]
    paper = group.benchmark if not group.differences() else None
    printed = _printed(paper) if paper else []
    marks = ["ours"] * len(rows) + ["paper" if row[_WHOSE] == "paper" else "copied" for row in printed]
    title = f"{group.title}: our numbers" + (" beside the paper's" if printed else "")
    return _table(f"{slug(group.title)}-results", title, (*rows, *printed), tuple(marks))


def apart(group: Group) -> Table | None:
    """The paper's numbers by themselves, where they are not comparable with ours."""
    paper = group.benchmark
    if paper is None or not group.differences():
        return None
    rows = _printed(paper)
    title = f"The paper's numbers ({paper.tasks} tasks, {paper.network}): not comparable with those above"
    marks = tuple("paper" if row[_WHOSE] == "paper" else "copied" for row in rows)
    return _table(f"{slug(group.title)}-paper", title, tuple(rows), marks)


def _table(name: str, title: str, rows: tuple[tuple[Cell, ...], ...], marks: tuple[str, ...]) -> Table:
    """Without the sizes at 4 bytes a number where all are stored in as many."""
    at = [place for place in range(len(HEADINGS)) if place != _AT_4 or any(row[_AT_4] != row[_SIZE] for row in rows)]
    shown = tuple(tuple(row[place] for place in at) for row in rows)
    return Table(name, title, tuple(HEADINGS[place] for place in at), shown, marks)


def _ours(each: Labelled) -> tuple[Cell, ...]:
    run, done = each.run, each.run.finished
    missing = len(run.planned) - len(done)
    sizes = [seed.megabytes for seed in done if seed.megabytes is not None]
    at_4_bytes = [seed.megabytes_at_4_bytes for seed in done if seed.megabytes_at_4_bytes is not None]
    disk = [seed.bytes_on_disk / 1e6 for seed in done if seed.bytes_on_disk is not None]
    return (
        each.label,
        "ours",
        Number.of([seed.acc for seed in done]),
        Number.of([seed.bwt for seed in done]),
        megabytes(sizes),
        megabytes(at_4_bytes or sizes),
        megabytes(disk),
        str(len(done)) if not missing else f"{len(done)} of {len(run.planned)}",
        len(run.tasks),
        protocol_of(run),
        "this run" if not missing else "this run, unfinished",
    )


def _printed(paper: Benchmark) -> list[tuple[Cell, ...]]:
    return [
        (
            row.label,
            "paper" if row.source is None else "paper, copied" if row.source != UNSAID else "paper, of others",
            row.acc,
            row.bwt,
            row.megabytes,
            row.megabytes,
            None,
            "3" if row.source is None else "-",
            paper.tasks,
            row.protocol,
            f"table {row.table}" + (f", from {row.source}" if row.source == "ACL's paper" else ""),
        )
        for row in paper.rows
        if not row.repeated
    ]


def protocol_of(run: Run) -> str:
    """The protocol by name with what tells it from others: epochs, batch, images held out."""
    recipe = run.plan.get("recipe") or {}
    unnamed = "settings of its own" if "protocol" in run.plan else "not recorded"
    parts = [printable(run.protocol) if run.protocol else unnamed]
    parts += [f"{epochs} epoch{'' if epochs == 1 else 's'}"] if (epochs := recipe.get("epochs")) else []
    parts += [f"{run.facts['holdout']:.0%} held out"] if _positive(run.facts.get("holdout")) else []
    parts += ["no augmentation"] if "augment" in run.facts and run.facts["augment"] in (None, False) else []
    order = run.facts.get("class_order", "consecutive")
    parts += [f"classes: {printable(str(order))}"] if order != "consecutive" else []
    return ", ".join(parts)


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def overview(groups: Sequence[Group]) -> Table:
    """What was run: one row a run folder."""
    headings = ("run", "scenario", "method", "protocol", "seeds", "batch", "images a task", "minutes")
    rows = [_run(group, each) for group in groups for each in group.runs]
    return Table("runs", "What was run", (*headings, "begun", "state", "folder"), tuple(rows))


def _run(group: Group, each: Labelled) -> tuple[Cell, ...]:
    run, images, seconds = each.run, images_by_task(each.run).values(), _seconds(each.run)
    return (
        each.label,
        group.title,
        printable(run.method),
        protocol_of(run),
        " ".join(map(str, run.planned)),
        (run.plan.get("recipe") or {}).get("batch_size"),
        round(fmean(images)) if images else None,
        Number(seconds / 60, digits=1) if seconds else None,
        str(run.environment.get("begun", "not recorded"))[:16].replace("T", " "),
        "; ".join(run.unfinished()) or "finished",
        str(run.folder),
    )


def _seconds(run: Run) -> float:
    """Seconds of training, over all epochs and seeds."""
    return sum(float(epoch.get("seconds") or 0) for seed in run.seeds for epoch in seed.epochs)


def surroundings(groups: Sequence[Group]) -> Table | None:
    """Versions, machines and states of git, as the runs recorded them; folders that agree share a column."""
    columns: dict[str, dict[str, str]] = {}
    folders: dict[str, list[str]] = {}
    for each in (each for group in groups for each in group.runs):
        flat = lines({key: value for key, value in each.run.environment.items() if key not in _OF_A_SESSION})
        if flat:
            columns[str(flat)] = flat
            folders.setdefault(str(flat), []).append(str(each.run.folder))
    keys = list(dict.fromkeys(key for flat in columns.values() for key in flat))
    if not keys:
        return None
    names = [", ".join(folders[column]) if len(columns) > 1 else "all runs" for column in columns]
    rows = tuple((key, *(flat.get(key) for flat in columns.values())) for key in keys)
    return Table("environment", "Versions and machine", ("", *names), rows)


def lines(environment: Json) -> dict[str, str]:
    """A line for each part of an environment."""
    found = {}
    for part, value in environment.items():
        known = {name: text for name, text in flatten(value).items() if text != "none"}
        found[part] = ", ".join(f"{name} {text}".strip() for name, text in known.items()) or "none"
    return found


def facts(group: Group) -> Table | None:
    """What the record says of the data, the classes and the network."""
    columns = [flatten(each.run.facts) for each in group.runs]
    keys = list(dict.fromkeys(key for flat in columns for key in flat))
    if not keys:
        return None
    rows = [(key, "; ".join(dict.fromkeys(flat[key] for flat in columns if key in flat))) for key in keys]
    return Table(f"{slug(group.title)}-facts", f"{group.title}: the data", ("fact", "value"), tuple(rows))


def flatten(data: object, above: str = "", limit: int = 160) -> dict[str, str]:
    """JSON as names and short texts: {"git": {"dirty": true}} is git.dirty: true."""
    if not isinstance(data, dict):
        text = data if isinstance(data, str) else _plain(data)
        return {above: text if len(text) <= limit else text[:limit] + "…"}
    flat: dict[str, str] = {}
    for key, value in data.items():
        flat |= flatten(value, f"{above}.{key}" if above else str(key), limit)
    return flat


def _plain(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return ", ".join(map(str, value))
    return (
        {None: "none", True: "yes", False: "no"}.get(value, str(value))
        if isinstance(value, bool | None)
        else str(value)
    )
