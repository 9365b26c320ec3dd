"""A grid: methods, their dials and seeds on one scenario, in a folder where only what is missing is learnt again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nacre.errors import NacreError, WrongUsage
from nacre.experiments.cell import Cell, options_to_json
from nacre.experiments.cluster import import_ray, on_cluster
from nacre.experiments.folder import GRID, RESULT, RUN, claim, locked, read_json
from nacre.experiments.local import default_jobs, in_processes
from nacre.experiments.metrics import summarise
from nacre.experiments.plan import Json, Plan
from nacre.experiments.protocols import Dials, Options, has_dial, recipe_and_method, stream
from nacre.experiments.run import finish, seed_folder
from nacre.experiments.tracking import check_tracker
from nacre.lowrank import Dtype
from nacre.space.store import replace_file
from nacre.training.processes import Processes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Grid:
    """What `nacre compare` is asked for."""

    scenario: str
    methods: tuple[str, ...]
    sparsities: tuple[float, ...] = ()
    options: Options = field(default_factory=Options)
    shares: tuple[float, ...] = ()
    dtypes: tuple[Dtype, ...] = ()

    def __post_init__(self) -> None:
        dials = {"sparsities": self.sparsities, "shares": self.shares, "dtypes": self.dtypes}
        for name, values in {"methods": self.methods, **dials}.items():
            if len(set(values)) != len(values):
                raise WrongUsage(f"--{name} takes different ones; got {' '.join(map(str, values))}")
        if not self.methods:
            raise WrongUsage("--methods takes at least one method")
        for name, values in zip(("sparsity", "share", "dtype"), dials.values(), strict=True):
            if values and not any(has_dial(method, name) for method in self.methods):
                raise WrongUsage(f"none of the methods {', '.join(self.methods)} has a {name}")
        for cell in self.cells():
            recipe_and_method(cell.scenario, cell.method, cell.options, cell.dials)

    def cells(self) -> list[Cell]:
        """Every method with every sparsity, share and dtype (a method that has none once) and every seed."""
        return [
            Cell(self.scenario, method, Dials(sparsity, share, dtype), seed, self.options)
            for method in self.methods
            for sparsity in (self.sparsities if self.sparsities and has_dial(method, "sparsity") else (None,))
            for share in (self.shares if self.shares and has_dial(method, "share") else (None,))
            for dtype in (self.dtypes if self.dtypes and has_dial(method, "dtype") else (None,))
            for seed in self.options.seeds
        ]

    def plans(self) -> dict[str, Plan]:
        """The plan of every run, by the name of its folder."""
        tasks, plans = stream(self.scenario, self.options), {}
        for cell in self.cells():
            recipe, method = recipe_and_method(cell.scenario, cell.method, cell.options, cell.dials)
            plans[cell.name] = Plan(tasks, method, recipe, self.options.seeds, self.options.protocol)
        return plans

    def to_json(self) -> Json:
        """All that the results follow from: not the tracker, which looks on, nor where the data are."""
        options = options_to_json(self.options)
        del options["track"], options["choices"]["data"]
        return {
            "scenario": self.scenario,
            "methods": list(self.methods),
            "sparsities": list(self.sparsities),
            "shares": list(self.shares),
            "dtypes": list(self.dtypes),
            **options,
        }


def compare(grid: Grid, out: Path, *, jobs: int | None = None, ray: str | None = None, say: Say = print) -> Json:
    """Learns the cells that the folder lacks and gives the results of all, and what went wrong with which."""
    if jobs is not None and jobs < 1:
        raise WrongUsage(f"--jobs is a number from 1; got {jobs}")
    if Processes.current().count > 1:
        raise NacreError("nacre compare starts its own processes: start it without torchrun")
    check_tracker(grid.options.track)
    if ray is not None:
        import_ray()
    plans = grid.plans()
    claim(out, GRID, grid.to_json(), resume=True)
    with locked(out):
        for name, plan in plans.items():
            claim(out / name, RUN, plan.to_json(), resume=True)
        missing = [cell for cell in grid.cells() if _result_of(cell, out) is None]
        if ray is not None:
            learning = on_cluster(missing, out, ray, jobs)
        else:
            learning = in_processes(missing, out, min(jobs or default_jobs(), max(1, len(missing))))
        failed = _follow(learning, out, len(missing), say)
        for name, plan in plans.items():
            _finish(plan, out / name)
    return {**grid.to_json(), "cells": _summaries(grid, out), "failed": failed}


def _follow(learning: Iterator[tuple[Cell, str | None]], out: Path, count: int, say: Say) -> list[Json]:
    """Says how each cell ended, keeps what went wrong in a file, and gives it."""
    failed: list[Json] = []
    for number, (cell, error) in enumerate(learning, 1):
        note = out / cell.name / f"failed-seed-{cell.seed}.txt"
        if error is None:
            note.unlink(missing_ok=True)
            result = _result_of(cell, out) or {}
            say(f"{cell}: ACC {result['acc']:.2f} %, {result['megabytes']:.3f} MB  ({number} of {count})")
        else:
            replace_file(note, (error + "\n").encode())
            failed.append({"cell": cell.name, "seed": cell.seed, "error": error, "file": str(note)})
            say(f"{cell}: failed: {error.splitlines()[-1]}  ({number} of {count})")
    return failed


def _result_of(cell: Cell, out: Path) -> Json | None:
    return read_json(seed_folder(out / cell.name, cell.seed) / RESULT)


def _finish(plan: Plan, out: Path) -> None:
    runs = [read_json(seed_folder(out, seed) / RESULT) for seed in plan.seeds]
    if not (out / RESULT).exists() and all(runs):
        finish(plan, out, [run for run in runs if run is not None])


def _summaries(grid: Grid, out: Path) -> list[Json]:
    """A row for every run with a seed that is finished."""
    by_run: dict[str, list[Cell]] = {}
    for cell in grid.cells():
        by_run.setdefault(cell.name, []).append(cell)
    return [row for cells in by_run.values() if (row := _summary(cells, out))]


def _summary(cells: Sequence[Cell], out: Path) -> Json | None:
    found = {cell.seed: result for cell in cells if (result := _result_of(cell, out)) is not None}
    if not found:
        return None
    about = {"cell": cells[0].name, "method": cells[0].method, **asdict(cells[0].dials), "seeds": list(found)}
    return {**about, **summarise(list(found.values()))}
