"""What is done to a picture before a network reads it, against numpy and Pillow; and how a store says it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nacre import NacreError
from nacre.scenarios.preprocessing import Preprocessing

SAID = Preprocessing(32, (0.5, 0.25, 0.125), (0.25, 0.5, 0.2))


def test_mean_and_deviation_are_those_of_the_pictures() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (150, 3, 5, 5), dtype=np.uint8)
    fitted = Preprocessing.fitted(5, torch.from_numpy(pixels))
    channels = pixels.astype(np.float64).transpose(1, 0, 2, 3).reshape(3, -1) / 255
    assert fitted.mean == tuple(np.round(channels.mean(1), 4))
    assert fitted.std == tuple(np.round(channels.std(1), 4))


def test_pictures_of_one_colour_are_not_divided_by_nothing() -> None:
    assert Preprocessing.fitted(4, torch.full((2, 3, 4, 4), 255, dtype=torch.uint8)).std == (0.01, 0.01, 0.01)


def test_a_picture_is_scaled_as_a_whole_and_normalised() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    read = SAID(SAID.decode(file.getvalue(), "a.png")[None])[0]
    scaled = np.asarray(Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR), dtype=np.float64) / 255
    wanted = ((scaled - np.array(SAID.mean)) / np.array(SAID.std)).transpose(2, 0, 1)
    np.testing.assert_allclose(read.numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "a.png is no picture that Pillow reads: it is empty"),
        (b"text", "a.png is no picture that Pillow reads: cannot identify image file"),
    ],
)
def test_a_broken_picture_is_named_without_an_address(data: bytes, said: str) -> None:
    with pytest.raises(NacreError) as caught:
        SAID.decode(data, "a.png")
    assert str(caught.value) == said


def test_it_is_read_as_it_was_written() -> None:
    assert Preprocessing.from_json(SAID.to_json(), "life.nacre") == SAID


@pytest.mark.parametrize(
    "changed",
    [
        {"mode": "L"},
        {"resize": "bicubic"},
        {"size": [32, 64]},
        {"size": [0, 0]},
        {"size": [10**9, 10**9]},
        {"mean": [0.5, 0.5]},
        {"std": [0.0, 1.0, 1.0]},
        {"std": "xyz"},
        {"more": 1},
        None,
    ],
)
def test_what_this_nacre_does_not_do_is_refused(changed: dict[str, Any] | None) -> None:
    said = {**SAID.to_json(), **changed} if changed is not None else None
    with pytest.raises(NacreError, match=r"life\.nacre prepares its pictures as .* install a newer one"):
        Preprocessing.from_json(said, "life.nacre")
