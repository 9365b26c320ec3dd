"""The head of a task: the one given, or a linear one for the class numbers in its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from nacre.space.network import check_features
from nacre.training.batches import Batches, check_classes
from nacre.trees import Tree


def choose_head(
    given: nn.Module | None,
    batches: Mapping[str, Batches],
    probe: Callable[[Tree], Any],
    classes: Sequence[str] | None,
    *,
    class_numbers: bool,
) -> nn.Module:
    """A head that fits the backbone's features, which `probe` shows; targets are checked against it."""
    inputs, targets = batches["train"].first()
    features = check_features(probe(inputs), given, inputs)
    if given is not None and not class_numbers:
        return given
    check_classes(targets, None)
    if given is None:
        given = nn.Linear(features.shape[1], len(classes) if classes is not None else count_classes(batches["train"]))
    if isinstance(given, nn.Linear):
        for part in batches.values():
            part.expect_classes(given.out_features)
    return given


def count_classes(batches: Batches) -> int:
    """One more than the highest class number."""
    highest = -1
    for _, targets in batches.in_order():
        check_classes(targets, None)
        highest = max(highest, int(targets.max()))
    return highest + 1
