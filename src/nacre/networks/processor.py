"""What the image processor of a pretrained model says of pictures: their side, what is subtracted and divided by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.networks.pretrained import quiet, transformers_of

_LEVELS = 255


@dataclass(frozen=True)
class Processor:
    """Of pixels from 0 to 1: less the mean, divided by the deviation, one number for each of three colours."""

    side: int | None  # None where it says none, or pictures that are no squares
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @staticmethod
    def of(said: Mapping[str, Any]) -> Processor:
        """Read from preprocessor_config.json.

        >>> Processor.of({"size": {"shortest_edge": 64}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3})
        Processor(side=64, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
        """
        if said.get("do_flip_channel_order"):
            raise ValueError("it gives blue before red, and a store gives its pictures red first")
        normalises = said.get("do_normalize", "image_mean" in said)
        mean, std = (
            _three(said[key]) if normalises else (plain,) * 3
            for key, plain in (("image_mean", 0.0), ("image_std", 1.0))
        )
        scale = _LEVELS * float(said.get("rescale_factor", 1 / _LEVELS)) if said.get("do_rescale", True) else _LEVELS
        less = 1.0 if said.get("rescale_offset") else 0.0
        if scale <= 0 or min(std) <= 0:
            raise ValueError(f"it multiplies pixels by {scale / _LEVELS:g} and divides them by {std}")
        wanted = _side(said["crop_size"]) if said.get("do_center_crop") and "crop_size" in said else None
        return Processor(
            wanted or _side(said.get("size")),
            tuple((value + less) / scale for value in mean),
            tuple(value / scale for value in std),
        )


def processor(name: str | Path) -> Processor | None:
    """The image processor of a model on the hub or in a folder; None where none is saved with it."""
    with quiet(transformers_of()):
        from transformers.image_processing_base import ImageProcessingMixin

        try:
            said, _ = ImageProcessingMixin.get_image_processor_dict(str(name))
        except (OSError, ValueError):
            return None
    try:
        return Processor.of(said)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NacreError(f"the image processor of {name} prepares pictures as nacre cannot: {error!s:.200}") from error


def _three(said: Any) -> tuple[float, float, float]:
    red, green, blue = said if isinstance(said, list | tuple) else (said,) * 3
    return float(red), float(green), float(blue)


def _side(size: Any) -> int | None:
    """The side of a square, in any of the ways in which processors have written it."""
    if isinstance(size, Mapping):
        given = [size[key] for key in ("shortest_edge", "height", "width") if size.get(key) is not None]
    else:
        given = list(size) if isinstance(size, list | tuple) else [size]
    return int(given[0]) if given and given[0] is not None and len(set(given)) == 1 else None
