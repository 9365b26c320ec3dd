"""A LoRA adapter as a task of a space."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.export.adapter import CONFIG, PREFIX, WEIGHTS, Places
from nacre.lowrank import Factors
from nacre.lowrank.split import least
from nacre.space import SharedSpace
from nacre.space.layout import COUNTER, install, tensors
from nacre.space.naming import as_path
from nacre.trees import Tree


def from_peft(
    space: SharedSpace,
    name: str,
    folder: str | Path,
    *,
    head: nn.Module | None = None,
    classes: Sequence[str] | None = None,
    example: Tree = None,
) -> None:
    """Appends a LoRA adapter as a task that stands on the base alone.

    head: where the adapter does not carry a linear one. example: a batch of inputs, so that the task can be exported.
    """
    if space.base == "zero":
        raise NacreError("an adapter lies on a pretrained base, but this space has base='zero'")
    config, named = _read(as_path(folder))
    places = Places.of(space.backbone())
    factors = _lora_factors(config, named, places)
    head = _linear_head(named, places) if head is None else head
    unknown = set(factors) - set(space.layers)
    if unknown:
        raise NacreError(f"the adapter changes {', '.join(sorted(unknown))}, which this space does not factorise")
    network = space.expand(head, rank=0, sharing=False)
    network.load_factors(factors)
    _install_others(network.backbone, named, places)
    if example is not None:
        with torch.no_grad():
            network.eval()(example)
    space.append(name, network, classes=classes)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        named = safetensors.torch.load_file(folder / WEIGHTS)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise NacreError(f"{folder} holds no LoRA adapter in {CONFIG} and {WEIGHTS}: {error}") from error
    kind = config.get("peft_type")
    others = [option for option in ("use_dora", "fan_in_fan_out", "lora_bias", "megatron_config") if config.get(option)]
    if kind != "LORA" or others:
        raise NacreError(
            f"{folder} is no plain LoRA adapter: peft_type is {kind!r}, it uses {', '.join(others) or 'it'}"
        )
    return config, {name.removeprefix(PREFIX): tensor.float() for name, tensor in named.items()}


def _lora_factors(config: Mapping[str, Any], named: Mapping[str, Tensor], places: Places) -> dict[str, Factors]:
    found = {}
    other = [key for key in named if ".lora_" in key and not key.endswith((".lora_A.weight", ".lora_B.weight"))]
    if other:
        raise NacreError(f"the adapter changes {other[0].partition('.lora_')[0]} in a way that is no plain LoRA")
    for key, A in named.items():
        place, lora, _ = key.rpartition(".lora_A.weight")
        if lora:
            scale = _scale(config, place, len(A))
            s = torch.full((len(A),), scale)
            name = place.removeprefix(places.backbone)
            found[name] = least(Factors(named[f"{place}.lora_B.weight"].flatten(1), s, A.flatten(1).T))
    return found


def _scale(config: Mapping[str, Any], place: str, rank: int) -> float:
    alpha = float(config.get("lora_alpha") or 8)
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", place):
            alpha = float(value)
            break
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _linear_head(named: Mapping[str, Tensor], places: Places) -> nn.Linear:
    weight, bias = (named.get(f"{places.head}.{part}") for part in ("weight", "bias"))
    if weight is None or weight.dim() != 2:
        raise NacreError(f"the adapter carries no linear head {places.head}: give one with head=")
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    install(head, {"weight": weight} | ({"bias": bias} if bias is not None else {}))
    return head


def _install_others(backbone: nn.Module, named: Mapping[str, Tensor], places: Places) -> None:
    """Biases and the tensors of modules that the adapter carries whole."""
    present = tensors(backbone)
    others = {}
    for key, tensor in named.items():
        name = key.replace(".base_layer.", ".").removeprefix(places.backbone)
        if ".lora_" in key or key.startswith(f"{places.head}.") or name.split(".")[-1] == COUNTER:
            continue
        if name not in present:
            raise NacreError(f"the adapter carries {name}, which is no norm tensor or bias of this network")
        others[name] = tensor
    install(backbone, others)
