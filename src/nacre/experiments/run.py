"""A method on a scenario, task by task, into a folder from which an interrupted run goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from nacre.errors import NacreError
from nacre.experiments.metrics import acc, bwt, mean_and_std
from nacre.learner import Learner
from nacre.methods.method import settings
from nacre.scenarios import Scenario, ScenarioTask
from nacre.space.container import canonical_json
from nacre.space.store import INDEX, replace_file
from nacre.training import Epoch, Recipe
from nacre.training.checkpoint import clear
from nacre.training.seeding import seeded

STORE, CHECKPOINTS, CONFIG, MATRIX, EPOCHS = "life.nacre", "checkpoints", "run.json", "accuracy.json", "epochs.jsonl"
Json = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is run: everything that its result follows from, but for the machine."""

    scenario: Scenario
    method: Any
    recipe: Recipe
    seeds: tuple[int, ...] = (0,)

    def to_json(self) -> Json:
        recipe = {key: value for key, value in asdict(self.recipe).items() if not callable(value)}
        return {
            "scenario": self.scenario.name,
            "tasks": [task.name for task in self.scenario.tasks],
            "method": settings(self.method),
            "recipe": recipe,
            "seeds": list(self.seeds),
        }


def run(plan: Plan, out: Path, *, resume: bool = False, progress: bool = True) -> Json:
    """Runs every seed and gives the result; with `resume`, what is already in the folder is not done again."""
    _claim(out, plan, resume=resume)
    runs = [run_seed(plan, seed, out / f"seed-{seed}", progress=progress) for seed in plan.seeds]
    return {**plan.to_json(), **summarise(runs)}


def _claim(out: Path, plan: Plan, *, resume: bool) -> None:
    """Makes the folder this run's; one that another run made is left alone."""
    config = (json.dumps(plan.to_json(), indent=2) + "\n").encode()
    path = out / CONFIG
    if not path.exists():
        if out.exists() and not out.is_dir():
            raise NacreError(f"{out} is no folder: give another one with --out")
        if out.exists() and any(found.name != f"{CONFIG}.partial" for found in out.iterdir()):
            raise NacreError(f"{out} holds something that is not a run of nacre's: give another folder with --out")
        out.mkdir(parents=True, exist_ok=True)
        replace_file(path, config)
        return
    if not resume:
        raise NacreError(f"{out} holds a run already: go on with it with --resume, or give another folder with --out")
    if differences := _differences(path, config):
        raise NacreError(f"{out} holds a run with other settings than these: {differences}")


def _differences(path: Path, config: bytes) -> str:
    try:
        old, new = _flat(json.loads(path.read_bytes())), _flat(json.loads(config))
    except (ValueError, AttributeError) as error:
        raise NacreError(f"{path} is damaged: {error}") from error
    changed = [key for key in {**new, **old} if old.get(key) != new.get(key)]
    return "; ".join(f"{key} was {old.get(key)}, now {new.get(key)}" for key in changed)


def _flat(settings: Json, above: str = "") -> Json:
    """Settings within settings by their full names: recipe.epochs."""
    flat: Json = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat


def run_seed(plan: Plan, seed: int, folder: Path, *, progress: bool = True) -> Json:
    """Learns the tasks in the order that the seed draws, and measures all tasks so far after each."""
    begun = time.monotonic()
    scenario = plan.scenario.ordered(seed)
    learner = _learner(plan, seed, folder, progress=progress)
    matrix = _read_matrix(folder, len(scenario.tasks))
    for position, task in enumerate(scenario.tasks):
        if task.name not in learner.tasks:
            learner.learn(
                task.name,
                task.train,
                recipe=replace(plan.recipe, augment=task.augment) if task.augment else plan.recipe,
                head=_head(scenario, task, seed),
                classes=task.classes,
                checkpoint=folder / CHECKPOINTS,
                callbacks=[_Log(folder / EPOCHS)],
            )
            learner.save(folder / STORE)
        else:
            clear(folder / CHECKPOINTS, task.name)  # of a run that was killed when it had just saved
        if len(matrix) == position:
            seen = scenario.tasks[: position + 1]
            matrix.append([learner.evaluate(earlier.test, task=earlier.name) for earlier in seen])
            replace_file(folder / MATRIX, canonical_json(matrix).encode())
    size = learner.knowledge.size()
    return {
        "seed": seed,
        "tasks": [task.name for task in scenario.tasks],
        "acc": acc(matrix),
        "bwt": bwt(matrix),
        "megabytes": size.megabytes,
        "bytes_on_disk": size.disk,
        "accuracy_matrix": [[*row, *[None] * (len(matrix) - len(row))] for row in matrix],
        "ranks": {task.name: learner.knowledge.ranks(task.name) for task in scenario.tasks},
        "seconds": time.monotonic() - begun,
    }


def _learner(plan: Plan, seed: int, folder: Path, *, progress: bool) -> Learner:
    if (folder / STORE / INDEX).exists():
        return Learner.load(folder / STORE, progress=progress)
    folder.mkdir(exist_ok=True)
    with seeded(seed, "backbone"):
        backbone = plan.scenario.backbone()
    return Learner(backbone, plan.method, seed=seed, progress=progress)


def _head(scenario: Scenario, task: ScenarioTask, seed: int) -> nn.Module | None:
    """The head that the scenario's network has; None for the linear one that a learner makes."""
    if scenario.head is None:
        return None
    with seeded(seed, task.name, "head"):
        return scenario.head(len(task.classes))


def _read_matrix(folder: Path, tasks: int) -> list[list[float]]:
    path = folder / MATRIX
    try:
        matrix: list[list[float]] = json.loads(path.read_bytes()) if path.exists() else []
        lengths = [len([float(accuracy) for accuracy in row]) for row in matrix]
        if lengths != [*range(1, len(lengths) + 1)] or len(lengths) > tasks:
            raise ValueError(f"its rows have {lengths} numbers, for {tasks} tasks")
    except (ValueError, TypeError) as error:
        raise NacreError(f"{path} is damaged: {error}") from error
    return matrix


class _Log:
    """Writes a line of JSON for every epoch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clean = False

    def __call__(self, epoch: Epoch, _: object) -> None:
        if not self._clean:
            self._drop(epoch)
        with self._path.open("a") as file:
            file.write(canonical_json(epoch.to_json()) + "\n")

    def _drop(self, first: Epoch) -> None:
        """Takes out what a killed run wrote of epochs that are learnt again, and the part of a line."""
        lines = self._path.read_text().splitlines(keepends=True) if self._path.exists() else []
        try:
            kept = [line for line in lines if line.endswith("\n") and not _again(json.loads(line), first)]
        except (ValueError, KeyError, TypeError) as error:
            raise NacreError(f"{self._path} is damaged: {error!r}") from error
        if kept != lines:
            replace_file(self._path, "".join(kept).encode())
        self._clean = True


def _again(line: Json, first: Epoch) -> bool:
    return (line["task"], line["phase"]) == (first.task, first.phase) and line["epoch"] >= first.epoch


def summarise(runs: Sequence[Json]) -> Json:
    """One run as it is; several as means, standard deviations and the runs themselves."""
    if len(runs) == 1:
        return dict(runs[0])
    means, deviations = {}, {}
    for key in ("acc", "bwt", "megabytes"):
        means[key], deviations[key] = mean_and_std([run[key] for run in runs])
    return {**means, "std": deviations, "runs": list(runs)}
