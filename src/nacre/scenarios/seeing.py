"""A picture of any mode as it is seen: upright, in colour, 8 bits a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image


def as_seen(picture: Image.Image) -> Image.Image:
    """Turned as its EXIF says, of an animation the first frame, what is transparent white, 16 bits as 8, all as RGB."""
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(picture)
    if picture.mode == "F":
        raise ValueError("its pixels are floats, of which nobody knows the range: save it with 8 or 16 bits")
    if picture.mode.startswith("I"):
        picture = _eight_bits(picture)
    if "A" in picture.getbands() or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Grey of 16 bits; Pillow's own conversion would cut off what is above 255."""
    from PIL import Image

    levels = np.asarray(picture).astype(np.int64)
    if levels.min() < 0 or levels.max() > 65535:
        raise ValueError(f"its grey levels go from {levels.min()} to {levels.max()}: save it with 8 or 16 bits")
    return Image.fromarray(((levels + 128) // 257).astype(np.uint8))
