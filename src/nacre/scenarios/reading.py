"""The files of a picture set as rows: a picture's bytes, what to call it, its labels. Folders of images, or parquet."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from nacre.errors import NacreError
from nacre.scenarios.pictures import SPLITS, PictureSet
from nacre.scenarios.sources import Source

_ROWS = 512
Row = tuple[bytes, str, int, int]  # a file's bytes, what an error calls it, label, superclass


class Reader(Protocol):
    """A set's rows by split, and what its labels stand for."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def superclasses(self) -> tuple[str, ...]: ...

    def count(self, split: str) -> int: ...

    def rows(self, split: str) -> Iterator[Row]: ...


def reader_of(source: Source, pictures: PictureSet) -> Reader:
    """Reads a set as its kind asks for."""
    if pictures.own:
        return _Own(source)
    return _Parquet(source, pictures) if source.kind == "parquet" else _Images(source, pictures)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of classes in order; of their numbers if all are numbers.

    >>> in_order(["10", "9"]), in_order(["b10", "b9"])
    (('9', '10'), ('b10', 'b9'))
    """
    ordered = sorted(set(names))
    return tuple(sorted(ordered, key=int) if all(name.isdecimal() for name in ordered) else ordered)


@dataclass
class _Images:
    """Folders of images; the classes are the folders in order of their names, of their numbers if all are numbers."""

    source: Source
    pictures: PictureSet
    superclasses: tuple[str, ...] = ()
    classes: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.classes = in_order(path.parent.name for path in self.source.files["train"])

    def count(self, split: str) -> int:
        return len(self.source.files[split])

    def rows(self, split: str) -> Iterator[Row]:
        numbers = {name: number for number, name in enumerate(self.classes)}
        for path in self.source.files[split]:
            yield _bytes_of(path), str(path), numbers[path.parent.name], 0


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NacreError(f"{path} cannot be read: {error.strerror}") from error


@dataclass
class _Own:
    """A user's pictures, labelled by their source."""

    source: Source
    superclasses: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes

    def count(self, split: str) -> int:
        return len(self.source.labels[split])

    def rows(self, split: str) -> Iterator[Row]:
        read = _files if self.source.kind == "images" else _pictures_in_parquet
        for (data, name), label in zip(read(self.source, split), self.source.labels[split], strict=True):
            yield data, name, label, 0


def _files(source: Source, split: str) -> Iterator[tuple[bytes, str]]:
    for path in source.files[split]:
        yield _bytes_of(path), str(path)


def _pictures_in_parquet(source: Source, split: str) -> Iterator[tuple[bytes, str]]:
    """Pictures as bytes, or in a struct as datasets writes them; one that is missing is empty."""
    for path in source.files[split]:
        row = 0
        try:
            for batch in opened(path).iter_batches(batch_size=_ROWS, columns=[source.column]):
                for picture in batch.column(0).to_pylist():
                    data = picture["bytes"] if isinstance(picture, dict) else picture
                    yield data or b"", f"row {row} of {path}"
                    row += 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NacreError(f"{path} is damaged, or not in the hub's schema, at row {row}: {error}") from error


def sides(source: Source, count: int) -> list[int]:
    """The shorter sides of some training pictures of a user's, from all over the files; of none that are broken."""
    from PIL import Image

    read: Iterable[tuple[bytes, str]] = islice(_pictures_in_parquet(source, "train"), count)
    if source.kind == "images":
        files = source.files["train"]
        read = ((_bytes_of(path), "") for path in files[:: -(-len(files) // count)])
    found = []
    for data, _ in read:
        with contextlib.suppress(Exception):  # Pillow raises whatever a damaged file leads it to; decoding names it
            found.append(min(Image.open(io.BytesIO(data)).size))
    return found


class _Parquet:
    """Parquet with a column of pictures (bytes within a struct, as datasets writes them) and one of labels."""

    def __init__(self, source: Source, pictures: PictureSet) -> None:
        self._pictures = pictures
        self._files = {split: [(path, opened(path)) for path in source.files[split]] for split in SPLITS}
        self._columns = [pictures.image, pictures.label]
        files = [file for split in SPLITS for file in self._files[split]]
        for path, file in files:
            if missing := [name for name in self._columns if name not in file.schema_arrow.names]:
                known = ", ".join(file.schema_arrow.names)
                raise NacreError(f"{path} has the columns {known}; {pictures.name} has {' and '.join(missing)} too")
        self.classes = class_names(files[0][1], pictures.label, pictures.classes)
        self.superclasses: tuple[str, ...] = ()
        above = pictures.superclass
        if above is not None and all(above in file.schema_arrow.names for _, file in files):
            self._columns.append(above)
            self.superclasses = class_names(files[0][1], above, None)

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


def opened(path: Path) -> Any:
    """A parquet file."""
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise NacreError(f"{path} is no parquet file that can be read: {error}") from error


def class_names(file: Any, column: str, count: int | None) -> tuple[str, ...]:
    """The names of a column's classes, which datasets writes into the file; else their numbers."""
    try:
        written = json.loads(file.schema_arrow.metadata[b"huggingface"])
        names: Sequence[str] = written["info"]["features"][column]["names"]
        return tuple(map(str, names))
    except (KeyError, TypeError, ValueError):
        highest = count if count is not None else 1 + max(file.read(columns=[column]).column(0).to_pylist())
        return tuple(map(str, range(highest)))
