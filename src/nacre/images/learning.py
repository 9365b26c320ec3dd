"""Learning a task from a user's pictures into a store: read, learn, save, and look whether the others are as before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from nacre.errors import NacreError, WrongUsage
from nacre.images.beginning import DEFAULT_NETWORK, Beginning, begin
from nacre.images.examples import Examples, Prepared, read
from nacre.images.interrupted import checkpoints, learning
from nacre.images.opened import Opened, exists, open_store
from nacre.images.recipe import Chosen, choose
from nacre.images.wanted import NO_BASE, Learnt, Wanted
from nacre.learner import Result
from nacre.methods import CACL
from nacre.networks.registry import known_as
from nacre.scenarios.given import find
from nacre.scenarios.preprocessing import Preprocessing
from nacre.scenarios.progress import Counting, say
from nacre.space import SharedSpace
from nacre.space.naming import as_path, check_new
from nacre.space.size import BYTES_A_NUMBER
from nacre.training.processes import Processes

_LOOKS = 64  # pictures that earlier tasks answer before and after


def learn(store: str | Path, task: str, pictures: str | Path, wanted: Wanted | None = None) -> Learnt:
    """Adds a task to a store, or begins the store. Interrupted, it leaves the store as it was; called again, it goes on
    from the last epoch."""
    store, wanted = as_path(store), wanted or Wanted()
    opened = _opened(store, wanted)
    check_new(task, opened.learner.tasks if opened is not None else ())
    found = find(str(pictures), wanted.label)
    network = wanted.network or DEFAULT_NETWORK
    first = opened or begin(network, found, wanted.size, wanted.base, wanted.seed)
    with learning(store) as folder:
        examples = read(found, task, first.side, wanted.test_share, first.seed)
        pixels = examples.train.images
        prepared = first.prepares(pixels) if isinstance(first, Beginning) else first.preprocessing
        chosen = choose(len(pixels), prepared, epochs=wanted.epochs, flip=wanted.flip)
        said = [first.words] if isinstance(first, Beginning) and first.pretrained else []
        skipped = [f"skipped: {problem}" for problem in examples.skipped]
        for line in (*said, *skipped, *examples.notes, f"{task}: {chosen.words}"):
            _say(line)
        return _Work(store, task, examples, prepared, chosen, wanted, first, folder).learn()


def _opened(store: Path, wanted: Wanted) -> Opened | None:
    """The store, if it is there; refuses what was decided when it was begun and cannot be another now."""
    if not exists(store):
        if store.exists() and (not store.is_dir() or any(store.iterdir())):
            raise NacreError(f"{store} is there already and is no nacre store: give another place for it")
        if wanted.base is not None and wanted.network is None:
            raise WrongUsage(NO_BASE.format(f"without --network a new store begins with {DEFAULT_NETWORK}"))
        return None
    opened = open_store(store)
    for name in ("budget", "dtype"):
        if getattr(wanted, name) is not None and not isinstance(opened.learner.method, CACL):
            raise NacreError(f"{store} was learnt with {opened.learner.method!r}, which knows no {name}")
    if wanted.base is not None and opened.base is None:
        raise WrongUsage(NO_BASE.format(f"{store} was begun with --network {opened.network}"))
    has = {"network": opened.network, "size": opened.side, "seed": opened.seed, "base": opened.base}
    for name, value in has.items():
        asked = getattr(wanted, name)
        if asked not in (None, value) and not (name == "network" and known_as(asked) == value):
            raise NacreError(f"{store} was begun with --{name} {value}, and all its tasks have that; got {asked}")
    return opened


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
    first: Opened | Beginning  # what the store was before
    folder: Path  # of what is being learnt

    def learn(self) -> Learnt:
        looked_at = self.examples.test if len(self.examples.test.labels) else self.examples.train
        inputs = Prepared(looked_at, self.preprocessing).first(_LOOKS)
        before = self._answers(inputs)
        opened, result, without = self._within_budget()
        opened.learner.save(self.store)
        try:
            self._check_unchanged(before, self._answers(inputs))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; {self.task!r} is learnt and saved, all but the look whether the tasks before it answer "
                f"as they did: nacre verify {self.store} says whether their files are as they were written"
            ) from None
        return self._learnt(opened, result, without, tuple(before), len(inputs))

    def _learnt(
        self, opened: Opened, result: Result, without: float | None, unchanged: tuple[str, ...], looked_at: int
    ) -> Learnt:
        knowledge = opened.learner.knowledge
        size = knowledge.size(self.task)
        return Learnt(
            task=self.task,
            classes=self.examples.classes,
            trained_on=len(self.examples.train.labels),
            tested_on=len(self.examples.test.labels),
            accuracy=result.accuracy,
            accuracy_without_budget=without,
            ranks=result.ranks,
            factor_bytes=self._factor_bytes(opened),
            megabytes=size.megabytes,
            seconds=result.seconds,
            recipe=self.chosen.words,
            network=opened.network,
            base=opened.base,
            base_megabytes=knowledge.size().base * BYTES_A_NUMBER / 1e6,
            unchanged=unchanged,
            looked_at=looked_at,
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
        needed = self._factor_bytes(opened)
        if needed <= budget:
            return opened, result, result.accuracy
        _say(f"{self.task}: {needed:,} bytes of factors without a budget; learnt again within {budget:,}")
        return *self._learn(budget), result.accuracy

    def _factor_bytes(self, opened: Opened) -> int:
        """As they are stored."""
        record = cast(SharedSpace, opened.learner.knowledge).record(self.task)
        return record.numbers()["factors"] * BYTES_A_NUMBER - record.saved().get("factors", 0)

    def _learn(self, budget: int | None) -> tuple[Opened, Result]:
        """The store with the task, in memory."""
        first = self.first
        opened = first.opened(self.preprocessing) if isinstance(first, Beginning) else open_store(self.store)
        learner, examples = opened.learner, self.examples
        asked: dict[str, Any] = {"budget": budget} if budget is not None else {}
        if (dtype := self.wanted.dtype) is not None:
            asked |= {"dtype": dtype, "head_dtype": dtype}
        if asked:  # for this task: the store's facts keep the method as it was
            learner.method = replace(cast(CACL, learner.method), **asked)
        plan = {
            "task": self.task,
            "after": list(learner.tasks),
            "pictures": [examples.digest, self.preprocessing.to_json(), self.wanted.test_share],
            "how": [repr(self.chosen.recipe), repr(learner.method), learner.seed, opened.network],
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

    def _answers(self, inputs: Tensor) -> dict[str, Tensor]:
        """What every task but this one answers, read from the store on disk as it is now."""
        if not exists(self.store):
            return {}
        learner, answers = open_store(self.store).learner, {}
        others = [task for task in learner.tasks if task != self.task]
        with Counting("asking the tasks that are there", len(others)) as counting:
            for task in others:
                answers[task] = learner.predict(inputs, task=task)
                counting.add(1)
        return answers

    def _check_unchanged(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
        changed = [task for task, answers in before.items() if not torch.equal(answers, after[task])]
        if changed:
            raise NacreError(
                f"{self.task!r} was saved, but {', '.join(changed)} no longer gives the same bits: nacre verify "
                f"{self.store} says whether its files are as they were written"
            )
