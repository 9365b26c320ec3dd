"""digits: scikit-learn's 1,797 handwritten digits as five tasks of two classes. Needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nacre.errors import NacreError, WrongUsage
from nacre.scenarios.choices import Choices
from nacre.scenarios.scenario import Examples, Scenario, ScenarioTask
from nacre.scenarios.splitting import check_order, choose_network, consecutive, facts_of, hold_out, of_classes


def digits(choices: Choices | None = None) -> Scenario:
    """0 or 1, 2 or 3, ... 8 or 9; of every class each fifth image is for testing. None is augmented."""
    choices = choices or Choices()
    check_order("digits", choices, "consecutive", "random")
    if choices.data is not None:
        raise WrongUsage("the digits come with scikit-learn: they take no --data")
    images, labels = _read()
    network = choose_network(choices, 1, images.shape[-1])
    images = network.enlarge(images)
    maker = _Digits((images - images.mean()) / images.std(), labels, choices.holdout)
    facts = facts_of(choices, network, None, {"scikit-learn digits": {"images": len(labels)}})
    return of_classes("digits", choices, consecutive(10, 2), maker.task, network, facts)


def _read() -> Examples:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise NacreError("the digits come with scikit-learn: pip install 'nacre[bench]'") from error
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16  # [n, 1, 8, 8], grey from 0 to 1
    return images, torch.tensor(data.target, dtype=torch.long)


@dataclass(frozen=True)
class _Digits:
    images: Tensor
    labels: Tensor
    holdout: float

    def task(self, name: str, digits: Sequence[int]) -> ScenarioTask:
        train, test = [], []
        for number, digit in enumerate(digits):
            found = self.images[self.labels == digit]
            for_test = torch.arange(len(found)) % 5 == 0
            train.append((found[~for_test], number))
            test.append((found[for_test], number))
        images, labels = _joined(train)
        kept, held = hold_out(labels, self.holdout)
        val = (images[held], labels[held]) if self.holdout else None
        return ScenarioTask(name, (images[kept], labels[kept]), _joined(test), [*map(str, digits)], None, val)


def _joined(parts: list[tuple[Tensor, int]]) -> Examples:
    labels = torch.cat([torch.full((len(images),), number) for images, number in parts])
    return torch.cat([images for images, _ in parts]), labels
