"""A shared space to and from its folder: which records are new, what the index says, what must be given to load."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nacre.errors import NacreError
from nacre.space import store
from nacre.space.container import decode, encode
from nacre.space.description import build, describe, draws_itself
from nacre.space.layout import Layout, check_backbone, copy_of, counters, install, kind_of, tensors
from nacre.space.naming import check_known
from nacre.space.network import check_head
from nacre.space.plain import Features
from nacre.space.record import TaskRecord
from nacre.space.source import Source
from nacre.space.template import Template

if TYPE_CHECKING:
    from nacre.space.shared import SharedSpace

PARTS = ("factors", "head", "private", "frozen", "extra")


@dataclass
class Entry:
    """A task of a space: what the index says of it, and its record once that was learnt or read."""

    name: str
    created: str
    shares: bool
    ranks: dict[str, int]
    numbers: dict[str, int]
    saved: dict[str, int]  # bytes less than 4 a number, by part; empty where all is float32
    record: TaskRecord | None = None
    file: dict[str, Any] | None = None  # file, sha256, bytes; None before the first save
    folder: Path | None = None  # where the file is
    head: nn.Module | None = None  # given by the user, where the file cannot describe it

    @staticmethod
    def new(name: str, record: TaskRecord) -> Entry:
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return Entry(name, created, record.shares, record.ranks, record.numbers(), record.saved(), record)

    @staticmethod
    def read(data: Mapping[str, Any], folder: Path, head: nn.Module | None) -> Entry:
        ranks = {str(name): int(rank) for name, rank in data["ranks"]}
        numbers = {part: int(data["numbers"][part]) for part in PARTS}
        saved = {str(part): int(less) for part, less in data.get("saved", {}).items()}
        file = {key: data[key] for key in ("file", "sha256", "bytes")}
        created, shares = str(data["created"]), bool(data["shares"])
        return Entry(data["name"], created, shares, ranks, numbers, saved, None, file, folder, head)

    def to_json(self, position: int) -> dict[str, Any]:
        if self.file is None:
            self.file = {"file": store.task_file(position, self.name), **store.fingerprint(self.bytes())}
        return {
            "name": self.name,
            "created": self.created,
            "shares": self.shares,
            "ranks": [[name, rank] for name, rank in self.ranks.items()],  # a list: JSON objects are sorted
            "numbers": self.numbers,
            **({"saved": self.saved} if self.saved else {}),
            **self.file,
        }

    def bytes(self) -> bytes:
        """The task's file: as committed, whichever version of safetensors wrote it, else made from the record."""
        made = self.record.encode(self.name) if self.record is not None else None
        if made is not None and (self.file is None or store.fingerprint(made).items() <= self.file.items()):
            return made  # also where the folder that it was saved to is gone
        assert self.folder is not None
        assert self.file is not None
        return store.read_file(self.folder, self.file)

    def load(self, layout: Layout) -> TaskRecord:
        """The record, read and checked when it is first asked for."""
        if self.record is None:
            assert self.folder is not None
            assert self.file is not None
            path = self.folder / self.file["file"]
            said = {"name": self.name, "ranks": self.ranks, "shares": self.shares}
            record = TaskRecord.decode(self.bytes(), path, said, layout, self.head)
            if record.numbers() != self.numbers:
                raise NacreError(f"{path} is damaged: it holds {record.numbers()} numbers, not {self.numbers}")
            if record.saved() != self.saved:
                raise NacreError(f"{path} is damaged: fewer bits save {record.saved()} bytes, not {self.saved}")
            self.record = record
        return self.record


def bytes_on_disk(folder: Path | None, only: Sequence[Entry] | None) -> int | None:
    """Bytes of a saved space, or of some of its tasks' files."""
    if folder is None:
        return None
    if only is not None:
        return None if any(entry.file is None for entry in only) else sum(e.file["bytes"] for e in only if e.file)
    return store.size_on_disk(folder)


