"""digits: scikit-learn's 1,797 handwritten digits as five tasks of two classes. Needs no download."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from nacre import networks
from nacre.errors import NacreError
from nacre.scenarios.choices import Choices
from nacre.scenarios.scenario import Examples, Scenario, ScenarioTask

_PIXELS = 24  # the smallest that conv5 takes


def digits(choices: Choices | None = None) -> Scenario:
    """0 or 1, 2 or 3, ... 8 or 9; of every class each fifth image is for testing."""
    choices = choices or Choices()
    if choices.network not in (None, "conv5"):
        raise NacreError(f"no network is called {choices.network!r}; the networks are conv5")
    images, labels = _read()
    tasks = tuple(_task(images, labels, (first, first + 1)) for first in range(0, 10, 2))
    facts = {"network": "conv5", "class_order": choices.class_order, "holdout": choices.holdout}
    return Scenario("digits", tasks, lambda: networks.conv5(channels=1), facts=facts)


def _read() -> Examples:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise NacreError("the digits come with scikit-learn: pip install 'nacre[bench]'") from error
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16  # [n, 1, 8, 8], grey from 0 to 1
    images = F.interpolate(images, size=(_PIXELS, _PIXELS), mode="bilinear", align_corners=False)
    return (images - images.mean()) / images.std(), torch.tensor(data.target, dtype=torch.long)


def _task(images: torch.Tensor, labels: torch.Tensor, digits: tuple[int, int]) -> ScenarioTask:
    train, test = [], []
    for number, digit in enumerate(digits):
        found = images[labels == digit]
        for_test = torch.arange(len(found)) % 5 == 0
        train.append((found[~for_test], number))
        test.append((found[for_test], number))
    return ScenarioTask(f"{digits[0]}-{digits[1]}", _joined(train), _joined(test), (str(digits[0]), str(digits[1])))


def _joined(parts: list[tuple[torch.Tensor, int]]) -> Examples:
    labels = torch.cat([torch.full((len(images),), number) for images, number in parts])
    return torch.cat([images for images, _ in parts]), labels
