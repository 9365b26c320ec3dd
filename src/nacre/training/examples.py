"""What examples look like: inputs and targets, class numbers, as a batch and on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from nacre.errors import NacreError
from nacre.trees import Tree, explained, map_leaves, shapes


def parts_of(example: Any) -> tuple[Tree, Tree]:
    """Inputs and targets of what a Dataset or DataLoader gives."""
    if isinstance(example, tuple | list) and len(example) == 2:
        return example[0], example[1]
    if isinstance(example, Mapping) and "labels" in example:
        return {key: value for key, value in example.items() if key != "labels"}, example["labels"]
    raise NacreError(f"an example is a pair (inputs, target) or a dict with the key 'labels'; got {shapes(example)}")


def collate(examples: list[Any]) -> Any:
    """Examples of a Dataset as one batch."""
    with explained("a batch cannot be made of examples such as", examples[0]):
        return default_collate(examples)


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


def to_device(part: tuple[Tree, Tree], device: torch.device, classes: int | None) -> tuple[Tree, Tree]:
    if classes is not None:
        check_classes(part[1], classes)

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, non_blocking=True)

    return map_leaves(move, part[0]), map_leaves(move, part[1])
