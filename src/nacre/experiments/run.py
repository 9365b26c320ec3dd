"""A method on a scenario, task by task, into a folder from which an interrupted run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from torch import nn

from nacre.errors import NacreError
from nacre.experiments.environment import describe_session, record_session
from nacre.experiments.epochs import EpochLog, seconds_of
from nacre.experiments.folder import RESULT, RUN, claim, locked, read_json, write_json
from nacre.experiments.metrics import acc, bwt, forgetting, summarise
from nacre.experiments.plan import Json, Plan
from nacre.experiments.spectra import Spectra
from nacre.experiments.tracking import Tracked, check_tracker, tracking
from nacre.learner import Learner
from nacre.scenarios import Scenario, ScenarioTask
from nacre.space import is_saved
from nacre.space.container import canonical_json
from nacre.space.store import replace_file
from nacre.training.checkpoint import clear
from nacre.training.processes import Processes
from nacre.training.seeding import seeded
from nacre.training.task import Callback

STORE, CHECKPOINTS, MATRIX = "life.nacre", "checkpoints", "accuracy.json"
EPOCHS, SPECTRA = "epochs.jsonl", "spectra.json"
Value = TypeVar("Value")


def run(plan: Plan, out: Path, *, resume: bool = False, progress: bool = True, track: str | None = None) -> Json:
    """Runs every seed and gives the result; with `resume`, what is already in the folder is not done again."""
    check_tracker(track)
    processes = Processes.current()

    def begin() -> Json | None:
        claim(out, RUN, plan.to_json(), resume=resume)
        finished = read_json(out / RESULT)
        if finished is None:
            record_session(out, describe_session())
        return finished

    if (finished := _first(processes, begin)) is not None:
        return finished
    runs = [run_seed(plan, seed, seed_folder(out, seed), progress=progress, track=track) for seed in plan.seeds]
    return _first(processes, lambda: finish(plan, out, runs))


def seed_folder(out: Path, seed: int) -> Path:
    return out / f"seed-{seed}"


def finish(plan: Plan, out: Path, runs: list[Json]) -> Json:
    """Writes down the result of all seeds."""
    result = {**plan.to_json(), **summarise(runs)}
    write_json(out / RESULT, result)
    return result


def run_seed(plan: Plan, seed: int, folder: Path, *, progress: bool = True, track: str | None = None) -> Json:
    """Learns the tasks in the order that the seed draws, and measures all tasks so far after each."""
    processes = Processes.current()
    with locked(folder, wanted=processes.main):
        if (finished := _first(processes, lambda: read_json(folder / RESULT))) is not None:
            return finished
        scenario = plan.scenario.ordered(seed)
        learner = _learner(plan, seed, folder, progress=progress)
        names = [task.name for task in scenario.tasks]
        config = {**plan.to_json(), "seed": seed}
        with tracking(track if processes.main else None, folder, config, names, plan.recipe.epochs) as tracked:
            matrix = _learn(plan, scenario, learner, folder, processes, tracked)

        def conclude() -> Json:
            result = _result(learner, seed, matrix, seconds_of(folder / EPOCHS))
            write_json(folder / RESULT, result)
            return result

        return _first(processes, conclude)


def _learn(
    plan: Plan, scenario: Scenario, learner: Learner, folder: Path, processes: Processes, tracked: Tracked | None
) -> list[list[float]]:
    """Goes through the tasks and gives the accuracies: row i on tasks 0..i after task i."""
    matrix = _first(processes, lambda: _read_matrix(folder, len(scenario.tasks)))
    for position, task in enumerate(scenario.tasks):
        if task.name not in learner.tasks:
            _learn_task(plan, scenario, task, learner, folder, tracked)
        elif processes.main:
            clear(folder / CHECKPOINTS, task.name)  # of a run that was killed when it had just saved
        if len(matrix) == position:
            seen = scenario.tasks[: position + 1]
            matrix.append([learner.evaluate(earlier.test, task=earlier.name) for earlier in seen])
            if processes.main:
                replace_file(folder / MATRIX, canonical_json(matrix).encode())
            if tracked is not None:
                tracked.task(matrix[-1], learner.knowledge.size().megabytes)
    return matrix


def _learn_task(
    plan: Plan, scenario: Scenario, task: ScenarioTask, learner: Learner, folder: Path, tracked: Tracked | None
) -> None:
    main = Processes.current().main
    spectra = Spectra(folder / SPECTRA, exact=getattr(plan.method, "exact", True))
    logs: list[Callback] = [EpochLog(folder / EPOCHS), spectra] if main else []
    learner.learn(
        task.name,
        task.train,
        recipe=replace(plan.recipe, augment=task.augment) if task.augment is not None else plan.recipe,
        head=_head(scenario, task, learner.seed),
        classes=task.classes,
        checkpoint=folder / CHECKPOINTS,
        callbacks=[*logs, *([tracked.epoch] if tracked is not None else [])],
    )
    learner.save(folder / STORE)


def _head(scenario: Scenario, task: ScenarioTask, seed: int) -> nn.Module | None:
    if scenario.head is None:
        return None
    with seeded(seed, task.name, "head"):
        return scenario.head(len(task.classes))


def _learner(plan: Plan, seed: int, folder: Path, *, progress: bool) -> Learner:
    if is_saved(folder / STORE):
        return Learner.load(folder / STORE, method=plan.method, progress=progress)
    with seeded(seed, "backbone"):
        backbone = plan.scenario.backbone()
    return Learner(backbone, plan.method, seed=seed, progress=progress)


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


def _result(learner: Learner, seed: int, matrix: list[list[float]], seconds: float) -> Json:
    size = learner.knowledge.size()
    return {
        "seed": seed,
        "tasks": list(learner.tasks),
        "acc": acc(matrix),
        "bwt": bwt(matrix),
        "forgetting": forgetting(matrix),
        "megabytes": size.megabytes,
        **size.kept(),
        "bytes_on_disk": size.disk,
        "accuracy_matrix": [[*row, *[None] * (len(matrix) - len(row))] for row in matrix],
        "ranks": {task: learner.knowledge.ranks(task) for task in learner.tasks},
        "seconds": seconds,
    }


def _first(processes: Processes, work: Callable[[], Value]) -> Value:
    """What work gives, done by the first process alone; what went wrong there is known to all."""
    done: tuple[Value | None, str | None] = (None, None)
    if processes.main:
        try:
            done = (work(), None)
        except NacreError as error:
            if processes.count == 1:
                raise
            done = (None, str(error))
    value, problem = processes.agree(done)
    if problem is not None:
        raise NacreError(problem)
    return cast(Value, value)


__all__ = ["Plan", "finish", "run", "run_seed", "seed_folder"]
