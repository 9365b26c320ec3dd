"""Where a picture set comes from: parquet or folders of images below --data, or the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nacre.errors import NacreError
from nacre.scenarios.pictures import SPLITS, PictureSet
from nacre.scenarios.progress import say

HUB_PATIENCE_S = 5.0  # the hub's own library asks six times, in 24 s, whether there is a network
_PARQUET = re.compile(r"(train|test)([-_.].*)?\.parquet")
PICTURES = (".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Source:
    """The files of a set by split, in their order, and the folder that they are in.

    A user's own set has the names of its classes, and of each split the class number of every picture in order.
    """

    kind: Literal["parquet", "images"]
    root: Path
    files: Mapping[str, tuple[Path, ...]]
    revision: str | None = None  # of the hub
    classes: tuple[str, ...] = ()
    labels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    column: str = "image"  # of parquet: where the pictures of a user's own set are


def find(pictures: PictureSet, data: Path | None) -> Source:
    """The set's files: below `data` if it is there, else on the hub."""
    if data is not None:
        if not data.is_dir():
            raise NacreError(f"--data takes a folder; {data} {'is none' if data.exists() else 'does not exist'}")
        for root in _roots(pictures, data):
            if source := _parquet(root, pictures) or _images(root):
                return source
    if pictures.revision is None:
        raise NacreError(
            f"{_missing(pictures, data)}the Hugging Face hub does not hold {pictures.name} in the form that papers "
            f"use. Give it with --data: {_how(pictures, data or Path('DIR'))}"
        )
    return _from_hub(pictures, data)


def _roots(pictures: PictureSet, data: Path) -> list[Path]:
    return [data / name for name in (pictures.name, pictures.folder) if name]


def _parquet(root: Path, pictures: PictureSet) -> Source | None:
    """Parquet files named train... and test..., as the hub names them."""
    for folder in dict.fromkeys((root, root / pictures.below, root / "data")):
        if not folder.is_dir():
            continue
        found = {path: match[1] for path in sorted(folder.iterdir()) if (match := _PARQUET.fullmatch(path.name))}
        files = {split: tuple(path for path in found if found[path] == split) for split in SPLITS}
        if all(files.values()):
            return Source("parquet", root, files)
        if found:
            missing = next(split for split in SPLITS if not files[split])
            raise NacreError(f"{folder} holds {', '.join(path.name for path in found)}, but no {missing}*.parquet")
    return None


def _images(root: Path) -> Source | None:
    """Folders train and test, in each a folder for every class."""
    if not any((root / split).is_dir() for split in SPLITS):
        return None
    files = {split: tuple(_pictures_in(root / split)) for split in SPLITS}
    for split in SPLITS:
        if not files[split]:
            raise NacreError(f"{root / split} holds no pictures: put them into {root / split}/CLASS/PICTURE.png")
    classes = {split: {path.parent.name for path in files[split]} for split in SPLITS}
    if classes["train"] != classes["test"]:
        odd = sorted(classes["train"] ^ classes["test"])
        raise NacreError(
            f"{root}: train and test hold pictures of the same classes; {len(odd)} classes are in one of them only, "
            f"such as {', '.join(odd[:3])}"
        )
    return Source("images", root, files)


def _pictures_in(split: Path) -> Iterator[Path]:
    folders = [path for path in split.iterdir() if path.is_dir()] if split.is_dir() else []
    for folder in sorted(folders):
        yield from sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)


def _from_hub(pictures: PictureSet, data: Path | None) -> Source:
    """The set's parquet at its revision, from the hub's own cache or downloaded into it."""
    try:
        import huggingface_hub as hub
    except ImportError as error:
        raise NacreError(
            f"{_missing(pictures, data)}data sets come from the hub with: pip install 'nacre[bench]'"
        ) from error
    names = {split: f"{pictures.below}/{split}-00000-of-00001.parquet" for split in SPLITS}
    asked: dict[str, Any] = {"repo_type": "dataset", "revision": pictures.revision}
    try:
        got = [hub.hf_hub_download(pictures.name, names[split], local_files_only=True, **asked) for split in SPLITS]
    except (OSError, ValueError):  # not there yet
        _check_network(pictures, data, hub)
        say(f"downloading {pictures.name} at revision {str(pictures.revision)[:8]} from the Hugging Face hub")
        try:
            got = [hub.hf_hub_download(pictures.name, names[split], **asked) for split in SPLITS]
        except Exception as error:  # whatever the hub and its transport raise
            raise _no_download(pictures, data, error) from error
    paths = [Path(path) for path in got]
    files = {split: (path,) for split, path in zip(SPLITS, paths, strict=True)}
    return Source("parquet", paths[0].parent, files, pictures.revision)


def _check_network(pictures: PictureSet, data: Path | None, hub: Any) -> None:
    """Asks once whether the hub answers, before its library does many times."""
    try:
        call_hub(hub)
    except Exception as error:  # of whichever transport the installed version uses
        raise _no_download(pictures, data, error) from error


def call_hub(hub: Any) -> None:
    """Raises, whatever it is, if the hub does not answer."""
    hub.get_session().head(hub.constants.ENDPOINT, timeout=HUB_PATIENCE_S)


def _no_download(pictures: PictureSet, data: Path | None, error: Exception) -> NacreError:
    said = next(iter(str(error).splitlines()), type(error).__name__)
    return NacreError(
        f"{_missing(pictures, data)}{pictures.name} could not be downloaded from the Hugging Face hub ({said}). "
        f"Connect to the network, or give it with --data: {_how(pictures, data or Path('DIR'))}"
    )


def _missing(pictures: PictureSet, data: Path | None) -> str:
    return f"{data} does not hold {pictures.name}, and " if data is not None else ""


def _how(pictures: PictureSet, data: Path) -> str:
    root = _roots(pictures, data)[-1]
    return (
        f"{data / pictures.name}/train*.parquet and test*.parquet with the columns {pictures.image} and "
        f"{pictures.label}, or pictures as {root}/train/CLASS/PICTURE.png and {root}/test/CLASS/PICTURE.png"
    )
