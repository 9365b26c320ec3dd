from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nacre import NacreError
from nacre.scenarios import CropFlip

PADDING, SIDE = 2, 5
PLACES = 2 * PADDING + 1


def distinct_images(count: int) -> Tensor:
    """Images whose pixels are all different, and none 0, so that a crop says where it comes from."""
    pixels = torch.arange(1, count * 3 * SIDE * (SIDE + 1) + 1, dtype=torch.float32)
    return pixels.view(count, 3, SIDE, SIDE + 1)


def candidates(image: Tensor, padding: int, flip: bool) -> Tensor:
    """Everything that pad, crop and flip of one image can give, written the plain way: [places^2 (times 2), ...]."""
    height, width = image.shape[1:]
    padded = F.pad(image, (padding,) * 4)
    crops = [
        padded[:, top : top + height, left : left + width]
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    ]
    return torch.stack([*crops, *(crop.flip(-1) for crop in crops)] if flip else crops)


def which_candidate(before: Tensor, after: Tensor, padding: int = PADDING, flip: bool = True) -> list[int]:
    """The number of the candidate that every image became; fails where it is none of its own image's."""
    found = []
    for image, changed in zip(before, after, strict=True):
        same = (candidates(image, padding, flip) == changed).flatten(1).all(1).nonzero()[:, 0]
        assert len(same) == 1, "an image became something that no crop and flip of it is"
        found.append(int(same[0]))
    return found


def test_every_image_becomes_a_crop_or_flip_of_its_own() -> None:
    images = distinct_images(60)
    after = CropFlip(PADDING)(images, torch.Generator().manual_seed(0))
    assert after.shape == images.shape
    assert len(set(which_candidate(images, after))) > 20


def test_without_flip_none_is_mirrored() -> None:
    images = distinct_images(60)
    after = CropFlip(PADDING, flip=False)(images, torch.Generator().manual_seed(0))
    which_candidate(images, after, flip=False)


def test_without_padding_an_image_is_itself_or_its_mirror() -> None:
    images = distinct_images(60)
    which = which_candidate(images, CropFlip(0)(images, torch.Generator().manual_seed(0)), padding=0)
    assert set(which) == {0, 1}
    assert torch.equal(CropFlip(0, flip=False)(images, torch.Generator()), images)


def test_all_places_and_both_directions_are_equally_likely() -> None:
    """Chi-square over the 2 * (2p+1)^2 outcomes at a seeded draw: 49 degrees of freedom, 99.9 % below 85.4."""
    images = distinct_images(1)
    draw = torch.Generator().manual_seed(3)
    total, outcomes = 10_000, 2 * PLACES**2
    after = CropFlip(PADDING)(images.expand(total, -1, -1, -1), draw)
    all_candidates = candidates(images[0], PADDING, flip=True).flatten(1)
    same = (after.flatten(1)[:, None] == all_candidates).all(2)
    assert bool((same.sum(1) == 1).all())
    counts = same.sum(0).double()
    assert bool((counts > 0).all())
    expected = total / outcomes
    assert float(((counts - expected) ** 2 / expected).sum()) < 85.4


