"""A user's pictures in parquet: a column of pictures, as bytes or as datasets writes them, and one of labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.scenarios.given import SPLIT_NAMES, Given, given_of
from nacre.scenarios.given_list import LABELS
from nacre.scenarios.reading import class_names, opened

_SPLIT = re.compile(r"([a-z]+)([-_.].*)?\.parquet", re.IGNORECASE)


def read_folder(root: Path, label: str | None) -> Given | None:
    """The parquet files in a folder or in data/ in it, by what their names begin with; None where there are none."""
    for folder in (root, root / "data"):
        found = sorted(folder.glob("*.parquet"))
        if found:
            return read_files(by_split(found), root, label)
    return None


def by_split(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Files named train... and test..., or in folders of these names; all are for training where no name says so."""
    names = {path: match[1] if (match := _SPLIT.fullmatch(path.name)) else path.parent.name for path in files}
    names = {path: name.lower() for path, name in names.items()}
    found: dict[str, list[Path]] = {}
    for split, known in SPLIT_NAMES.items():
        first = next((name for name in known if name in names.values()), None)
        found[split] = [path for path in files if first is not None and names[path] == first]
    return found if found["train"] else {"train": list(files), "test": []}


def read_files(files: Mapping[str, Sequence[Path]], root: Path, label: str | None) -> Given:
    """The rows of parquet files, labelled; which columns they are in, their types and names say."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise NacreError("parquet is read with: pip install 'nacre[bench]'") from error
    first = opened(files["train"][0])
    picture, what = _picture_column(first, files["train"][0]), _label_column(first, files["train"][0], label)
    names = class_names(first, what, None) if _numbered(first, what) else None
    labelled: dict[str, list[tuple[Path, str]]] = {}
    for split, paths in files.items():
        labelled[split] = [(path, _name(value, names, path)) for path in paths for value in _column(path, what)]
    given = given_of("parquet", root, labelled)
    source = replace(given.source, files={split: tuple(paths) for split, paths in files.items()}, column=picture)
    return replace(given, source=source)


def _picture_column(file: Any, path: Path) -> str:
    """The column of bytes, or of structs with bytes in them."""
    import pyarrow

    def holds_bytes(kind: Any) -> bool:
        if pyarrow.types.is_struct(kind):
            return bool(kind.get_field_index("bytes") >= 0)
        return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))

    found: list[str] = [field.name for field in file.schema_arrow if holds_bytes(field.type)]
    if not found:
        raise NacreError(f"{path} has no column of pictures; its columns are {', '.join(file.schema_arrow.names)}")
    return "image" if "image" in found else found[0]


def _label_column(file: Any, path: Path, label: str | None) -> str:
    columns: list[str] = file.schema_arrow.names
    wanted = (label,) if label is not None else LABELS
    found = next((name for name in wanted if name in columns), None)
    if found is None:
        raise NacreError(f"{path} has no column {' or '.join(wanted)}; say which of {', '.join(columns)} with --label")
    return found


def _numbered(file: Any, column: str) -> bool:
    """Whether the labels are numbers that datasets has written the names of into the file."""
    import pyarrow

    metadata = file.schema_arrow.metadata or {}
    return bool(pyarrow.types.is_integer(file.schema_arrow.field(column).type)) and b"huggingface" in metadata


def _column(path: Path, column: str) -> list[Any]:
    file = opened(path)
    if column not in file.schema_arrow.names:
        raise NacreError(f"{path} has no column {column!r}; it has {', '.join(file.schema_arrow.names)}")
    values: list[Any] = file.read(columns=[column]).column(0).to_pylist()
    return values


def _name(value: Any, names: Sequence[str] | None, path: Path) -> str:
    if value is None or isinstance(value, list | dict | float):
        raise NacreError(f"{path} has a label that is no class: {value!r:.80}")
    if names is None:
        return str(value)
    if not 0 <= value < len(names):
        raise NacreError(f"{path} has the label {value}; its classes are numbered 0 to {len(names) - 1}")
    return names[int(value)]
