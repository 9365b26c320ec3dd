"""Run folders as they are on disk: finished or not, files missing or damaged; what is wrong is kept, to be said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nacre.errors import NacreError, WrongUsage
from nacre.experiments.metrics import acc, bwt
from nacre.experiments.report.stored import Spectra, Stored, kept_values, read_store

Json = dict[str, Any]
CONFIG, GRID, STORE = "run.json", "grid.json", "life.nacre"


@dataclass(frozen=True)
class Seed:
    """One seed of a run, as far as it has come."""

    seed: int
    tasks: tuple[str, ...]  # in the order learnt
    planned: int
    matrix: tuple[tuple[float, ...], ...]  # row i: the accuracies on tasks 0..i after task i
    epochs: tuple[Json, ...]
    stored: Stored | None
    before: Spectra  # singular values just before the cut
    result: Json
    problems: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        return len(self.matrix) == self.planned

    @property
    def acc(self) -> float:
        return acc(self.matrix)

    @property
    def bwt(self) -> float:
        return bwt(self.matrix)

    @property
    def megabytes(self) -> float | None:
        """From the store; where it cannot be read, as the result said."""
        return self.stored.megabytes if self.stored else self.result.get("megabytes")

    @property
    def megabytes_at_4_bytes(self) -> float | None:
        """However few bits the numbers are stored in."""
        return self.stored.megabytes_at_4_bytes if self.stored else self.result.get("megabytes_at_4_bytes")

    @property
    def bytes_on_disk(self) -> int | None:
        return self.stored.disk if self.stored else self.result.get("bytes_on_disk")

    def after(self) -> Spectra:
        """Singular values that the cut has left."""
        return kept_values(self.stored.folder) if self.stored else {}


@dataclass(frozen=True)
class Run:
    """A run folder."""

    folder: Path
    plan: Json
    environment: Json
    seeds: tuple[Seed, ...]  # those that have begun
    problems: tuple[str, ...] = ()
    planned: tuple[int, ...] = field(default=())

    @property
    def scenario(self) -> str:
        return str(self.plan["scenario"])

    @property
    def method(self) -> str:
        return str(self.plan["method"]["name"])

    @property
    def settings(self) -> Json:
        found = self.plan["method"].get("settings")
        return found if isinstance(found, dict) else {}

    @property
    def protocol(self) -> str | None:
        return self.plan.get("protocol")

    @property
    def network(self) -> str | None:
        return self.plan.get("network") or self.facts.get("network")

    @property
    def facts(self) -> Json:
        found = self.plan.get("facts")
        return found if isinstance(found, dict) else {}

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks planned, in the scenario's own order."""
        return tuple(map(str, self.plan["tasks"]))

    @property
    def finished(self) -> tuple[Seed, ...]:
        return tuple(seed for seed in self.seeds if seed.finished)

    @property
    def shown(self) -> tuple[Seed, ...]:
        """The seeds that figures are of: the finished ones, or the one that has come furthest.

        Means over seeds that have come differently far would change from task to task where nothing has changed.
        """
        if self.finished or not self.seeds:
            return self.finished
        return (max(self.seeds, key=lambda seed: (len(seed.matrix), len(seed.epochs))),)

    def unfinished(self) -> list[str]:
        """What is missing, in words."""
        begun = {seed.seed: len(seed.matrix) for seed in self.seeds if not seed.finished}
        waiting = [number for number in self.planned if number not in {seed.seed for seed in self.seeds}]
        missing = [f"seed {seed} has {done} of {len(self.tasks)} tasks" for seed, done in begun.items()]
        return missing + [f"seed {seed} has not begun" for seed in waiting]


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs in run folders and grid folders, and what of a grid is missing."""
    runs: dict[Path, Run] = {}
    notes: list[str] = []
    for path in paths:
        for folder in _folders(Path(path), notes):
            if folder.resolve() not in runs:
                runs[folder.resolve()] = read_run(folder)
    if not runs:
        raise NacreError("; ".join(notes)) if notes else WrongUsage("no run folder was given: nacre run makes them")
    return list(runs.values()), notes


def _folders(path: Path, notes: list[str]) -> Iterator[Path]:
    if not path.exists():
        raise NacreError(f"{path} does not exist: give the folder that nacre run or nacre compare has made")
    if (path / GRID).exists():
        cells = sorted(cell for cell in path.iterdir() if cell.is_dir())
        begun = [cell for cell in cells if (cell / CONFIG).exists()]
        notes += [f"{cell} of the grid has no {CONFIG}: nothing of it was run" for cell in cells if cell not in begun]
        notes += [] if begun else [f"no run of the grid {path} has begun"]
        yield from begun
    elif (path / CONFIG).exists():
        yield path
    else:
        raise NacreError(f"{path} is neither a run folder (it has no {CONFIG}) nor a grid (it has no {GRID})")


def read_run(folder: Path) -> Run:
    """A run folder; refused only where its plan cannot be read."""
    problems: list[str] = []
    plan = _read(folder / CONFIG, problems)
    try:
        planned = tuple(int(seed) for seed in plan["seeds"])
        run = Run(folder, plan, {}, (), planned=planned)
        missing = [what for what in (run.scenario, run.method, run.tasks) if not what]
        if missing or not isinstance(run.plan.get("recipe", {}), dict):
            raise ValueError("it names no scenario, method or tasks")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NacreError(f"{folder / CONFIG} is damaged: {error!r}") from error
    environment, result = _object(folder / "environment.json", problems), _object(folder / "result.json", problems)
    results = {one.get("seed"): one for one in result.get("runs", [result])}
    seeds = tuple(
        _read_seed(folder / f"seed-{seed}", seed, len(run.tasks), results.get(seed, {}))
        for seed in planned
        if (folder / f"seed-{seed}").is_dir()
    )
    problems += [_failure(path) for path in sorted(folder.glob("failed-seed-*.txt"))]
    return Run(folder, plan, environment, seeds, tuple(problems), planned)


def _failure(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    seed = path.stem.removeprefix("failed-seed-")
    return f"seed {seed} failed: {lines[-1][:300] if lines else 'nothing was written down'}"


def _read_seed(folder: Path, seed: int, planned: int, result: Json) -> Seed:
    problems: list[str] = []
    matrix = _matrix(folder / "accuracy.json", planned, problems)
    epochs = _epochs(folder / "epochs.jsonl", problems)
    stored = None
    try:
        stored = read_store(folder / STORE) if (folder / STORE).exists() else None
    except NacreError as error:
        problems.append(str(error))
    learnt = [task.name for task in stored.tasks] if stored else list(dict.fromkeys(str(e["task"]) for e in epochs))
    names = [*learnt, *(f"task {at + 1}" for at in range(len(learnt), len(matrix)))]
    spectra = _spectra(folder / "spectra.json", problems)
    result = result or _object(folder / "result.json", problems)
    return Seed(seed, tuple(names), planned, matrix, epochs, stored, spectra, result, tuple(problems))


def _read(path: Path, problems: list[str]) -> Any:
    """A file of JSON; None where there is none or it is damaged."""
    try:
        return json.loads(path.read_bytes()) if path.exists() else None
    except (ValueError, OSError) as error:
        problems.append(f"{path} is damaged: {error}")
        return None


def _object(path: Path, problems: list[str]) -> Json:
    found = _read(path, problems)
    return found if isinstance(found, dict) else {}


def _matrix(path: Path, planned: int, problems: list[str]) -> tuple[tuple[float, ...], ...]:
    rows = _read(path, problems) or []
    try:
        matrix = tuple(tuple(float(value) for value in row) for row in rows)
        if [len(row) for row in matrix] != list(range(1, len(matrix) + 1)) or len(matrix) > planned:
            raise ValueError(f"its rows have {[len(row) for row in matrix]} numbers, for {planned} tasks")
    except (TypeError, ValueError) as error:
        problems.append(f"{path} is damaged: {error}")
        return ()
    return matrix


def _epochs(path: Path, problems: list[str]) -> tuple[Json, ...]:
    """The lines of the log; part of a line at its end is a run that is being written."""
    found = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    *lines, rest = text.split("\n")  # names may hold what else Python takes for the end of a line
    for line in lines:
        try:
            epoch = json.loads(line)
            found.append({**epoch, "task": str(epoch["task"]), "loss": float(epoch["loss"])})
        except (ValueError, KeyError, TypeError) as error:
            problems.append(f"{path} is damaged: {error!r}")
            break
    problems += [f"{path} ends within a line: an epoch was being written"] if rest else []
    return tuple(found)


def _spectra(path: Path, problems: list[str]) -> Spectra:
    found = _object(path, problems)
    try:
        return {
            task: {
                layer: sorted((abs(float(value)) for value in values), reverse=True) for layer, values in each.items()
            }
            for task, each in found.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        problems.append(f"{path} is damaged: {error!r}")
        return {}
