"""Widening: a described chain of layers with more units between its inputs and its features."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

from nacre.errors import NacreError
from nacre.space.description import build, describe
from nacre.space.template import Template

Described = dict[str, Any]

_CONVS = (f"Conv{kind}{size}d" for kind in ("", "Transpose") for size in (1, 2, 3))
_LAYERS = {"Linear": ("in_features", "out_features"), **dict.fromkeys(_CONVS, ("in_channels", "out_channels"))}
_NORMS = tuple(f"{kind}Norm{size}d" for kind in ("Batch", "Instance") for size in (1, 2, 3))
_REFUSED = ("GroupNorm", "LayerNorm", "RMSNorm", "Embedding")  # units that are not counted one by one


def widened(template: Template, growth: float) -> Template:
    """A backbone whose hidden layers have sqrt(growth) times as many units, so about `growth` times as many weights.

    Its inputs and features stay as many as they are. It has shapes, and no numbers.
    """
    described = describe(template.module)
    if described is None or described["class"] != "Sequential":
        raise NacreError(
            f"a {type(template.module).__name__} cannot be widened: that takes an nn.Sequential of torch's own layers"
        )
    module = build(wider(described, growth))
    return Template(module, template.layout.of_shapes(module))


def wider(described: Described, growth: float) -> Described:
    """The description of a wider chain.

    >>> from torch import nn
    >>> chain = describe(nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 2)))
    >>> build(wider(chain, 1.5))[2]
    Linear(in_features=13, out_features=2, bias=True)
    """
    described = copy.deepcopy(described)
    chain = list(_chain(described))
    last = max((place for place, layer in enumerate(chain) if layer["class"] in _LAYERS), default=-1)
    new, old = 1, 1  # units of the last layer passed, now and before
    for place, layer in enumerate(chain):
        kind, arguments = layer["class"], layer["arguments"]
        if kind in _REFUSED or arguments.get("groups", 1) != 1:
            raise NacreError(f"a backbone with {kind} {'in groups ' if kind in _LAYERS else ''}cannot be widened")
        if kind in _LAYERS:
            takes, gives = _LAYERS[kind]
            arguments[takes] = arguments[takes] * new // old  # after a Flatten a multiple of the units
            old = arguments[gives]
            new = arguments[gives] = old if place == last else math.ceil(old * math.sqrt(growth))
        elif kind in _NORMS:
            arguments["num_features"] = arguments["num_features"] * new // old
    return described


def _chain(described: Described) -> Iterator[Described]:
    """The layers in the order that an input meets them."""
    if described["class"] != "Sequential":
        yield described
    for _, child in described.get("children", ()):
        yield from _chain(child)