def save(space: SharedSpace, folder: Path) -> None:
    """Writes what the folder does not hold yet."""
    folder = folder.absolute()  # files are read later, from wherever the process is then
    backbone = space._template.module
    everything = space._template.everything() if space.base != "zero" else {}
    base_bytes = encode(everything, {"base": space.base}) if space.base == "backbone" else None
    described = describe(backbone)
    of_class = type(backbone).__qualname__ if described is None else type(backbone).__name__
    sourced = space.source is not None or space.base == "external"
    index: store.Index = {
        "format": store.FORMAT,
        "version": store.VERSION,
        "network": {"class": of_class, "description": described},
        "features": space.features if isinstance(space.features, str | int | None) else {"function": True},
        "base": space.base,
        "base_file": base_bytes and {"file": store.BASE_FILE, **store.fingerprint(base_bytes)},
        **({"base_source": asdict(Source.of(space.source, everything))} if sourced else {}),
        "layout": space._layout.to_json(),
        "facts": space.facts,
        "tasks": [entry.to_json(position) for position, entry in enumerate(space._entries.values())],
    }

    def contents(wanted: Mapping[str, Any]) -> bytes:
        if wanted["file"] == store.BASE_FILE and base_bytes is not None:
            return base_bytes
        return space._entries[wanted["name"]].bytes()

    store.write(folder, index, contents)
    space.folder = folder
    for entry in space._entries.values():
        entry.folder = folder


def load(folder: Path, backbone: nn.Module | None, features: Features, heads: Mapping[str, nn.Module]) -> SharedSpace:
    """The space in a folder; of its tasks only what the index says, until one is asked for."""
    from nacre.space.shared import SharedSpace

    folder = folder.absolute()  # files are read later, from wherever the process is then
    if backbone is not None:
        check_backbone(backbone)
    index = store.read_index(folder)
    check_heads(heads, [entry["name"] for entry in index["tasks"]])
    path = folder / store.INDEX
    try:
        layout = Layout.from_json(index["layout"])
        entries = [Entry.read(data, folder, heads.get(data["name"])) for data in index["tasks"]]
        base, described, kept = index["base"], index["network"]["description"], index["features"]
        facts, of_class = dict(index["facts"]), str(index["network"]["class"])
        if base not in ("zero", "backbone", "external") or (base == "backbone") != bool(index["base_file"]):
            raise ValueError(f"its base is {base!r}")
        source = Source.read(index.get("base_source"), needed=base == "external")
        if not isinstance(kept, str | int | None) and kept != {"function": True}:
            raise ValueError(f"its features are {kept!r}")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise NacreError(f"{path} is damaged: {error}") from error
    if base == "external":
        template = source.template(folder, backbone, layout)
    else:
        template = template_of(folder, described, of_class, backbone, layout)
    space = SharedSpace.__new__(SharedSpace)
    space.device = next((t.device for t in backbone.parameters()), _CPU) if backbone is not None else _CPU
    if index["base_file"]:
        _install_base(template, folder, index["base_file"], layout)
    layout = layout if base == "zero" else layout.on_base()
    space._begin(Template(template, layout), base, features_of(folder, kept, features), source.name)
    space.facts, space.folder = facts, folder
    space._entries = {entry.name: entry for entry in entries}
    return space


_CPU = torch.device("cpu")


def check_heads(heads: Any, tasks: Sequence[str]) -> None:
    if not isinstance(heads, Mapping):
        raise NacreError(f"heads= is a dict from tasks to their heads; got {heads!r:.80}")
    for task, head in heads.items():
        check_known(task, tasks)
        check_head(head)


def template_of(folder: Path, described: Any, of_class: str, backbone: nn.Module | None, layout: Layout) -> nn.Module:
    if backbone is None and described is None:
        raise NacreError(
            f"the network of {folder} is a {of_class} of your own: load it with backbone= that network (any weights)"
        )
    if backbone is None:
        template = build(described)
        bytes_needed = 4 * sum(tensor.numel() for tensor in tensors(template).values())
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 40
        if bytes_needed > memory:
            raise NacreError(
                f"the network of {folder} takes {bytes_needed / 1e9:.0f} GB, this machine has {memory / 1e9:.0f}"
            )
    else:
        template = copy_of(backbone).cpu()
    layout.check(template)
    if backbone is None and draws_itself(described):
        with torch.random.fork_rng(devices=[]):
            template = build(described, "cpu")
    return template


def features_of(folder: Path, kept: Any, given: Features) -> Features:
    if isinstance(kept, dict) and not callable(given):
        raise NacreError(f"{folder} picks its features with a function: load it with features= that function")
    if not isinstance(kept, dict) and given not in (None, kept):
        raise NacreError(f"{folder} picks its features with features={kept!r}; got features={given!r:.80}")
    return given if given is not None else kept


def _install_base(template: nn.Module, folder: Path, file: Mapping[str, Any], layout: Layout) -> None:
    came, _ = decode(store.read_file(folder, file), folder / file["file"])
    if {name: kind_of(tensor) for name, tensor in came.items()} != layout.everything:
        raise NacreError(f"{folder / file['file']} is damaged: it holds other tensors than the network's")
    install(template, came | counters(template))
