"""Where a task's bytes go, part by part and layer by layer, and what would make it smaller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nacre.lowrank import rank_at_energy
from nacre.space.encodings import Dtypes, saved
from nacre.space.saving import PARTS

ENERGIES = (1e-3, 1e-2)  # shares of the squared singular values that a deeper cut might give up
_LARGE = 0.5  # of a task's bytes: a part that takes more is worth a word
_WORTH = 0.1  # and a saving of at least this share
_INT8: Dtypes = {"factors": "int8", "head": "int8"}


@dataclass(frozen=True)
class Spending:
    """The bytes of a task's file: by part (the rest is names and shapes), of the factors by layer, what the factors
    would take if they gave up some of their energy, and what factors and head would save as int8."""

    parts: dict[str, int]
    layers: dict[str, int]
    cut: dict[str, int]  # by the share of energy given up
    int8: int  # nothing where they are in fewer bits already

    @staticmethod
    def of(tensors: Mapping[str, Tensor], names: Iterable[str], file_bytes: int) -> Spending:
        """Counted from the tensors as they are stored, in whatever type; the layers' names in their order."""
        groups = {name.partition("/")[0] for name in tensors}
        parts = {part: 0 for part in (*PARTS, *sorted(groups - set(PARTS))) if part in groups}
        layers = dict.fromkeys(names, 0)
        values: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            group, _, key = name.partition("/")
            parts[group] += tensor.nbytes
            if group == "factors":
                layer, _, factor = key.rpartition("/")
                layers[layer] += tensor.nbytes
                if factor == "s":
                    values[layer] = tensor.float()
        parts["names"] = file_bytes - sum(parts.values())
        cut = {f"{energy:g}": sum(_at(energy, layers[name], s) for name, s in values.items()) for energy in ENERGIES}
        plain = all(tensor.dtype == torch.float32 for name, tensor in tensors.items() if name.startswith("factors/"))
        return Spending(parts, layers, cut, sum(saved(tensors, _INT8).values()) if plain and values else 0)


def _at(energy: float, layer_bytes: int, s: Tensor) -> int:
    """What a layer would take: every rank of it takes as much."""
    return layer_bytes * rank_at_energy(s, energy) // len(s) if len(s) else 0


def suggestions(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """What would make a store smaller, in sentences; nothing where nothing would save a tenth."""
    said: list[str] = []
    *earlier, last = [_deeper_cut(task) for task in tasks] or [None]
    if last is not None:
        energy, saved, left = last
        task = tasks[-1]
        most = max(task["layers"], key=task["layers"].__getitem__)
        said.append(
            f"{task['task']}: {100 * energy:g} % of its squared singular values take {saved:,} of its "
            f"{task['bytes_on_disk']:,} bytes (most of its factors are in {most}): drop it and learn it again with "
            f"--budget {left // 1000 + 1}KB, and see what that costs in accuracy"
        )
    if found := {task["task"]: cut[1] for task, cut in zip(tasks, earlier, strict=False) if cut is not None}:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        said.append(
            f"{next(iter(found))}{more}: a deeper cut would have saved {sum(found.values()):,} bytes. What was learnt "
            "earlier stays as it is; --budget keeps the next task small"
        )
    return [*said, *_fewer_bits(tasks), *_large_heads(tasks)]


def _deeper_cut(task: Mapping[str, Any]) -> tuple[float, int, int] | None:
    """The shallowest further cut that is worth it: the energy it gives up, the bytes it saves, those that are left."""
    factors = task["parts"].get("factors", 0)
    for energy, left in task["cut"].items():
        if factors - left >= _WORTH * task["bytes_on_disk"]:
            return float(energy), factors - left, left
    return None


def _fewer_bits(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """What int8 would save of the last task; the others stay as they were stored."""
    if not tasks or tasks[-1]["int8"] < _WORTH * tasks[-1]["bytes_on_disk"]:
        return []
    last = tasks[-1]
    return [
        f"{last['task']}: its factors and head as int8 would save {last['int8']:,} of its {last['bytes_on_disk']:,} "
        "bytes: drop it and learn it again with --dtype int8, and see what that costs in accuracy"
    ]


def _large_heads(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    large = [task for task in tasks if task["parts"].get("head", 0) > _LARGE * task["bytes_on_disk"]]
    if not large:
        return []
    most = max(large, key=lambda task: task["parts"]["head"])
    return [
        f"{most['task']}: {most['parts']['head']:,} of its {most['bytes_on_disk']:,} bytes are its head, a number for "
        "every feature and class: smaller pictures (--size, for a new store) or a network with fewer features make less"
    ]
