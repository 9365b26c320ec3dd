"""The head of a task: the one given, or a linear one for the class numbers in its data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.space.network import check_features, check_head
from nacre.training.batch import Batches
from nacre.training.examples import check_classes
from nacre.training.seeding import seeded
from nacre.trees import Tree, explained


def choose_head(
    given: nn.Module | None,
    batches: Mapping[str, Batches],
    probe: Callable[[Tree], Any],
    classes: Sequence[str] | None,
    *,
    class_numbers: bool,
) -> nn.Module:
    """A head that fits the backbone's features, which `probe` shows; targets are checked against it."""
    with seeded("look"):  # so that the first weights of a head do not depend on how the data are read
        features, targets = _look(batches, probe, given)
        count = outputs_of(given, features) if given is not None else None
        if count is not None and classes is not None and len(classes) != count:
            raise NacreError(f"classes= names {len(classes)}, but the head tells {count} apart")
        if given is not None and not class_numbers:
            return given
        check_classes(targets["train"], None)
        if given is None:
            count = len(classes) if classes is not None else count_classes(batches["train"])
    if count is not None:
        for part, data in batches.items():
            check_classes(targets[part], count)  # a stream shows the rest as it is read
            data.expect_classes(count)
    return given if given is not None else nn.Linear(features.shape[1], count or 0, dtype=torch.float32)


def _look(
    batches: Mapping[str, Batches], probe: Callable[[Tree], Any], head: nn.Module | None
) -> tuple[Tensor, dict[str, Tree]]:
    """The features of a few training examples and the targets of a few of each part; test data that do not fit are
    refused now, not afterwards."""
    if head is not None:
        check_head(head)
    looks = {part: data.first() for part, data in batches.items()}
    features = {part: check_features(probe(inputs), head, inputs) for part, (inputs, _) in looks.items()}
    return features["train"], {part: targets for part, (_, targets) in looks.items()}


def outputs_of(head: nn.Module, features: Tensor) -> int | None:
    """How many classes a head tells apart; None where its output does not say."""
    if isinstance(head, nn.Linear):
        return head.out_features
    with explained("the head cannot read the features", features), torch.no_grad():
        outputs = copy.deepcopy(head).to(features.device).eval()(features)
    return outputs.shape[1] if isinstance(outputs, Tensor) and outputs.dim() == 2 else None


def count_classes(batches: Batches) -> int:
    """One more than the highest class number."""
    highest, examples = -1, 0
    for _, targets in batches.in_order():
        check_classes(targets, None)
        highest, examples = max(highest, int(targets.max())), examples + len(targets)
    if highest >= examples:  # a head of that many outputs might not even fit into memory
        raise NacreError(
            f"class numbers go up to {highest}, but there are {examples} examples: "
            "number the classes of a task 0, 1, 2, or give classes= or head="
        )
    return highest + 1
