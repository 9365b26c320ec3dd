"""Pictures of any size in an ONNX graph: scaled as Pillow scales them, so that a file answers as the store does."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from nacre import SharedSpace
from nacre.export import to_onnx
from nacre.export.resizing import Bilinear, weights
from nacre.scenarios.preprocessing import Preprocessing
from tests.export.test_files import answers, assert_same, run_onnx, taught

Pixels = np.ndarray[Any, Any]
PREPARED = Preprocessing(32, (0.5, 0.4, 0.3), (0.2, 0.3, 0.25))
WIDE = [(427, 640), (32, 32), (20, 57), (32, 90), (100, 100), (33, 200), (5, 7), (1, 3)]  # height, width
TALL = [(427, 300), (90, 32), (200, 33), (7, 5)]  # of these newer Pillows scale the height first, not the width


def crops(height: int, width: int) -> list[Pixels]:
    """Parts of two photographs, [height, width, 3]."""
    photographs = importlib.import_module("sklearn.datasets").load_sample_images().images
    places = [(0, 0), (200, 300), (150, 80), (300, 500)]
    corners = [(min(y, 427 - height), min(x, 640 - width)) for y, x in places]
    return [photo[y : y + height, x : x + width].copy() for photo in photographs for y, x in corners]


def scaled(picture: Pixels, side: int) -> Pixels:
    """By Pillow, [3, side, side]."""
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def batch_of(pictures: list[Pixels]) -> Tensor:
    return torch.from_numpy(np.stack(pictures).transpose(0, 3, 1, 2).copy())


@pytest.mark.parametrize("side", [24, 32, 224])
@pytest.mark.parametrize("size", WIDE + TALL, ids=str)
def test_the_grey_levels_are_pillows(size: tuple[int, int], side: int) -> None:
    """To the last one; where Pillow may take the height first, rounding in between leaves one level at most."""
    pictures = crops(*size)[::3]
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    for picture in (*pictures, noise):
        apart = np.abs(Bilinear(side, side)(batch_of([picture]))[0].numpy() - scaled(picture, side).astype(float))
        assert apart.max() <= (1 if size in TALL else 0)


@pytest.mark.parametrize(("extent", "side"), [(3, 8), (8, 8), (100, 7)])
def test_every_new_pixel_is_a_mean(extent: int, side: int) -> None:
    found = weights(extent, side)
    assert found.shape == (extent, side)
    torch.testing.assert_close(found.sum(0), torch.ones(side, dtype=torch.float64), rtol=0, atol=1e-5)
    assert bool((found >= 0).all())


# the file


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[SharedSpace, Path]:
    space = taught("conv5")
    space.facts["preprocessing"] = PREPARED.to_json()
    file = tmp_path_factory.mktemp("pixels") / "digits.onnx"
    return space, to_onnx(space, "digits", file, with_preprocessing=True)


@pytest.mark.parametrize("size", WIDE[:5] + TALL[:2], ids=str)
def test_a_file_answers_for_pictures_of_any_size_as_the_store_does(
    size: tuple[int, int], exported: tuple[SharedSpace, Path], tmp_path: Path
) -> None:
    """Decoded and scaled by nacre, or by the graph: the same classes, and logits that are apart by no more than one
    grey level here and there explains."""
    space, file = exported
    pictures = crops(*size)
    decoded = []
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(path := tmp_path / f"{number}.png")
        decoded.append(PREPARED.decode(path.read_bytes(), path.name))
    wanted = answers(space, "digits", PREPARED(torch.stack(decoded)))
    found = run_onnx(file, batch_of(pictures))
    if size not in TALL:
        assert_same(found, wanted)
    assert np.abs(found - wanted.numpy()).max() < 0.05 * float(wanted.std())
    assert (found.argmax(1) == wanted.numpy().argmax(1)).all()


def test_the_file_says_that_height_and_width_are_free(exported: tuple[SharedSpace, Path]) -> None:
    onnx: Any = importlib.import_module("onnx")
    model = onnx.load(str(exported[1]))
    (given,) = model.graph.input
    shape = [entry.dim_param or entry.dim_value for entry in given.type.tensor_type.shape.dim]
    assert shape == ["batch", 3, "height", "width"]
    beside = json.loads(exported[1].with_suffix(".json").read_text())
    assert beside["inputs"] == {"shape": [3, "height", "width"], "dtype": "uint8"}
    assert beside["preprocessing"] == PREPARED.to_json()
