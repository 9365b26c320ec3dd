"""A user's own pictures of one task: found in folders, a list, parquet or on the hub, and labelled. Decodes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nacre.errors import NacreError
from nacre.scenarios.pictures import SPLITS
from nacre.scenarios.reading import in_order
from nacre.scenarios.sources import PICTURES, Source

SPLIT_NAMES = {
    "train": ("train", "training"),
    "test": ("test", "testing", "validation", "valid", "val", "dev"),  # the first there is
}
Labelled = Mapping[str, Sequence[tuple[Path, str]]]  # by split the pictures, or rows of parquet, with their classes


@dataclass(frozen=True)
class Given:
    """A task's pictures, and what of that which was given is none of them."""

    source: Source
    notes: tuple[str, ...] = ()

    @property
    def tested(self) -> bool:
        """Whether test pictures were given apart."""
        return bool(self.source.labels["test"])


def find(given: str, label: str | None = None) -> Given:
    """The pictures of one task.

    given: a folder with a sub-folder for every class, or with train/ and test/ of that kind; a CSV of path and label;
           a parquet file or a folder of them; or the name of a data set on the Hugging Face hub, OWNER/NAME.
    label: the column of the class in a CSV or in parquet, where its name does not say so.
    """
    from nacre.scenarios import given_hub, given_list, given_parquet

    path = Path(given)
    if path.is_dir():
        return given_parquet.read_folder(path, label) or _read_folder(path)
    if path.is_file() and path.suffix.lower() in given_list.SUFFIXES:
        return given_list.read_list(path, label)
    if path.is_file() and path.suffix.lower() == ".parquet":
        return given_parquet.read_files({"train": [path], "test": []}, path.parent, label)
    if not path.exists() and given_hub.NAME.fullmatch(given):
        return given_hub.read_hub(given, label)
    raise NacreError(
        f"{given} {'is no such file' if path.exists() else 'does not exist'}: a task is learnt from a folder with a "
        "sub-folder for every class, a .csv of path and label, .parquet, or a data set of the hub, OWNER/NAME"
    )


def given_of(kind: Literal["images", "parquet"], root: Path, labelled: Labelled, notes: Iterable[str] = ()) -> Given:
    """Images with their labels, checked: what can be said before any is decoded is said now."""
    classes = in_order(name for _, name in labelled["train"])
    check_classes(str(root), classes, [name for _, name in labelled["train"]])
    numbers = {name: number for number, name in enumerate(classes)}
    if odd := sorted({name for _, name in labelled["test"]} - set(classes)):
        raise NacreError(f"{root}: test pictures are of the classes {_listed(odd)}, of which none is trained on")
    labels = {split: tuple(numbers[name] for _, name in labelled[split]) for split in SPLITS}
    files = {split: tuple(path for path, _ in labelled[split]) for split in SPLITS}
    return Given(Source(kind, root, files, classes=classes, labels=labels), tuple(notes))


def check_classes(where: str, classes: Sequence[str], found: Sequence[str]) -> None:
    """Refuses what no task can be learnt from: nothing, a single class, a class of a single picture."""
    if not found:
        raise NacreError(
            f"{where} holds no pictures: they are looked for in CLASS/PICTURE.jpg, a folder for every class, "
            f"and end in {', '.join(PICTURES)}"
        )
    counts = dict.fromkeys(classes, 0)
    for name in found:
        counts[name] += 1
    if len(classes) == 1:
        raise NacreError(
            f"{where} holds pictures of a single class, {classes[0]!r}: a task tells at least two apart, so it takes "
            "a second folder, such as one of pictures of anything else"
        )
    for few, what in ((0, "no picture"), (1, "a single picture")):
        if short := [name for name in classes if counts[name] == few]:
            raise NacreError(
                f"{where} holds {what} of {_listed(short)}: every class takes at least two, to learn from one and to "
                "be tested on another. Add some, or take the class away"
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# folders


def _read_folder(root: Path) -> Given:
    folders = {split: _split_folder(root, split) for split in SPLITS}
    if folders["train"] is None:
        labelled, notes = _read_classes(root)
        return given_of("images", root, {"train": labelled, "test": []}, notes)
    used = [folder for folder in folders.values() if folder is not None]
    other = [path.name for path in _folders(root) if path not in used]
    notes = [f"{root}: {_listed(other)} left out, beside {used[0].name}"] if other else []
    found = {split: _read_classes(folder) if folder is not None else ([], []) for split, folder in folders.items()}
    notes += [note for _, said in found.values() for note in said]
    return given_of("images", root, {split: labelled for split, (labelled, _) in found.items()}, notes)


def _split_folder(root: Path, split: str) -> Path | None:
    """The folder of a split. One with pictures in it and no folders is a class that happens to be called so."""
    for path in (root / name for name in SPLIT_NAMES[split]):
        if path.is_dir() and _folders(path):
            return path
    return None


def _read_classes(root: Path) -> tuple[list[tuple[Path, str]], list[str]]:
    """The pictures below every folder in a folder, which is their class; and what was left out."""
    labelled: list[tuple[Path, str]] = []
    others = [path for path in sorted(root.iterdir()) if path.is_file() and not path.name.startswith(".")]
    empty: list[str] = []
    for folder in _folders(root):
        files = files_below(folder)
        pictures = [path for path in files if path.suffix.lower() in PICTURES]
        others += [path for path in files if path.suffix.lower() not in PICTURES]
        labelled += [(path, folder.name) for path in pictures]
        if not pictures:
            empty.append(folder.name)
    if empty and labelled:
        raise NacreError(
            f"{root}: the folder of {_listed(empty)} holds no pictures: fill it, or take it away. "
            f"Pictures end in {', '.join(PICTURES)}"
        )
    plural = "s are" if len(others) > 1 else " is"
    return labelled, [f"{root}: {len(others)} file{plural} left out, such as {others[0].name}"] if others else []


def _folders(root: Path) -> list[Path]:
    return [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith((".", "__"))]


def files_below(folder: Path) -> list[Path]:
    """Every file in a folder and the folders in it, in order; none that is hidden."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
