"""Data as batches on the device: tensors, a map-style Dataset or a DataLoader, split over the processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from nacre.errors import NacreError
from nacre.training.processes import Processes
from nacre.training.recipe import Recipe
from nacre.training.seeding import derive, generator, seeded
from nacre.trees import Tree, explained, leaves, map_leaves, shapes


@dataclass(frozen=True)
class Batch:
    """This process's part of a batch."""

    inputs: Tree
    targets: Tree
    weight: float  # of its mean loss, so that the mean over processes is that of the whole batch
    examples: int  # in the whole batch


class Batches(Protocol):
    """What an epoch goes through."""

    @property
    def examples(self) -> int | None:
        """An epoch's, where that is known."""
        ...

    def epoch(self, *seed: object) -> Iterator[Batch]:
        """The batches of one epoch; the order follows from the seed."""
        ...

    def in_order(self) -> Iterator[tuple[Tree, Tree]]:
        """All examples once, unshuffled, whole in every process."""
        ...

    def first(self) -> tuple[Tree, Tree]:
        """A few examples, to look at."""
        ...

    def expect_classes(self, count: int) -> None:
        """Refuses, now or when it meets one, a target that is no class number below `count`."""
        ...


EVALUATION_BATCH = 512


def as_batches(data: Any, recipe: Recipe, processes: Processes) -> Batches:
    """Batches of whatever data a user gives."""
    if isinstance(data, DataLoader):
        return Loaded(data, recipe, processes)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, tuple | list) and len(data) == 2:
        return Held(data[0], data[1], recipe, processes)
    if _is_dataset(data):
        return _read_once(data, recipe, processes) if recipe.keep is True else Read(data, recipe, processes)
    raise NacreError(
        f"data is a pair (inputs, targets) of tensors, a map-style Dataset or a DataLoader; got {type(data).__name__}"
    )


def _is_dataset(data: Any) -> bool:
    reads = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return reads and not isinstance(data, str | Mapping | Tensor | IterableDataset)


def parts_of(example: Any) -> tuple[Tree, Tree]:
    """Inputs and targets of what a Dataset or DataLoader gives."""
    if isinstance(example, tuple | list) and len(example) == 2:
        return example[0], example[1]
    if isinstance(example, Mapping) and "labels" in example:
        return {key: value for key, value in example.items() if key != "labels"}, example["labels"]
    raise NacreError(f"an example is a pair (inputs, target) or a dict with the key 'labels'; got {shapes(example)}")


class Held:
    """Tensors, on the device where they fit there; a batch is an index into them."""

    def __init__(self, inputs: Tree, targets: Tree, recipe: Recipe, processes: Processes) -> None:
        self.examples = _count(inputs, targets)
        self._recipe, self._processes = recipe, processes
        self._inputs, self._targets = inputs, targets
        wanted = recipe.keep is True or (recipe.keep == "auto" and _fits((inputs, targets), processes.device))
        if wanted:
            self._inputs = map_leaves(lambda tensor: tensor.to(processes.device), inputs)
            self._targets = map_leaves(lambda tensor: tensor.to(processes.device), targets)

    def epoch(self, *seed: object) -> Iterator[Batch]:
        order = torch.randperm(self.examples, generator=generator(*seed))
        augment = generator(*seed, "augment", self._processes.rank)
        for chosen in batch_indices(order, self._recipe.batch_size):
            mine, weight = share(chosen, self._processes)
            inputs, targets = self._take(mine)
            if self._recipe.augment is not None:
                inputs = self._recipe.augment(inputs, augment)
            yield Batch(inputs, targets, weight, len(chosen))

    def in_order(self) -> Iterator[tuple[Tree, Tree]]:
        for chosen in torch.arange(self.examples).split(EVALUATION_BATCH):
            yield self._take(chosen)

    def first(self) -> tuple[Tree, Tree]:
        return self._take(torch.arange(min(2, self.examples)))

    def expect_classes(self, count: int) -> None:
        check_classes(self._targets, count)

    def _take(self, chosen: Tensor) -> tuple[Tree, Tree]:
        def pick(tensor: Tensor) -> Tensor:
            return tensor[chosen.to(tensor.device)].to(self._processes.device, non_blocking=True)

        return map_leaves(pick, self._inputs), map_leaves(pick, self._targets)


class Read:
    """A map-style Dataset, read anew in every epoch, so that whatever it draws at random is drawn anew."""

    _classes: int | None

    def __init__(self, dataset: Dataset[Any], recipe: Recipe, processes: Processes) -> None:
        self.examples = _length(dataset)
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
            inputs, targets = _to_device(parts_of(example), self._processes.device, self._classes)
            if self._recipe.augment is not None:
                inputs = self._recipe.augment(inputs, augment)
            yield Batch(inputs, targets, weight, len(chosen))

    def in_order(self) -> Iterator[tuple[Tree, Tree]]:
        self._order.set(torch.arange(self.examples).split(EVALUATION_BATCH), "in order")
        for example in self._loader:
            yield _to_device(parts_of(example), self._processes.device, self._classes)

    def first(self) -> tuple[Tree, Tree]:
        few = collate([self._dataset[index] for index in range(min(2, self.examples))])
        return _to_device(parts_of(few), self._processes.device, self._classes)

    def expect_classes(self, count: int) -> None:
        self._classes = count


