"""What every export has: the network, a batch to trace it with, the folder it goes to, and the facts beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nacre.errors import NacreError
from nacre.export.preprocessing import preprocessing_of
from nacre.space import SharedSpace
from nacre.space.container import canonical_json
from nacre.space.naming import as_path
from nacre.space.optimising import Optimize
from nacre.space.plain import example_inputs
from nacre.space.store import replace_file
from nacre.trees import Tree, map_leaves

_TRACED = 2  # examples in a traced batch: one or none would be taken for a constant


@dataclass(frozen=True)
class Exported:
    """A task on its way out."""

    network: nn.Module  # on the CPU
    example: Tree
    facts: Mapping[str, Any]  # what is written beside
    free: Mapping[int, str] = field(default_factory=lambda: {0: "batch"})  # the axes of any extent, with their names

    @property
    def axes(self) -> tuple[Any]:
        """The free axes of every input, as torch's exporters want them."""
        return (map_leaves(lambda _: dict(self.free), self.example),)  # type: ignore[arg-type,return-value]


def prepared(space: SharedSpace, task: str, optimize: Optimize | None) -> Exported:
    """The network and facts of a task."""
    inputs = space.record(task).inputs
    example = example_inputs(inputs, _TRACED)
    classes = space.record(task).classes
    facts = {
        "task": task,
        "classes": list(classes) if classes is not None else None,
        "inputs": inputs,
        "preprocessing": preprocessing_of(space),
    }
    network = space.network(task, optimize=optimize).cpu()
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # files have no other layout
    return Exported(network, example, facts)


def target(out: str | Path, suffix: str) -> Path:
    """The file to write, in a folder that exists, with the suffix that its kind has."""
    path = as_path(out)
    if path.suffix != suffix:
        raise NacreError(f"the file is called something{suffix}; got {str(path)!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_facts(beside: Path, facts: Mapping[str, Any]) -> None:
    """JSON under the name of an exported file, for whoever runs it."""
    replace_file(beside.with_suffix(".json"), (canonical_json(facts) + "\n").encode())


def input_names(example: Tree) -> list[str]:
    """Names for the inputs of a graph: the keys of a dict, else one name with numbers."""
    if isinstance(example, Mapping):
        return list(example)
    return [f"input_{number}" for number in range(len(example))] if isinstance(example, list | tuple) else ["input"]