def test_rows_columns_and_mirroring_are_drawn_independently() -> None:
    """Chi-square of the joint outcome against a mirrored crop at a mirrored place: neither is tied to the other."""
    images = distinct_images(1).expand(4_000, -1, -1, -1)
    after = CropFlip(PADDING)(images, torch.Generator().manual_seed(4))
    all_candidates = candidates(images[0], PADDING, flip=True).flatten(1)
    which = (after.flatten(1)[:, None] == all_candidates).all(2).int().argmax(1)
    mirrored, place = which // PLACES**2, which % PLACES**2
    table = torch.zeros(PLACES, PLACES, 2, dtype=torch.float64)
    for row, column, flipped in zip(
        (place // PLACES).tolist(), (place % PLACES).tolist(), mirrored.tolist(), strict=True
    ):
        table[row, column, flipped] += 1
    rows, columns, flips = (table.sum(axes) / len(which) for axes in ((1, 2), (0, 2), (0, 1)))
    expected = len(which) * rows[:, None, None] * columns[None, :, None] * flips
    assert float(((table - expected) ** 2 / expected).sum()) < 80  # 40 degrees of freedom, 99.98 %


def test_images_of_a_batch_are_changed_one_by_one() -> None:
    images = distinct_images(1).expand(50, -1, -1, -1)
    after = CropFlip(PADDING)(images, torch.Generator().manual_seed(0))
    assert len({tuple(image.flatten().tolist()) for image in after}) > 15


def test_the_same_generator_gives_the_same_batch_and_goes_on() -> None:
    images = distinct_images(20)
    draw = torch.Generator().manual_seed(1)
    first, second = CropFlip(PADDING)(images, draw), CropFlip(PADDING)(images, draw)
    assert torch.equal(first, CropFlip(PADDING)(images, torch.Generator().manual_seed(1)))
    assert not torch.equal(first, second)


def test_the_users_generator_and_images_are_left_alone() -> None:
    images, before = distinct_images(8), torch.get_rng_state()
    kept = images.clone()
    CropFlip(PADDING)(images, torch.Generator())
    assert torch.equal(images, kept)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_the_type_of_the_pixels_is_kept(dtype: torch.dtype) -> None:
    assert CropFlip(1)(torch.ones(2, 3, 4, 4, dtype=dtype), torch.Generator()).dtype == dtype


@pytest.mark.parametrize(
    ("images", "came"), [(torch.zeros(3, 8, 8), r"float32\[3, 8, 8\]"), ({"pixels": torch.zeros(1)}, r"\{pixels: .*\}")]
)
def test_what_is_no_batch_of_images_is_refused(images: Tensor, came: str) -> None:
    with pytest.raises(NacreError, match=rf"images \(batch, channels, height, width\); got {came}"):
        CropFlip()(images, torch.Generator())


# on normalised images, against the usual transforms of one picture


MEAN, STD = (np.array(values, dtype=np.float32) for values in ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)))


def reference(pixels: NDArray[np.uint8], top: int, left: int, mirrored: bool) -> NDArray[np.float32]:
    """Pad a uint8 picture [h, w, 3] with black, crop it, mirror it, then normalise, as is usually done one by one."""
    height, width, _ = pixels.shape
    padded = np.zeros((height + 2 * PADDING, width + 2 * PADDING, 3), dtype=np.uint8)
    padded[PADDING : PADDING + height, PADDING : PADDING + width] = pixels
    picture = padded[top : top + height, left : left + width]
    picture = picture[:, ::-1] if mirrored else picture
    normalised: NDArray[np.float32] = (picture.astype(np.float32) / np.float32(255) - MEAN) / STD
    return normalised.transpose(2, 0, 1)


def test_on_normalised_images_it_is_the_usual_crop_with_black_to_the_last_bit() -> None:
    """Every outcome is the reference's picture; chi-square over all 2 * (2p+1)^2: 49 degrees of freedom."""
    pixels = np.random.default_rng(0).integers(1, 256, (SIDE, SIDE + 1, 3), dtype=np.uint8)
    places = [(top, left, flip) for top in range(PLACES) for left in range(PLACES) for flip in (False, True)]
    number = {reference(pixels, *place).tobytes(): at for at, place in enumerate(places)}
    assert len(number) == 2 * PLACES**2

    untouched = torch.from_numpy(reference(pixels, PADDING, PADDING, False).copy())
    augment = CropFlip(PADDING, fill=tuple(((np.float32(0) - MEAN) / STD).tolist()))
    total = 10_000
    after = augment(untouched.expand(total, -1, -1, -1), torch.Generator().manual_seed(5))
    counts = np.bincount([number[image.numpy().tobytes()] for image in after], minlength=len(places))
    expected = total / len(places)
    assert counts.min() > 0
    assert float(((counts - expected) ** 2 / expected).sum()) < 85.4  # 99.9 %


def test_one_fill_serves_all_channels_and_changes_nothing_inside() -> None:
    images = distinct_images(30)
    drawn = [CropFlip(PADDING, fill=(fill,))(images, torch.Generator().manual_seed(0)) for fill in (0.0, -3.5)]
    assert torch.equal(torch.where(drawn[0] == 0, -3.5, drawn[0]), drawn[1])
    assert torch.equal(drawn[0], CropFlip(PADDING)(images, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"padding": -1}, "whole number of pixels from 0; got -1"),
        ({"padding": 1.5}, r"got 1\.5"),
        ({"fill": (0.0, 1.0)}, "one number, or one for each of 3 channels; got 2"),
        ({"fill": ()}, "one number, or one for each of 3 channels; got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(NacreError, match=message):
        CropFlip(**wrong)(distinct_images(1), torch.Generator())
