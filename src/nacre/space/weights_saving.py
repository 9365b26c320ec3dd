"""Weights to and from their file: what stands in it under which name, and what must be given to load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.space import rewritten
from nacre.space.description import describe
from nacre.space.examples import Memory
from nacre.space.layout import Layout, kind_of
from nacre.space.plain import Features
from nacre.space.record import TaskRecord
from nacre.space.saving import check_heads, features_of, template_of
from nacre.space.template import Template

if TYPE_CHECKING:
    from nacre.space.weights import Weights


def save(weights: Weights, folder: Path) -> None:
    weights._disk = rewritten.write(folder.absolute(), *_parts(weights))


def _parts(weights: Weights) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the facts of the file."""
    backbone, features = weights._template.module, weights.features
    remembered, memory = weights.memory.parts()
    groups = {"shared": weights.shared, "state": weights.state, "memory": remembered}
    tasks = []
    for place, task in enumerate(weights.tasks):
        own, facts = weights.record(task).parts(task)
        groups[f"tasks/{place}"] = own
        size = asdict(weights.size(task))
        tasks.append({"name": task, "created": weights._created[task], "size": size, "record": facts})
    named = {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}
    return named, {
        "network": {"class": type(backbone).__qualname__, "description": describe(backbone)},
        "features": features if isinstance(features, str | int | None) else {"function": True},
        "layout": weights._layout.to_json(),
        "facts": weights.facts,
        "memory": memory,
        "size": asdict(replace(weights.size(), disk=None)),
        "tasks": tasks,
    }


def load(
    weights: Weights, folder: Path, backbone: nn.Module | None, features: Features, heads: Mapping[str, nn.Module]
) -> None:
    """Fills in what was saved in a folder."""
    folder = folder.absolute()
    named, facts = rewritten.read(folder)
    check_heads(heads, [entry["name"] for entry in facts["tasks"]])
    path = folder / rewritten.FILE
    try:
        layout = Layout.from_json(facts["layout"])
        described, of_class = facts["network"]["description"], str(facts["network"]["class"])
        template = Template(template_of(folder, described, of_class, backbone, layout), layout)
        given = next(backbone.parameters(), None) if backbone is not None else None
        weights.device = given.device if given is not None else torch.device("cpu")
        weights._begin(template, features_of(folder, facts["features"], features))
        weights.facts = dict(facts["facts"])
        weights.shared, weights.state = _group(named, "shared/"), _group(named, "state/")
        if {name: kind_of(value) for name, value in weights.shared.items()} != weights.kinds:
            raise ValueError("it holds other weights than the network's")
        weights.memory = Memory.of_parts(_group(named, "memory/"), facts["memory"])
        for place, entry in enumerate(facts["tasks"]):
            task, own = str(entry["name"]), _group(named, f"tasks/{place}/")
            said = {"name": task, "ranks": {}, "shares": True}
            weights._created[task] = str(entry["created"])
            learnt = weights.template_of(task).layout
            weights._records[task] = TaskRecord.of_parts(own, entry["record"], path, said, learnt, heads.get(task))
            weights.masks(task)  # one of another size is refused now
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise NacreError(f"{path} is damaged: {error}") from error
    weights._disk = path.stat().st_size


def _group(named: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name.removeprefix(start): value for name, value in named.items() if name.startswith(start)}
