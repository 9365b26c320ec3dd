"""Batches that are read while they are needed: of a map-style Dataset, or from a DataLoader of the user's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nacre.errors import NacreError
from nacre.training.batch import EVALUATION_BATCH, Batch, batch_indices, share
from nacre.training.examples import collate, parts_of, to_device
from nacre.training.processes import Processes
from nacre.training.recipe import Recipe
from nacre.training.seeding import derive, generator, seeded
from nacre.trees import Tree, between, leaves


class Read:
    """A map-style Dataset, read anew in every epoch, so that whatever it draws at random is drawn anew."""

    _classes: int | None

    def __init__(self, dataset: Dataset[Any], recipe: Recipe, processes: Processes) -> None:
        self.examples = length_of(dataset)
        self._recipe, self._processes = recipe, processes
        self._order, self._classes = _Order(), None
        self._dataset = dataset
        self._loader = DataLoader(
            _Reader(dataset),
            batch_sampler=self._order,
            collate_fn=collate,
            num_workers=recipe.workers,
            persistent_workers=recipe.workers > 0,
            pin_memory=processes.device.type == "cuda",
            generator=torch.Generator(),  # without one it would draw from the user's
        )

    def epoch(self, *seed: object) -> Iterator[Batch]:
        order = torch.randperm(self.examples, generator=generator(*seed))
        augment = generator(*seed, "augment", self._processes.rank)
        whole = list(batch_indices(order, self._recipe.batch_size))
        shares = [share(chosen, self._processes) for chosen in whole]
        self._order.set([mine for mine, _ in shares], *seed, self._processes.rank)
        for example, (_, weight), chosen in zip(self._loader, shares, whole, strict=True):
            inputs, targets = to_device(parts_of(example), self._processes.device, self._classes)
            if self._recipe.augment is not None:
                inputs = self._recipe.augment(inputs, augment)
            yield Batch(inputs, targets, weight, len(chosen))

    def in_order(self) -> Iterator[tuple[Tree, Tree]]:
        self._order.set(torch.arange(self.examples).split(EVALUATION_BATCH), "in order")
        for example in self._loader:
            yield to_device(parts_of(example), self._processes.device, self._classes)

    def first(self) -> tuple[Tree, Tree]:
        few = collate([self._dataset[index] for index in range(min(2, self.examples))])
        return to_device(parts_of(few), self._processes.device, self._classes)

    def expect_classes(self, count: int) -> None:
        self._classes = count


class Loaded:
    """A DataLoader of the user's: its batches, its order, its workers. Each process takes its part of every batch."""

    def __init__(self, loader: DataLoader[Any], recipe: Recipe, processes: Processes) -> None:
        self._loader, self._recipe, self._processes = loader, recipe, processes
        self._classes: int | None = None
        self.examples = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None

    def epoch(self, *seed: object) -> Iterator[Batch]:
        self._seed_generators(*seed)
        augment = generator(*seed, "augment", self._processes.rank)
        for example in self._loader:
            inputs, targets = parts_of(example)
            examples = len(next(leaves(inputs)))
            mine, weight = share(torch.arange(examples), self._processes)
            part = between((inputs, targets), int(mine[0]), int(mine[-1]) + 1)
            inputs, targets = to_device(part, self._processes.device, self._classes)
            if self._recipe.augment is not None:
                inputs = self._recipe.augment(inputs, augment)
            yield Batch(inputs, targets, weight, examples)

    def in_order(self) -> Iterator[tuple[Tree, Tree]]:
        self._seed_generators("in order")
        empty = True
        for example in self._loader:
            empty = False
            yield to_device(parts_of(example), self._processes.device, self._classes)
        if empty:
            raise NacreError("the DataLoader gave no batch")

    def first(self) -> tuple[Tree, Tree]:
        inputs, targets = next(self.in_order())
        return between(inputs, 0, 2), between(targets, 0, 2)

    def expect_classes(self, count: int) -> None:
        self._classes = count

    def _seed_generators(self, *seed: object) -> None:
        """Of the loader's own generators, wherever it keeps them; all others draw from torch's."""
        batches = self._loader.batch_sampler
        for owner in (self._loader, self._loader.sampler, batches, getattr(batches, "sampler", None)):
            if isinstance(draws := getattr(owner, "generator", None), torch.Generator):
                draws.manual_seed(derive(*seed))


Reading = list[int]  # a seed, then the examples of a batch


class _Order:
    """The batches that the next epoch reads; a DataLoader with living workers keeps its sampler."""

    _batches: list[Reading]

    def set(self, batches: Iterable[Tensor], *seed: object) -> None:
        self._batches = [[derive(*seed, number), *batch.tolist()] for number, batch in enumerate(batches)]

    def __iter__(self) -> Iterator[Reading]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


class _Reader(Dataset[Any]):
    """A Dataset read by the batch, each with random numbers of its own: the same ones from any number of workers."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitems__(self, reading: Reading) -> list[Any]:
        seed, *chosen = reading
        whole = getattr(self._dataset, "__getitems__", None)
        with seeded(seed):
            return list(whole(chosen)) if whole else [self._dataset[index] for index in chosen]


def length_of(dataset: Any) -> int:
    if len(dataset) == 0:
        raise NacreError("the data set is empty")
    return len(dataset)
