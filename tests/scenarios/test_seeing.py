"""Pictures of any mode as they are seen, against levels worked out by hand."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from nacre.scenarios.seeing import as_seen


def reopened(picture: Image.Image, kind: str, **options: Any) -> Image.Image:
    """Through a file, as pictures come."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return Image.open(io.BytesIO(file.getvalue()))


def seen(picture: Image.Image) -> NDArray[np.uint8]:
    found = as_seen(picture)
    assert found.mode == "RGB"
    return np.asarray(found)


RAMP = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20


def test_grey_is_three_equal_channels() -> None:
    assert np.array_equal(seen(reopened(Image.fromarray(RAMP), "PNG")), np.stack([RAMP] * 3, 2))


def test_colour_is_left_alone() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    assert np.array_equal(seen(reopened(Image.fromarray(pixels), "PNG")), pixels)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_keep_their_range(kind: str) -> None:
    levels = np.array([[0, 257, 128 * 257], [200 * 257 + 100, 65535, 65535 - 257]], dtype=np.uint16)
    wanted = np.rint(levels / 257).astype(np.uint8)
    assert np.array_equal(seen(reopened(Image.fromarray(levels), kind))[..., 0], wanted)


def test_thirty_two_bits_within_sixteen_are_taken_and_others_refused() -> None:
    within = np.array([[0, 65535], [257, 514]], dtype=np.int32)
    assert seen(Image.fromarray(within))[..., 0].tolist() == [[0, 255], [1, 2]]
    with pytest.raises(ValueError, match="its grey levels go from -1 to 70000"):
        as_seen(Image.fromarray(np.array([[-1, 70000]], dtype=np.int32)))
    with pytest.raises(ValueError, match="its pixels are floats"):
        as_seen(Image.fromarray(np.zeros((2, 2), dtype=np.float32)))


def test_what_is_transparent_is_white() -> None:
    pixels = np.zeros((1, 3, 4), dtype=np.uint8)
    pixels[0, :, 0] = 200  # red beneath
    pixels[0, :, 3] = [0, 255, 51]  # a fifth is 51
    white, red, both = seen(reopened(Image.fromarray(pixels), "PNG"))[0]
    assert white.tolist() == [255, 255, 255]
    assert red.tolist() == [200, 0, 0]
    assert np.abs(both - np.array([0.8 * 255 + 0.2 * 200, 0.8 * 255, 0.8 * 255])).max() <= 1


def test_a_palette_is_looked_up_and_its_transparent_colour_is_white() -> None:
    palette = Image.new("P", (3, 1))
    palette.putdata([0, 1, 2])
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    assert seen(reopened(palette, "PNG"))[0].tolist() == [[10, 20, 30], [40, 50, 60], [70, 80, 90]]
    clear = seen(reopened(palette, "PNG", transparency=1))
    assert clear[0].tolist() == [[10, 20, 30], [255, 255, 255], [70, 80, 90]]


def test_cmyk_is_the_colour_that_is_printed() -> None:
    inks = np.zeros((1, 3, 4), dtype=np.uint8)
    inks[0, 0, 0] = 255  # cyan ink swallows red
    inks[0, 1, 3] = 255  # black
    cyan, black, paper = seen(reopened(Image.frombytes("CMYK", (3, 1), inks.tobytes()), "TIFF"))[0]
    assert (cyan.tolist(), black.tolist(), paper.tolist()) == ([0, 255, 255], [0, 0, 0], [255, 255, 255])


@pytest.mark.parametrize(
    ("orientation", "turned"),
    [
        (1, RAMP),
        (2, RAMP[:, ::-1]),
        (3, RAMP[::-1, ::-1]),
        (4, RAMP[::-1]),
        (6, np.rot90(RAMP, -1)),
        (8, np.rot90(RAMP)),
    ],
)
def test_a_camera_that_was_held_otherwise_is_turned_back(orientation: int, turned: NDArray[np.uint8]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(seen(reopened(Image.fromarray(RAMP), "PNG", exif=exif))[..., 0], turned)


def test_of_an_animation_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (2, 2), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert seen(Image.open(io.BytesIO(file.getvalue())))[0, 0].tolist() == [255, 0, 0]


def test_black_and_white_of_one_bit() -> None:
    bits = Image.fromarray(np.array([[0, 255]], dtype=np.uint8)).convert("1")
    assert seen(reopened(bits, "PNG"))[0].tolist() == [[0, 0, 0], [255, 255, 255]]
