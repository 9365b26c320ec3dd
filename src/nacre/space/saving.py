"""A shared space to and from its folder: which records are new, what the index says, what must be given to load."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nacre.errors import NacreError
from nacre.space import store
from nacre.space.container import decode, encode
from nacre.space.description import build, describe
from nacre.space.layout import Layout, check_backbone, copy_of, counters, install, kind_of, tensors
from nacre.space.naming import check_known
from nacre.space.network import check_head
from nacre.space.plain import Features
from nacre.space.record import TaskRecord
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
    record: TaskRecord | None = None
    file: dict[str, Any] | None = None  # file, sha256, bytes; None before the first save
    folder: Path | None = None  # where the file is
    head: nn.Module | None = None  # given by the user, where the file cannot describe it

    @staticmethod
    def new(name: str, record: TaskRecord) -> Entry:
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return Entry(name, created, record.shares, record.ranks, record.numbers(), record)

    @staticmethod
    def read(data: Mapping[str, Any], folder: Path, head: nn.Module | None) -> Entry:
        ranks = {str(name): int(rank) for name, rank in data["ranks"]}
        numbers = {part: int(data["numbers"][part]) for part in PARTS}
        file = {key: data[key] for key in ("file", "sha256", "bytes")}
        return Entry(data["name"], str(data["created"]), bool(data["shares"]), ranks, numbers, None, file, folder, head)

    def to_json(self, position: int) -> dict[str, Any]:
        if self.file is None:
            self.file = {"file": store.task_file(position, self.name), **store.fingerprint(self.bytes())}
        return {
            "name": self.name,
            "created": self.created,
            "shares": self.shares,
            "ranks": [[name, rank] for name, rank in self.ranks.items()],  # a list: JSON objects are sorted
            "numbers": self.numbers,
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
    base_bytes = encode(space._template.everything(), {"base": space.base}) if space.base == "backbone" else None
    index: store.Index = {
        "format": store.FORMAT,
        "version": store.VERSION,
        "network": {"class": type(backbone).__qualname__, "description": describe(backbone)},
        "features": space.features if isinstance(space.features, str | int | None) else {"function": True},
        "base": space.base,
        "base_file": base_bytes and {"file": store.BASE_FILE, **store.fingerprint(base_bytes)},
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
        if base not in ("zero", "backbone") or (base == "backbone") != bool(index["base_file"]):
            raise ValueError(f"its base is {base!r}")
        if not isinstance(kept, str | int | None) and kept != {"function": True}:
            raise ValueError(f"its features are {kept!r}")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise NacreError(f"{path} is damaged: {error}") from error
    template = template_of(folder, described, of_class, backbone, layout)
    space = SharedSpace.__new__(SharedSpace)
    space.device = next((t.device for t in backbone.parameters()), _CPU) if backbone is not None else _CPU
    if index["base_file"]:
        _install_base(template, folder, index["base_file"], layout)
    space._begin(Template(template, layout), base, features_of(folder, kept, features))
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
