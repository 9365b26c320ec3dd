"""Learner: the front door for somebody with a network and data of their own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.methods import CACL, Knowledge, Method, checked_method, method_from_json
from nacre.methods.method import settings
from nacre.space import facts_of
from nacre.space.layout import check_backbone, copy_of
from nacre.space.naming import as_path, check_known, check_new, class_names
from nacre.space.plain import Features
from nacre.training import Epoch, Recipe, Task
from nacre.training.batch import EVALUATION_BATCH, Batches
from nacre.training.batches import as_batches
from nacre.training.checkpoint import clear
from nacre.training.evaluation import evaluate, measure
from nacre.training.head import choose_head
from nacre.training.held import Held
from nacre.training.processes import Processes
from nacre.training.seeding import checked_seed, seeded
from nacre.training.task import Callback, Loss, Metric, check_function, check_settings, cross_entropy
from nacre.trees import Tree, explained, joined, leaves, map_leaves, shapes, split

_CACHED = 4  # plain networks kept for predict


@dataclass(frozen=True)
class Result:
    """What learning a task came to."""

    task: str
    accuracy: float | None  # per cent on test=, or what metric= gave; None without test
    ranks: dict[str, int]  # added by this task, by layer
    megabytes: float  # added by this task
    history: tuple[Epoch, ...]
    seconds: float


class Learner:
    """Teaches one network task after task.

    >>> learner = Learner(nn.Sequential(nn.Linear(4, 16), nn.ReLU()), CACL(sparsity=0.1), device="cpu")
    >>> x, y = torch.randn(64, 4), torch.arange(64) % 2
    >>> result = learner.learn("parity", train=(x, y), recipe=Recipe(epochs=2))
    >>> learner.tasks, learner.predict(x, task="parity").shape
    (('parity',), torch.Size([64, 2]))
    """

    def __init__(
        self,
        backbone: nn.Module,
        method: Any = None,
        *,
        seed: int = 0,
        device: str | torch.device = "auto",
        features: Features = None,
        progress: bool = True,
        **options: Any,
    ) -> None:
        """A learner on a backbone that maps a batch to features; it keeps a copy.

        method: CACL() unless another is given. features: which part of the backbone's output the features are.
        options: what the method's knowledge takes beside them; of a SharedSpace base=, include=, exclude=, private=; of
        Weights private=.
        """
        method, seed = checked_method(method if method is not None else CACL()), checked_seed(seed)
        check_backbone(backbone)
        processes = Processes.current(device)
        backbone = copy_of(backbone).to(processes.device)
        processes.align(backbone)
        knowledge = method.begin(backbone, features=features, **options)
        knowledge.facts |= {"method": settings(method), "seed": seed}
        self._begin(method, knowledge, seed, processes, progress)

    def _begin(self, method: Any, knowledge: Knowledge, seed: int, processes: Processes, progress: bool) -> None:
        self.method: Method[Any] = method
        self.knowledge: Knowledge = knowledge
        self.seed = seed
        self._processes = processes
        self._progress = progress
        self._networks: OrderedDict[str, nn.Module] = OrderedDict()
        self._guard = threading.Lock()
        self._kept_checkpoints: list[tuple[Path, str]] = []
        knowledge.device = processes.device

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks in the order learnt."""
        return self.knowledge.tasks

    @property
    def device(self) -> torch.device:
        """Where it learns and answers."""
        return self._processes.device

    def learn(
        self,
        name: str,
        train: Any,
        *,
        test: Any = None,
        val: Any = None,
        recipe: Recipe | None = None,
        head: nn.Module | None = None,
        loss: Loss | None = None,
        metric: Metric | None = None,
        classes: Sequence[str] | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint: str | Path | None = None,
    ) -> Result:
        """Learns one more task.

        train, test, val: a pair (inputs, targets) of tensors, a map-style Dataset or a DataLoader. With val the best
        epoch is kept, and training stops when none was better for `recipe.patience` epochs.
        head, loss: made for class numbers where they are not given; several labels or regression need both. The head
        that is trained is a copy.
        metric: (outputs, targets) -> a number, higher is better, in place of accuracy. classes: names, in order.
        callbacks: each gets (epoch, network) after every epoch and may return True to stop.
        checkpoint: a folder; run again after an interrupt, learning goes on from the last epoch in it.
        """
        begun = time.monotonic()
        check_new(name, self.tasks)
        recipe, names = recipe if recipe is not None else Recipe(), class_names(classes)
        check_settings(recipe, loss, metric, callbacks)
        folder = as_path(checkpoint) if checkpoint is not None else None
        own = copy_of(head, "head") if head is not None else None
        given = {"train": train} | {part: data for part, data in (("test", test), ("val", val)) if data is not None}
        with seeded(self.seed, name, "begin"):
            batches = {part: as_batches(data, recipe, self._processes) for part, data in given.items()}
            head = choose_head(own, batches, self.knowledge.probe, names, class_numbers=loss is None)
            task = Task(
                name,
                head,
                batches["train"],
                loss or cross_entropy,
                recipe,
                self._processes,
                seed=self.seed,
                val=batches.get("val"),
                metric=metric,
                classes=names,
                callbacks=tuple(callbacks),
                checkpoint=folder,
                progress=self._progress,
                facts={"method": repr(self.method), "tasks before": self.tasks},
            )
            self.method.learn(self.knowledge, task)
        with self._guard:
            self._networks.clear()  # of a method that overwrites its weights they are out of date
        if folder is not None:
            self._kept_checkpoints.append((folder, name))
        accuracy = self._tested(name, batches["test"], metric) if "test" in batches else None
        added = self.knowledge.size(name).megabytes
        seconds = time.monotonic() - begun
        return Result(name, accuracy, self.knowledge.ranks(name), added, tuple(task.history), seconds)

    def network(self, task: str) -> nn.Module:
        """A plain module in eval mode for a task: independent of the learner, safe to compile, export and share."""
        return self.knowledge.network(self._known(task))

    def predict(self, inputs: Tree, task: str | None = None) -> Tensor:
        """Logits in float32: the same bits for the same batch, for ever, if the method does not forget."""
        network = self._cached(self._known(task))
        # parts of a size that no machine decides, so that none decides the bits
        parts = [self._run(network, part, task) for part in split(inputs, EVALUATION_BATCH)]
        return cast(Tensor, joined(parts)) if len(parts) > 1 else parts[0]

    def evaluate(self, data: Any, task: str | None = None, *, metric: Metric | None = None) -> float:
        """Accuracy in per cent, or what a metric gives."""
        check_known(task, self.tasks)
        check_function("metric", metric)
        score = self._score(cast(str, task), as_batches(data, Recipe(), self._processes), metric)
        if score is None:
            raise NacreError("targets are not class numbers: say with metric= what is to be measured")
        return score

    def _tested(self, task: str, test: Batches, metric: Metric | None) -> float | None:
        try:
            return self._score(task, test, metric)
        except Exception as error:  # whatever a user's metric or data raise, once all is learnt
            raise NacreError(f"task {task!r} is learnt, but it could not be tested: {error}") from error

    def _score(self, task: str, batches: Batches, metric: Metric | None) -> float | None:
        network = self._cached(task)
        # data in memory draw nothing: threads that evaluate them leave the process's random state alone
        quiet = isinstance(batches, Held)
        with contextlib.nullcontext() if quiet else seeded(self.seed, task, "score"):
            return measure(network, batches, metric) if metric is not None else evaluate(network, batches).accuracy

    def _cached(self, task: str) -> nn.Module:
        with self._guard:
            network = self._networks.pop(task, None) or self.network(task)
            self._networks[task] = network
            while len(self._networks) > _CACHED:
                self._networks.popitem(last=False)
            return network

    def _run(self, network: nn.Module, inputs: Tree, task: str | None) -> Tensor:
        moved = map_leaves(lambda leaf: leaf.to(self.device).contiguous(), inputs)  # another layout may give other bits
        taken = explained(f"the network of task {task!r} cannot take inputs", inputs)
        with taken, torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            logits: Tensor = network(moved)
            examples = len(next(leaves(inputs)))
            if isinstance(logits, Tensor) and (logits.dim() == 0 or len(logits) != examples):
                raise ValueError(f"for {examples} examples it gave {shapes(logits)}")
        return logits

    def _known(self, task: str | None) -> str:
        check_known(task, self.tasks)
        return cast(str, task)

    def save(self, path: str | Path) -> None:
        """Writes what was learnt to a folder; into the same one again, only what is new."""
        if self._processes.main:
            self.knowledge.save(as_path(path))
            for folder, task in self._kept_checkpoints:
                clear(folder, task)
        self._kept_checkpoints.clear()
        self._processes.wait()

    @staticmethod
    def load(
        path: str | Path,
        *,
        backbone: nn.Module | None = None,
        features: Features = None,
        heads: Mapping[str, nn.Module] | None = None,
        method: Any = None,
        device: str | torch.device = "auto",
        progress: bool = True,
    ) -> Learner:
        """The learner in a folder; backbone=, heads= and features= where they are of one's own making."""
        path = as_path(path)
        facts = facts_of(path)
        if method is None and "method" not in facts:
            raise NacreError(f"{path} was saved by a SharedSpace, not by a Learner: say how to go on with method=")
        chosen = checked_method(method) if method is not None else method_from_json(facts["method"])
        seed = checked_seed(facts.get("seed", 0))
        knowledge = chosen.load(path, backbone=backbone, features=features, heads=heads)
        knowledge.facts |= {"method": settings(chosen), "seed": seed}
        learner = Learner.__new__(Learner)
        learner._begin(chosen, knowledge, seed, Processes.current(device), progress)
        return learner
