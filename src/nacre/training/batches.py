"""Whatever data a user gives, as batches: tensors, a map-style Dataset or a DataLoader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from nacre.errors import NacreError
from nacre.training.batch import EVALUATION_BATCH, Batches
from nacre.training.examples import collate, parts_of
from nacre.training.held import Held
from nacre.training.processes import Processes
from nacre.training.recipe import Recipe
from nacre.training.streamed import Loaded, Read, length_of
from nacre.trees import joined


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


def _read_once(dataset: Dataset[Any], recipe: Recipe, processes: Processes) -> Held:
    length_of(dataset)
    loader = DataLoader(
        dataset,
        batch_size=EVALUATION_BATCH,
        num_workers=recipe.workers,
        collate_fn=collate,
        generator=torch.Generator(),
    )
    inputs, targets = zip(*map(parts_of, loader), strict=True)
    return Held(joined(inputs), joined(targets), recipe, processes)
