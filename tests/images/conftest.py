"""Folders of small pictures that are told apart at a glance, and a cache of decoded pictures for the tests alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NACRE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def painted(root: Path, *classes: str, count: int = 10, seed: int = 0, side: int = 12) -> Path:
    """A folder for every class, each of one colour with some noise."""
    draw = np.random.default_rng([seed, len(classes)])
    for name in classes:
        colour = draw.integers(40, 216, 3)
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = np.clip(colour + draw.normal(0, 20, (side, side, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number:02d}.png")
    return root


@pytest.fixture(scope="session")
def painter() -> Callable[..., Path]:
    return painted
