"""Files to pixels, decoded with Pillow."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.scenarios.pictures import SPLITS, Part, Pictures, PictureSet
from nacre.scenarios.progress import Counting
from nacre.scenarios.reading import Reader, reader_of
from nacre.scenarios.seeing import as_seen
from nacre.scenarios.sources import Source

_ROWS = 512  # between two looks at the clock
_DIGEST = 16  # bytes of a picture's hash


def decode(source: Source, pictures: PictureSet) -> Pictures:
    """Every picture of a set. Takes seconds: `nacre.scenarios.cache.load` does it once."""
    try:
        import PIL.Image  # noqa: F401
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise NacreError("pictures are decoded with: pip install 'nacre[bench]'") from error
    reader = reader_of(source, pictures)
    total = sum(reader.count(split) for split in SPLITS)
    with Counting(f"decoding {pictures.name}, once", total) as counting:
        parts = {split: _decode_part(reader, split, pictures, counting) for split in SPLITS}
    for split, (part, _, _) in parts.items():
        if not pictures.own:  # of those some may be broken: whoever reads them looks at what is left
            _check_labels(part, pictures, f"the {split} pictures in {source.root}")
    train, test = parts["train"][0], parts["test"][0]
    duplicates = count_duplicates(train.images, test.images)
    scaled = sum(part[1] for part in parts.values())
    broken = tuple(problem for part in parts.values() for problem in part[2])
    return Pictures(train, test, reader.classes, reader.superclasses, duplicates, scaled, broken)


def _decode_part(reader: Reader, split: str, pictures: PictureSet, counting: Counting) -> tuple[Part, int, list[str]]:
    """The pictures of a split, how many had another size, and what is wrong with those of a user's that are broken."""
    count, side = reader.count(split), pictures.side
    images = np.empty((count, pictures.channels, side, side), dtype=np.uint8)
    labels, above, scaled, broken = np.empty(count, np.int64), np.empty(count, np.int64), 0, []
    at = 0
    for read, (data, name, label, superclass) in enumerate(reader.rows(split), start=1):
        try:
            pixels, was_scaled = decode_picture(data, name, pictures)
        except NacreError as error:
            if not pictures.own:
                raise
            broken.append(str(error))
            continue
        images[at] = pixels.transpose(2, 0, 1)
        labels[at], above[at] = label, superclass
        scaled += was_scaled
        at += 1
        if read % _ROWS == 0:
            counting.add(_ROWS)
    superclasses = torch.from_numpy(above[:at]) if reader.superclasses else None
    return Part(torch.from_numpy(images[:at]), torch.from_numpy(labels[:at]), superclasses), scaled, broken


def decode_picture(data: bytes, name: str, pictures: PictureSet) -> tuple[np.ndarray[Any, Any], bool]:
    """A picture [side, side, channels], and whether it had another size."""
    from PIL import Image

    size = (pictures.side, pictures.side)
    mode = "RGB" if pictures.channels == 3 else "L"
    try:
        picture: Image.Image = Image.open(io.BytesIO(data))
        if pictures.own:
            picture = as_seen(picture)
        elif picture.mode != mode:
            picture = picture.convert(mode)
        scaled = picture.size != size
        if scaled and pictures.resized:
            picture = picture.resize(size, Image.Resampling.BILINEAR)
        pixels = np.asarray(picture)
    except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
        raise NacreError(f"{name} is no picture that Pillow reads: {_said(error, data)}") from error
    if picture.size != size:
        raise NacreError(f"{name} has {picture.width} x {picture.height} pixels; {pictures.name} has {size[0]} squared")
    return pixels.reshape(*size, pictures.channels), scaled


def _said(error: Exception, data: bytes) -> str:
    """What is wrong; of a picture in memory Pillow says where it lay, which is another place each time."""
    return "it is empty" if not data else re.sub(r" <_io\.BytesIO object at 0x[0-9a-f]+>", "", str(error))


def _check_labels(part: Part, pictures: PictureSet, where: str) -> None:
    """Every class is there, and nothing else."""
    counts = np.bincount(part.labels.clamp(-1, pictures.classes).numpy() + 1, minlength=pictures.classes + 2)
    if counts[0] or counts[-1]:
        low, high = int(part.labels.min()), int(part.labels.max())
        raise NacreError(f"{where} have the labels {low} to {high}; {pictures.name} has 0 to {pictures.classes - 1}")
    if empty := [label for label in range(pictures.classes) if not counts[label + 1]]:
        raise NacreError(
            f"{where} are of {pictures.classes - len(empty)} classes, {pictures.name} has {pictures.classes}: "
            f"none has the label {', '.join(map(str, empty[:5]))}{' ...' if len(empty) > 5 else ''}"
        )


def count_duplicates(train: Tensor, test: Tensor) -> int:
    """How many test pictures are training pictures too, pixel for pixel.

    >>> count_duplicates(torch.zeros(3, 1, 2, 2), torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)]))
    1
    """
    import hashlib

    def digest(picture: np.ndarray[Any, Any]) -> bytes:
        return hashlib.blake2b(picture.tobytes(), digest_size=_DIGEST).digest()

    seen = {digest(picture) for picture in train.numpy()}
    return sum(digest(picture) in seen for picture in test.numpy())
