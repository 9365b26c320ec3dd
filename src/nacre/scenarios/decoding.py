"""Files to pixels: parquet in the hub's schema, or folders of images, decoded with Pillow."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.scenarios.pictures import SPLITS, Part, Pictures, PictureSet
from nacre.scenarios.progress import Counting
from nacre.scenarios.sources import Source

_ROWS = 512
_DIGEST = 16  # bytes of a picture's hash
Row = tuple[bytes, str, int, int]  # a file's bytes, what an error calls it, label, superclass


def decode(source: Source, pictures: PictureSet) -> Pictures:
    """Every picture of a set. Takes seconds: `nacre.scenarios.cache.load` does it once."""
    try:
        import PIL.Image  # noqa: F401
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise NacreError("pictures are decoded with: pip install 'nacre[bench]'") from error
    reader = _Parquet(source, pictures) if source.kind == "parquet" else _Images(source, pictures)
    total = sum(reader.count(split) for split in SPLITS)
    with Counting(f"decoding {pictures.name}, once", total) as counting:
        parts = {split: _decode_part(reader, split, pictures, counting) for split in SPLITS}
    for split, (part, _) in parts.items():
        _check_labels(part, pictures, f"the {split} pictures in {source.root}")
    train, test = parts["train"][0], parts["test"][0]
    duplicates = count_duplicates(train.images, test.images)
    scaled = sum(part[1] for part in parts.values())
    return Pictures(train, test, reader.classes, reader.superclasses, duplicates, scaled)


def _decode_part(reader: _Parquet | _Images, split: str, pictures: PictureSet, counting: Counting) -> tuple[Part, int]:
    count, side = reader.count(split), pictures.side
    images = np.empty((count, pictures.channels, side, side), dtype=np.uint8)
    labels, above, scaled = np.empty(count, np.int64), np.empty(count, np.int64), 0
    for at, (data, name, label, superclass) in enumerate(reader.rows(split)):
        pixels, was_scaled = decode_picture(data, name, pictures)
        images[at] = pixels.transpose(2, 0, 1)
        labels[at], above[at] = label, superclass
        scaled += was_scaled
        if at % _ROWS == _ROWS - 1:
            counting.add(_ROWS)
    superclasses = torch.from_numpy(above) if reader.superclasses else None
    return Part(torch.from_numpy(images), torch.from_numpy(labels), superclasses), scaled


def decode_picture(data: bytes, name: str, pictures: PictureSet) -> tuple[np.ndarray[Any, Any], bool]:
    """A picture [side, side, channels], and whether it had another size."""
    from PIL import Image

    size = (pictures.side, pictures.side)
    mode = "RGB" if pictures.channels == 3 else "L"
    try:
        picture: Image.Image = Image.open(io.BytesIO(data))
        if picture.mode != mode:
            picture = picture.convert(mode)
        scaled = picture.size != size
        if scaled and pictures.resized:
            picture = picture.resize(size, Image.Resampling.BILINEAR)
        pixels = np.asarray(picture)
    except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
        raise NacreError(f"{name} is no picture that Pillow reads: {error}") from error
    if picture.size != size:
        raise NacreError(f"{name} has {picture.width} x {picture.height} pixels; {pictures.name} has {size[0]} squared")
    return pixels.reshape(*size, pictures.channels), scaled


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


@dataclass
class _Images:
    """Folders of images; the classes are the folders in order of their names, of their numbers if all are numbers."""

    source: Source
    pictures: PictureSet
    superclasses: tuple[str, ...] = ()
    classes: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = sorted({path.parent.name for path in self.source.files["train"]})
        self.classes = tuple(sorted(names, key=int) if all(name.isdecimal() for name in names) else names)

    def count(self, split: str) -> int:
        return len(self.source.files[split])

    def rows(self, split: str) -> Iterator[Row]:
        numbers = {name: number for number, name in enumerate(self.classes)}
        for path in self.source.files[split]:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise NacreError(f"{path} cannot be read: {error.strerror}") from error
            yield data, str(path), numbers[path.parent.name], 0


class _Parquet:
    """Parquet with a column of pictures (bytes within a struct, as datasets writes them) and one of labels."""

    def __init__(self, source: Source, pictures: PictureSet) -> None:
        self._pictures = pictures
        self._files = {split: [(path, _opened(path)) for path in source.files[split]] for split in SPLITS}
        self._columns = [pictures.image, pictures.label]
        files = [file for split in SPLITS for file in self._files[split]]
        for path, file in files:
            if missing := [name for name in self._columns if name not in file.schema_arrow.names]:
                known = ", ".join(file.schema_arrow.names)
                raise NacreError(f"{path} has the columns {known}; {pictures.name} has {' and '.join(missing)} too")
        self.classes = _names(files[0][1], pictures.label, pictures.classes)
        self.superclasses: tuple[str, ...] = ()
        above = pictures.superclass
        if above is not None and all(above in file.schema_arrow.names for _, file in files):
            self._columns.append(above)
            self.superclasses = _names(files[0][1], above, None)

    def count(self, split: str) -> int:
        return sum(file.metadata.num_rows for _, file in self._files[split])

    def rows(self, split: str) -> Iterator[Row]:
        for path, file in self._files[split]:
            row = 0
            try:
                for batch in file.iter_batches(batch_size=_ROWS, columns=self._columns):
                    read = batch.select(self._columns).to_pydict()
                    above = read[self._columns[2]] if self.superclasses else [0] * len(batch)
                    columns = (read[name] for name in self._columns[:2])
                    for picture, label, superclass in zip(*columns, above, strict=True):
                        yield picture["bytes"], f"row {row} of {path}", int(label), int(superclass)
                        row += 1
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise NacreError(f"{path} is damaged, or not in the hub's schema, at row {row}: {error}") from error


def _opened(path: Path) -> Any:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise NacreError(f"{path} is no parquet file that can be read: {error}") from error


def _names(file: Any, column: str, count: int | None) -> tuple[str, ...]:
    """The names of a column's classes, which datasets writes into the file; else their numbers."""
    try:
        written = json.loads(file.schema_arrow.metadata[b"huggingface"])
        names: Sequence[str] = written["info"]["features"][column]["names"]
        return tuple(map(str, names))
    except (KeyError, TypeError, ValueError):
        highest = count if count is not None else 1 + max(file.read(columns=[column]).column(0).to_pylist())
        return tuple(map(str, range(highest)))
