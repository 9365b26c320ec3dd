"""A user's pictures as a list: a CSV of path and label, and of split if there is one."""

from __future__ import annotations

import csv
from pathlib import Path

from nacre.errors import NacreError
from nacre.scenarios.given import SPLIT_NAMES, Given, given_of

SUFFIXES = {".csv": ",", ".tsv": "\t"}
_PATHS = ("path", "file", "filename", "file_name", "image", "picture")
LABELS = ("label", "labels", "class", "category", "target", "fine_label")
_SPLITS = ("split", "set", "subset")


def read_list(path: Path, label: str | None) -> Given:
    """The pictures that a list names; their paths are relative to the list's folder."""
    rows = _rows(path)
    header = [cell.strip().lower() for cell in rows[0][1]]
    columns = _columns(path, header, label)
    labelled: dict[str, list[tuple[Path, str]]] = {"train": [], "test": []}
    known: dict[Path, str] = {}
    missing: list[Path] = []
    for line, cells in rows[0 if columns is None else 1 :]:
        picture, name, split = _read_row(path, line, cells, columns or (0, 1, None))
        if known.setdefault(picture, name) != name:
            raise NacreError(f"{path}, line {line}: {picture} is {name!r} here and {known[picture]!r} above")
        if picture.is_file():
            labelled[split].append((picture, name))
        else:
            missing.append(picture)
    notes = [f"{picture} does not exist: skipped" for picture in missing]
    if missing and not labelled["train"]:
        raise NacreError(f"{path} names no picture that exists; paths are relative to its folder, as {missing[0]}")
    return given_of("images", path.parent, labelled, notes)


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=SUFFIXES[path.suffix.lower()], strict=True)
            rows = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NacreError(f"{path} cannot be read as a list of pictures: {error}") from error
    if not rows:
        raise NacreError(f"{path} is empty: a line of it is the path of a picture and its label")
    return rows


def _columns(path: Path, header: list[str], label: str | None) -> tuple[int, int, int | None] | None:
    """Where path, label and split stand; None where the first line is a picture already."""

    def place(names: tuple[str, ...]) -> int | None:
        return next((header.index(name) for name in names if name in header), None)

    where, what = place(_PATHS), place((label.lower(),) if label is not None else LABELS)
    if where is not None and what is not None:
        return where, what, place(_SPLITS)
    if where is None and what is None and label is None and len(header) == 2:
        return None
    missing = f"column {label!r}" if label is not None and what is None else "columns of path and label"
    raise NacreError(
        f"{path} has no {missing}; its first line is {', '.join(header)}. The path is called {', '.join(_PATHS)}; the "
        f"class {', '.join(LABELS)}, or what --label says; without a first line of names there are these two columns"
    )


def _read_row(path: Path, line: int, cells: list[str], columns: tuple[int, int, int | None]) -> tuple[Path, str, str]:
    where, what, split_at = columns
    if len(cells) <= max(where, what, split_at or 0) or not cells[where].strip() or not cells[what].strip():
        raise NacreError(f"{path}, line {line} has no path and label: {', '.join(cells)}")
    said = cells[split_at].strip().lower() if split_at is not None else "train"
    split = next((split for split, names in SPLIT_NAMES.items() if said in names), None)
    if split is None:
        raise NacreError(f"{path}, line {line}: the split is train or test; got {said!r}")
    return path.parent / cells[where].strip(), cells[what].strip(), split
