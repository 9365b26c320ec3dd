"""Batches of tensors that are held in memory, on the device where they fit there."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.training.batch import EVALUATION_BATCH, Batch, batch_indices, count_batches, share
from nacre.training.examples import check_classes
from nacre.training.processes import Processes
from nacre.training.recipe import Recipe
from nacre.training.seeding import generator
from nacre.trees import Tree, leaves, map_leaves, shapes


class Held:
    """Tensors, on the device where they fit there; a batch is an index into them."""

    def __init__(self, inputs: Tree, targets: Tree, recipe: Recipe, processes: Processes) -> None:
        self.examples = _count(inputs, targets)
        self.batches = count_batches(self.examples, recipe.batch_size)
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
