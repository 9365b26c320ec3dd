"""What one task has added to a space, and how it is written to and read from a file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.lowrank import Factors
from nacre.space.container import decode, encode
from nacre.space.description import build, describe
from nacre.space.layout import Layout, counters, install, kind_of, stored_tensors
from nacre.space.plain import Inputs, check_inputs

_LATER: dict[str, Any] = {"encodings": {}, "preprocessing": None}  # what version 1 has room for and does not use


@dataclass(frozen=True)
class TaskRecord:
    """Everything a task needs beside the sum it stands on. Its tensors are on the CPU and never change."""

    shares: bool  # stands on all earlier tasks that share, and later ones stand on it; False: alone
    factors: dict[str, Factors]  # by layer; empty for a task learnt dense
    head: nn.Module
    private: dict[str, Tensor]  # norm tensors, biases, and whatever else this task keeps for itself
    frozen: dict[str, Tensor]  # what is frozen from this task on
    inputs: Inputs = None
    classes: tuple[str, ...] | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)  # further tensors that a method keeps with a task

    @property
    def ranks(self) -> dict[str, int]:
        return {name: layer.rank for name, layer in self.factors.items()}

    def numbers(self) -> dict[str, int]:
        """How many numbers each part holds."""
        parts = {
            "factors": [part for layer in self.factors.values() for part in (layer.U, layer.s, layer.V)],
            "head": list(stored_tensors(self.head).values()),
            "private": list(self.private.values()),
            "frozen": list(self.frozen.values()),
            "extra": list(self.extra.values()),
        }
        return {name: sum(tensor.numel() for tensor in part) for name, part in parts.items()}

    def encode(self, name: str) -> bytes:
        return encode(*self.parts(name))

    def parts(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors and the facts that make the record again."""
        named = {f"head/{key}": tensor for key, tensor in stored_tensors(self.head).items()}
        for group in ("private", "frozen", "extra"):
            named |= {f"{group}/{key}": tensor for key, tensor in getattr(self, group).items()}
        for layer, factors in self.factors.items():
            named |= {f"factors/{layer}/{part}": getattr(factors, part) for part in ("U", "s", "V")}
        facts = {
            "task": name,
            "base": "all" if self.shares else [],
            **_LATER,
            "head": describe(self.head),
            "inputs": self.inputs,
            "classes": list(self.classes) if self.classes is not None else None,
        }
        return named, facts

    @staticmethod
    def decode(data: bytes, path: Path, entry: Mapping[str, Any], layout: Layout, head: nn.Module | None) -> TaskRecord:
        """The record in a file; refused, with the file's name, where it is not what the index and layout say."""
        return TaskRecord.of_parts(*decode(data, path), path, entry, layout, head)

    @staticmethod
    def of_parts(
        named: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        path: Path,
        entry: Mapping[str, Any],
        layout: Layout,
        head: nn.Module | None,
    ) -> TaskRecord:
        try:
            if facts["task"] != entry["name"]:
                raise ValueError(f"it holds the task {facts['task']!r}")
            _check_supported(facts, path)
            check_inputs(facts["inputs"])
            groups = _groups(named)
            record = TaskRecord(
                shares=facts["base"] == "all",
                factors=_read_factors(groups.pop("factors", {}), entry["ranks"], layout),
                head=_read_head(facts["head"], groups.pop("head", {}), head, entry["name"]),
                inputs=facts["inputs"],
                classes=None if facts["classes"] is None else tuple(facts["classes"]),
                **{group: groups.pop(group, {}) for group in ("private", "frozen", "extra")},
            )
            if groups or record.shares is not entry["shares"]:
                raise ValueError("it holds other tensors than the index says")
            _check_backbone_tensors(record, layout)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise NacreError(f"{path} is damaged: {error}") from error
        return record


def _check_supported(facts: Mapping[str, Any], path: Path) -> None:
    """Refuses what the format has room for but this nacre would read wrongly."""
    used = {**{name: facts[name] for name in _LATER}, "base": facts["base"]}
    for name, value in used.items():
        if value != _LATER.get(name) and not (name == "base" and value in ("all", [])):
            raise NacreError(f"{path} uses {name} = {value!r}, which this nacre cannot read: install a newer nacre")


def _groups(named: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in named.items():
        group, _, key = name.partition("/")
        groups.setdefault(group, {})[key] = tensor
    return groups


def _read_factors(named: Mapping[str, Tensor], ranks: Mapping[str, int], layout: Layout) -> dict[str, Factors]:
    factors = {}
    for name in ranks:
        U, s, V = (named[f"{name}/{part}"] for part in ("U", "s", "V"))
        out, rest = layout.layers[name].matrix
        shapes = (tuple(U.shape), tuple(s.shape), tuple(V.shape))
        rank = ranks[name]
        if shapes != ((out, rank), (rank,), (rest, rank)) or {U.dtype, s.dtype, V.dtype} != {torch.float32}:
            raise ValueError(f"the factors of layer {name!r} do not fit a matrix {(out, rest)} at rank {rank}")
        factors[name] = Factors(U, s, V)
    if len(named) != 3 * len(factors) or (factors and list(factors) != list(layout.layers)):
        raise ValueError("it holds factors of other layers than the network's")
    return factors


def _check_backbone_tensors(record: TaskRecord, layout: Layout) -> None:
    """Refuses tensors that the backbone does not have, or the lack of one that the task must bring."""
    must = dict(layout.private)
    if not record.shares:
        must |= layout.frozen | layout.constant | ({} if record.factors else layout.weights)
    may = must | layout.constant
    shared = layout.frozen | layout.constant if record.frozen else {}
    own = {name: kind_of(tensor) for name, tensor in record.private.items()}
    if not (must.items() <= own.items() <= may.items()):
        raise ValueError(f"it holds the tensors {sorted(own)}, the network has {sorted(must)}")
    if {name: kind_of(tensor) for name, tensor in record.frozen.items()} != shared:
        raise ValueError(f"it freezes {sorted(record.frozen)}, the network has {sorted(shared)}")


def _build_head(described: Any) -> nn.Module:
    try:
        return build(described)
    except NacreError as error:
        raise ValueError(str(error)) from error


def _read_head(described: Any, named: dict[str, Tensor], given: nn.Module | None, task: str) -> nn.Module:
    if described is None and given is None:
        raise NacreError(
            f"the head of task {task!r} is a module of your own: load the space with heads={{{task!r}: that module}}"
        )
    head = _build_head(described) if described is not None else copy.deepcopy(cast(nn.Module, given))
    expected = stored_tensors(head)
    kinds = {name: kind_of(tensor) for name, tensor in expected.items()}
    stored = {name: kind_of(tensor) for name, tensor in named.items()}
    if kinds != stored:
        raise ValueError(f"the head has the tensors {kinds}, stored are {stored}")
    install(head, named | counters(head))
    return head.eval()
