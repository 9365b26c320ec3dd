"""A task as a .pt2 file of torch.export, and its tensors as safetensors: neither of them holds a pickle."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from nacre.export.files import Exported, prepared, target, write_facts
from nacre.space import SharedSpace
from nacre.space.container import encode
from nacre.space.optimising import Optimize
from nacre.space.store import replace_file
from nacre.trees import map_leaves


def to_torch(space: SharedSpace, task: str, out: str | Path, *, optimize: Optimize | None = None) -> Path:
    """Writes OUT.pt2 for `torch.export.load`, OUT.safetensors with the same tensors, and OUT.json with what is said
    of the task. Batches may be of any size; all else is as the network was trained."""
    path, exported = target(out, ".pt2"), prepared(space, task, optimize)
    program = traced(exported)
    program.example_inputs = None  # the only part of the file that would be a pickle
    data = io.BytesIO()
    torch.export.save(program, data)
    replace_file(path, data.getvalue())
    replace_file(path.with_suffix(".safetensors"), encode(exported.network.state_dict(), exported.facts))
    write_facts(path, exported.facts)
    return path


def traced(exported: Exported) -> torch.export.ExportedProgram:
    """The network as a graph of torch's operators, for batches of any size."""
    named = {axis: torch.export.Dim(name) for axis, name in exported.free.items()}
    dynamic: Any = map_leaves(lambda _: named, exported.example)  # type: ignore[arg-type,return-value]
    with torch.no_grad():
        return torch.export.export(exported.network, (exported.example,), dynamic_shapes=(dynamic,))
