"""Learning a task from a user's pictures into a store: read, learn, save, and look whether the others are as before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.images.examples import Examples, Prepared, read, side_for
from nacre.images.interrupted import checkpoints, learning
from nacre.images.opened import DEFAULT_NETWORK, Opened, begin, exists, open_store, smallest_side
from nacre.images.recipe import Chosen, choose
from nacre.learner import Result
from nacre.methods import CACL
from nacre.scenarios.given import Given, find
from nacre.scenarios.preprocessing import Preprocessing
from nacre.scenarios.progress import say
from nacre.space.naming import as_path, check_new
from nacre.space.size import BYTES_A_NUMBER
from nacre.training.processes import Processes

_LOOKS = 64  # pictures that earlier tasks answer before and after


@dataclass(frozen=True)
class Wanted:
    """What may be asked of a task that is learnt from pictures; None is the store's, or the default."""

    network: str | None = None
    size: int | None = None
    seed: int | None = None
    epochs: int | None = None
    budget: int | None = None  # bytes of the task's factors
    test_share: float = 0.2
    flip: bool = False
    label: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.test_share < 1:
            raise NacreError(f"the test share is a share of the pictures, from 0 to below 1; got {self.test_share:g}")
        for name, value in (("size", self.size), ("epochs", self.epochs), ("budget", self.budget)):
            if value is not None and value < 1:
                raise NacreError(f"the {name} is a whole number from 1; got {value}")


@dataclass(frozen=True)
class Learnt:
    """What learning a task from pictures came to."""

    task: str
    classes: tuple[str, ...]
    trained_on: int
    tested_on: int
    accuracy: float | None  # per cent of the test pictures
    accuracy_without_budget: float | None  # of the same task learnt the same way with no budget; None without one
    ranks: dict[str, int]
    factor_bytes: int
    megabytes: float
    seconds: float
    recipe: str
    unchanged: tuple[str, ...]  # earlier tasks that answered the same bits before and after
    looked_at: int  # pictures that they answered
    skipped: tuple[str, ...]
    notes: tuple[str, ...]


def learn(store: str | Path, task: str, pictures: str | Path, wanted: Wanted | None = None) -> Learnt:
    """Adds a task to a store, or begins the store. Interrupted, it leaves the store as it was; called again, it goes on
    from the last epoch."""
    store, wanted = as_path(store), wanted or Wanted()
    opened = _opened(store, wanted)
    check_new(task, opened.learner.tasks if opened is not None else ())
    found = find(str(pictures), wanted.label)
    with learning(store) as folder:
        side = opened.preprocessing.side if opened is not None else _side(found, wanted)
        seed = opened.learner.seed if opened is not None else wanted.seed or 0
        examples = read(found, task, side, wanted.test_share, seed)
        for note in (*(f"skipped: {problem}" for problem in examples.skipped), *examples.notes):
            _say(note)
        prepared = opened.preprocessing if opened is not None else Preprocessing.fitted(side, examples.train.images)
        chosen = choose(len(examples.train.labels), prepared, epochs=wanted.epochs, flip=wanted.flip)
        _say(f"{task}: {chosen.words}")
        return _Work(store, task, examples, prepared, chosen, wanted, seed, folder).learn()


def _opened(store: Path, wanted: Wanted) -> Opened | None:
    """The store, if it is there; refuses what was decided when it was begun and cannot be another now."""
    network = wanted.network or DEFAULT_NETWORK
    if not exists(store):
        smallest = smallest_side(network)
        if store.exists() and (not store.is_dir() or any(store.iterdir())):
            raise NacreError(f"{store} is there already and is no nacre store: give another place for it")
        if wanted.size is not None and wanted.size < smallest:
            raise NacreError(f"{network} takes pictures of {smallest} pixels or more; got --size {wanted.size}")
        return None
    opened = open_store(store)
    if wanted.budget is not None and not isinstance(opened.learner.method, CACL):
        raise NacreError(f"{store} was learnt with {opened.learner.method!r}, which knows no budget")
    has = {"network": opened.network, "size": opened.preprocessing.side, "seed": opened.learner.seed}
    for name, value in has.items():
        if (asked := getattr(wanted, name)) not in (None, value):
            raise NacreError(f"{store} was begun with --{name} {value}, and all its tasks have that; got {asked}")
    return opened


