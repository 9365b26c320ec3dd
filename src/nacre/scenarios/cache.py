"""Decoding once: a set's pixels in one file that later starts map into memory, named by what it was decoded from."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import safetensors.torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nacre.errors import NacreError
from nacre.scenarios.decoding import decode
from nacre.scenarios.pictures import SPLITS, Part, Pictures, PictureSet
from nacre.scenarios.progress import say
from nacre.scenarios.sources import Source
from nacre.space.container import canonical_json
from nacre.space.store import replace_file

_VERSION = 1  # of what is written here
_PATIENCE_S = 2.0
_FRESH_S = 2.0  # a file changed so lately may change again within the clock's resolution


def cache_folder() -> Path:
    """NACRE_CACHE, or `nacre` in XDG_CACHE_HOME, or ~/.cache/nacre."""
    if own := os.environ.get("NACRE_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nacre"


def load(source: Source, pictures: PictureSet) -> tuple[Pictures, str]:
    """A set decoded, from the cache if it was before; and the hash of the files' contents."""
    folder = cache_folder()
    with contextlib.suppress(OSError):  # said where it is written to
        folder.mkdir(parents=True, exist_ok=True)
    try:
        digest = _content_hash(source, folder)
    except OSError as error:
        raise NacreError(f"{pictures.name} cannot be read from {source.root}: {error}") from error
    path = folder / _file_name(pictures, digest)
    kept = _read(path, pictures)
    return kept or _decoded(path, source, pictures), digest


def _decoded(path: Path, source: Source, pictures: PictureSet) -> Pictures:
    """Decodes and keeps; whoever comes second waits and reads what the first has kept."""
    made = None
    try:
        with _alone(path, pictures):
            if kept := _read(path, pictures, quietly=True):
                return kept
            made = decode(source, pictures)
            _write(path, made)
            return _read(path, pictures) or made
    except OSError as error:  # of the cache: what goes wrong with the source is a NacreError
        say(
            f"{path.parent} cannot be written ({error.strerror or error}): {pictures.name} is decoded at every start. "
            "NACRE_CACHE names another folder"
        )
        return made or decode(source, pictures)


def _file_name(pictures: PictureSet, digest: str) -> str:
    """Named by the contents and by everything that decoding depends on."""
    how = canonical_json([_VERSION, {**asdict(pictures), "mean": None, "std": None, "revision": None}, digest])
    slug = re.sub(r"[^A-Za-z0-9]+", "-", pictures.name)
    return f"{slug}-{hashlib.sha256(how.encode()).hexdigest()[:24]}.safetensors"


# the contents of the files


def _content_hash(source: Source, folder: Path) -> str:
    """The hash of all files' contents; worked out again only when a file's size or times have changed."""
    stats = [(_relative(path, source), path.stat()) for path in _files(source)]
    newest = max(max(stat.st_mtime, stat.st_ctime) for _, stat in stats)
    seen = canonical_json(
        [
            str(source.root.absolute()),
            _own_labels(source),
            *([name, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in stats),
        ]
    )
    memo = folder / f"seen-{hashlib.sha256(seen.encode()).hexdigest()[:24]}.txt"
    if memo.exists() and re.fullmatch(r"[0-9a-f]{64}", known := memo.read_text(errors="replace")):
        return known
    digest = _hash_files(source)
    if time.time() - newest > _FRESH_S:
        with contextlib.suppress(OSError), FileLock(folder / ".lock"):
            replace_file(memo, digest.encode())
    return digest


def _hash_files(source: Source) -> str:
    """Folders of images are named by their classes, so names count there; parquet files may have any."""
    whole = hashlib.sha256(_own_labels(source).encode())
    for split in SPLITS:
        for path in source.files[split]:
            name = _relative(path, source) if source.kind == "images" else split
            with path.open("rb") as file:
                whole.update(f"{name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def _own_labels(source: Source) -> str:
    """What a user's own set says beside its files; nothing of any other."""
    return canonical_json([source.classes, source.labels, source.column]) if source.classes else ""


def _relative(path: Path, source: Source) -> str:
    # 60,000 times relative_to would be a quarter of a second
    return path.as_posix().removeprefix(f"{source.root.as_posix()}/")


def _files(source: Source) -> Iterator[Path]:
    for split in SPLITS:
        yield from source.files[split]


# the file


@contextlib.contextmanager
def _alone(path: Path, pictures: PictureSet) -> Iterator[None]:
    lock = FileLock(path.with_suffix(".lock"))
    try:
        lock.acquire(timeout=_PATIENCE_S)
    except Timeout:
        say(f"another process is decoding {pictures.name}: waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write(path: Path, pictures: Pictures) -> None:
    """As a whole or not at all; only the holder of the lock writes."""
    tensors = _tensors(pictures)
    text = canonical_json(
        {
            "classes": pictures.classes,
            "superclasses": pictures.superclasses,
            "duplicates": pictures.duplicates,
            "scaled": pictures.scaled,
            "broken": pictures.broken,
            "sums": {name: _sum(tensor) for name, tensor in tensors.items()},
        }
    )
    partial = path.with_name(path.name + ".partial")
    try:
        safetensors.torch.save_file(tensors, partial, metadata={"nacre": f"{zlib.crc32(text.encode()):08x}{text}"})
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except SafetensorError as error:  # a disk that is full
        raise OSError(str(error)) from error
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path, pictures: PictureSet, *, quietly: bool = False) -> Pictures | None:
    """What was kept, mapped into memory; None where there is nothing, or not what was written."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            written = file.metadata()["nacre"]
        text = written[8:]
        if written[:8] != f"{zlib.crc32(text.encode()):08x}":
            raise ValueError("its header is not as it was written")
        facts, tensors = json.loads(text), safetensors.torch.load_file(path)
        if facts["sums"] != {name: _sum(tensor) for name, tensor in tensors.items()}:
            raise ValueError("its pixels are not as they were written")
        parts = [_part(tensors, split) for split in SPLITS]
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        if not quietly:
            say(f"{path} is damaged ({error}): {pictures.name} is decoded again")
        return None
    names = (tuple(facts["classes"]), tuple(facts["superclasses"]))
    return Pictures(parts[0], parts[1], *names, facts["duplicates"], facts["scaled"], tuple(facts["broken"]))


def _tensors(pictures: Pictures) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for split, part in zip(SPLITS, (pictures.train, pictures.test), strict=True):
        tensors |= {f"{split}/images": part.images, f"{split}/labels": part.labels}
        if part.superclasses is not None:
            tensors[f"{split}/superclasses"] = part.superclasses
    return tensors


def _part(tensors: dict[str, Tensor], split: str) -> Part:
    return Part(tensors[f"{split}/images"], tensors[f"{split}/labels"], tensors.get(f"{split}/superclasses"))


def _sum(tensor: Tensor) -> int:
    """Finds damage, not forgery: a cache is nobody else's."""
    return zlib.crc32(tensor.numpy().data)