class Loaded:
    """A DataLoader of the user's: its batches, its order, its workers. Each process takes its part of every batch."""

    def __init__(self, loader: DataLoader[Any], recipe: Recipe, processes: Processes) -> None:
        self._loader, self._recipe, self._processes = loader, recipe, processes
        self._classes: int | None = None
        self.examples = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None

    def epoch(self, *seed: object) -> Iterator[Batch]:
        for owner in (self._loader, self._loader.sampler):
            if isinstance(draws := getattr(owner, "generator", None), torch.Generator):
                draws.manual_seed(derive(*seed))
        augment = generator(*seed, "augment", self._processes.rank)
        for example in self._loader:
            inputs, targets = parts_of(example)
            examples = len(next(leaves(inputs)))
            mine, weight = share(torch.arange(examples), self._processes)
            part = (_between(inputs, mine), _between(targets, mine))
            inputs, targets = _to_device(part, self._processes.device, self._classes)
            if self._recipe.augment is not None:
                inputs = self._recipe.augment(inputs, augment)
            yield Batch(inputs, targets, weight, examples)

    def in_order(self) -> Iterator[tuple[Tree, Tree]]:
        for example in self._loader:
            yield _to_device(parts_of(example), self._processes.device, self._classes)

    def first(self) -> tuple[Tree, Tree]:
        for inputs, targets in self.in_order():
            return map_leaves(lambda t: t[:2], inputs), map_leaves(lambda t: t[:2], targets)
        raise NacreError("the DataLoader gave no batch")

    def expect_classes(self, count: int) -> None:
        self._classes = count


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


def batch_indices(order: Tensor, size: int) -> Iterator[Tensor]:
    """Runs of `size`; a last run of one joins the one before, for batch norm cannot learn from one example."""
    runs = list(order.split(size))
    if len(runs) > 1 and len(runs[-1]) == 1:
        runs[-2:] = [torch.cat(runs[-2:])]
    return iter(runs)


def share(chosen: Tensor, processes: Processes) -> tuple[Tensor, float]:
    """This process's part of a batch and the weight of its mean; where none is left, an example of weight 0."""
    mine = chosen.tensor_split(processes.count)[processes.rank]
    if len(mine) == 0:
        return chosen[:1], 0.0
    return mine, len(mine) * processes.count / len(chosen)


def _between(tree: Tree, chosen: Tensor) -> Tree:
    """A run of examples as views."""
    first, last = int(chosen[0]), int(chosen[-1])
    return map_leaves(lambda leaf: leaf[first : last + 1], tree)


def _read_once(dataset: Dataset[Any], recipe: Recipe, processes: Processes) -> Held:
    _length(dataset)
    loader = DataLoader(
        dataset,
        batch_size=EVALUATION_BATCH,
        num_workers=recipe.workers,
        collate_fn=collate,
        generator=torch.Generator(),
    )
    inputs, targets = zip(*map(parts_of, loader), strict=True)
    return Held(joined(inputs), joined(targets), recipe, processes)


def collate(examples: list[Any]) -> Any:
    """Examples of a Dataset as one batch."""
    with explained("a batch cannot be made of examples such as", examples[0]):
        return default_collate(examples)


def _length(dataset: Any) -> int:
    if len(dataset) == 0:
        raise NacreError("the data set is empty")
    return len(dataset)


def joined(trees: Iterable[Tree]) -> Tree:
    """Trees of equal structure as one, joined along the batch."""
    trees = list(trees)
    columns = zip(*(leaves(tree) for tree in trees), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return map_leaves(lambda _: next(joined), trees[0])


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_classes(targets: Tree, count: int | None) -> None:
    """Refuses targets that are not class numbers 0 .. count-1, one for each example."""
    integers = isinstance(targets, Tensor) and targets.dtype in _INTEGERS
    if not integers or targets.dim() != 1:
        raise NacreError(
            f"targets must be class numbers, one integer for each example; got {shapes(targets)}. "
            "For several labels an image, or for regression, give loss= and head="
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or (count is not None and high >= count):
        among = f"0 to {count - 1}" if count is not None else "0 or more"
        raise NacreError(f"class numbers of this task must be {among}; got {low} to {high}")


def _to_device(part: tuple[Tree, Tree], device: torch.device, classes: int | None) -> tuple[Tree, Tree]:
    if classes is not None:
        check_classes(part[1], classes)

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, non_blocking=True)

    return map_leaves(move, part[0]), map_leaves(move, part[1])


def _fits(tree: Tree, device: torch.device) -> bool:
    """Whether data may stay on the device: they are there already, or take at most half of what is free."""
    if device.type != "cuda":
        return True
    needed = sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree) if leaf.device != device)
    return needed <= torch.cuda.mem_get_info(device)[0] // 2


def _count(inputs: Tree, targets: Tree) -> int:
    counts = {len(leaf) if leaf.dim() else 0 for leaf in (*leaves(inputs), *leaves(targets))}
    if len(counts) != 1 or 0 in counts:
        raise NacreError(
            "inputs and targets must hold equally many examples, at least one; "
            f"got {shapes(inputs)} and {shapes(targets)}"
        )
    return counts.pop()