def _side(found: Given, wanted: Wanted) -> int:
    return wanted.size or side_for(found, smallest_side(wanted.network or DEFAULT_NETWORK))


def _say(line: str) -> None:
    if Processes.current().main:
        say(line)


@dataclass(frozen=True)
class _Work:
    """One task to be learnt into one store."""

    store: Path
    task: str
    examples: Examples
    preprocessing: Preprocessing
    chosen: Chosen
    wanted: Wanted
    seed: int
    folder: Path  # of what is being learnt

    def learn(self) -> Learnt:
        looked_at = self.examples.test if len(self.examples.test.labels) else self.examples.train
        inputs = Prepared(looked_at, self.preprocessing).first(_LOOKS)
        before = self._answers(inputs)
        opened, result, without = self._within_budget()
        opened.learner.save(self.store)
        self._check_unchanged(before, self._answers(inputs))
        size = opened.learner.knowledge.size(self.task)
        return Learnt(
            task=self.task,
            classes=self.examples.classes,
            trained_on=len(self.examples.train.labels),
            tested_on=len(self.examples.test.labels),
            accuracy=result.accuracy,
            accuracy_without_budget=without,
            ranks=result.ranks,
            factor_bytes=size.factors * BYTES_A_NUMBER,
            megabytes=size.megabytes,
            seconds=result.seconds,
            recipe=self.chosen.words,
            unchanged=tuple(before),
            looked_at=len(inputs),
            skipped=self.examples.skipped,
            notes=self.examples.notes,
        )

    def _within_budget(self) -> tuple[Opened, Result, float | None]:
        """The task learnt, and with a budget its accuracy without one: what a budget costs is the difference.

        Learnt without one first, so that one that is large enough costs nothing.
        """
        opened, result = self._learn(None)
        budget = self.wanted.budget
        if budget is None:
            return opened, result, None
        needed = opened.learner.knowledge.size(self.task).factors * BYTES_A_NUMBER
        if needed <= budget:
            return opened, result, result.accuracy
        _say(f"{self.task}: {needed:,} bytes of factors without a budget; learnt again within {budget:,}")
        return *self._learn(budget), result.accuracy

    def _learn(self, budget: int | None) -> tuple[Opened, Result]:
        """The store with the task, in memory."""
        opened = open_store(self.store) if exists(self.store) else self._begun()
        learner, examples = opened.learner, self.examples
        if budget is not None:
            # for this task: the store's facts keep the method as it was
            learner.method = replace(cast(CACL, learner.method), budget=budget)
        plan = {
            "task": self.task,
            "after": list(learner.tasks),
            "pictures": [examples.digest, self.preprocessing.to_json(), self.wanted.test_share],
            "how": [repr(self.chosen.recipe), repr(learner.method), self.seed],
        }
        folder = checkpoints(self.folder, plan)
        if any(folder.glob("*.safetensors")):
            _say(f"{self.task}: going on where it was interrupted")
        result = learner.learn(
            self.task,
            train=Prepared(examples.train, self.preprocessing),
            test=Prepared(examples.test, self.preprocessing) if len(examples.test.labels) else None,
            recipe=self.chosen.recipe,
            head=opened.head(self.task, len(examples.classes)),
            classes=examples.classes,
            checkpoint=folder,
        )
        return opened, result

    def _begun(self) -> Opened:
        return begin(self.wanted.network or DEFAULT_NETWORK, self.preprocessing, self.seed)

    def _answers(self, inputs: Tensor) -> dict[str, Tensor]:
        """What every task but this one answers, read from the store on disk as it is now."""
        if not exists(self.store):
            return {}
        learner = open_store(self.store).learner
        return {task: learner.predict(inputs, task=task) for task in learner.tasks if task != self.task}

    def _check_unchanged(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
        changed = [task for task, answers in before.items() if not torch.equal(answers, after[task])]
        if changed:
            raise NacreError(
                f"{self.task!r} was saved, but {', '.join(changed)} no longer gives the same bits: nacre verify "
                f"{self.store} says whether its files are as they were written"
            )
