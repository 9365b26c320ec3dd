"""A task over a pretrained base as a LoRA adapter that PEFT loads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.lowrank import Factors
from nacre.lowrank.split import least
from nacre.networks.pretrained import describe
from nacre.space import SharedSpace
from nacre.space.layout import COUNTER, tensors
from nacre.space.naming import as_path
from nacre.space.store import replace_file

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # for which LoRA's two matrices are U diag(s) and V^T


@dataclass(frozen=True)
class Places:
    """What the parts of a task's network are called in the model that an adapter is laid on."""

    backbone: str  # before the names of the backbone's modules
    head: str

    @staticmethod
    def of(backbone: nn.Module) -> Places:
        """A model of transformers has its head where its classifier was; any other is what `network(task)` gives."""
        described = describe(backbone)
        head = described["arguments"]["without"] if described is not None else None
        return Places("", head) if head else Places("backbone.", "head")


@dataclass
class _Adapter:
    """What goes into the two files."""

    ranks: dict[str, int] = field(default_factory=dict)  # by module
    whole: list[str] = field(default_factory=list)  # modules carried with all their tensors
    biases: bool = False
    tensors: dict[str, Tensor] = field(default_factory=dict)


def to_peft(space: SharedSpace, task: str, folder: str | Path) -> Path:
    """Writes a task's residual as adapter_config.json and adapter_model.safetensors, for `PeftModel.from_pretrained`.

    The residual is that of the task and of all it stands on. Heads, norm layers and whatever LoRA has no form for
    (grouped and transposed convolutions, packed attention) are carried whole, as modules_to_save; biases as they are.
    """
    if space.base == "zero":
        raise NacreError(
            "an adapter lies on a pretrained base, but this space has base='zero': export to onnx or torch"
        )
    if not space.record(task).factors:
        raise NacreError(f"task {task!r} was learnt dense: it has no factors that an adapter could hold")
    folder = as_path(folder)
    backbone, network = space.backbone(), space.network(task).cpu()
    places = Places.of(backbone)
    adapter = _Adapter()
    learnt, head, factors = network.get_submodule("backbone"), network.get_submodule("head"), space.factors(task)
    if not places.backbone and not isinstance(head, nn.Linear):
        raise NacreError(f"the model of transformers has a linear classifier, task {task!r} a {type(head).__name__}")
    for name in _changed(backbone, learnt):
        _carry(adapter, name, learnt, factors, places)
    if not adapter.ranks:  # PEFT takes no adapter without a layer
        _add_layer(adapter, places.backbone + _first_layer(learnt), _nothing(learnt))
    _carry_whole(adapter, places.head, head)
    _close(adapter, backbone, learnt, places)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.detach().contiguous().clone() for name, tensor in adapter.tensors.items()}
    replace_file(folder / WEIGHTS, safetensors.torch.save(stored, metadata={"format": "pt"}))
    replace_file(folder / CONFIG, (json.dumps(_config(adapter, space.source), indent=2) + "\n").encode())
    return folder


def _changed(before: nn.Module, after: nn.Module) -> list[str]:
    """The tensors of a backbone that are not those of the base."""
    own, base = tensors(after), tensors(before)
    return [name for name in own if name.split(".")[-1] != COUNTER and not torch.equal(own[name], base[name].cpu())]


def _carry(adapter: _Adapter, name: str, learnt: nn.Module, factors: Mapping[str, Factors], places: Places) -> None:
    owner, _, tensor = name.rpartition(".")
    owner = _attention_around(owner, learnt) or owner
    module, place = learnt.get_submodule(owner), places.backbone + owner
    if tensor == "weight" and owner in factors and _has_form(module, learnt):
        _add_layer(adapter, place, _pair(least(factors[owner]), module))
    elif tensor == "bias" and isinstance(module, _LAYERS):
        adapter.biases = True
        adapter.tensors[f"{place}.bias"] = tensors(learnt)[name]
    elif isinstance(module, nn.MultiheadAttention):
        _carry_whole(adapter, place, module)
    elif any(module.children()):
        raise NacreError(
            f"{name} was learnt, and an adapter has no place for a tensor beside a module's layers: "
            "learn with requires_grad=False there, or export to onnx or torch"
        )
    else:
        _carry_whole(adapter, place, module)


def _attention_around(owner: str, learnt: nn.Module) -> str | None:
    """The attention that a module is or is a part of: its layers are not called, so none of them can be adapted."""
    names = owner.split(".")
    inside = (".".join(names[:depth]) for depth in range(1, len(names) + 1))
    return next((name for name in inside if isinstance(learnt.get_submodule(name), nn.MultiheadAttention)), None)


def _has_form(module: nn.Module, learnt: nn.Module) -> bool:
    weight = module.weight
    tied = sum(getattr(other, "weight", None) is weight for other in learnt.modules()) > 1
    return type(module) in _LAYERS and getattr(module, "groups", 1) == 1 and not tied


def _pair(factors: Factors, module: nn.Module) -> tuple[Tensor, Tensor]:
    """LoRA's A, as large as the layer with as many outputs as the rank, and B, of size 1 x 1."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    A = factors.V.T.reshape(factors.rank, *weight.shape[1:])
    return A, (factors.U * factors.s).view(weight.shape[0], factors.rank, *(1 for _ in weight.shape[2:]))


def _first_layer(learnt: nn.Module) -> str:
    for name, module in learnt.named_modules():
        if isinstance(module, _LAYERS) and _has_form(module, learnt) and not _attention_around(name, learnt):
            return str(name)
    raise NacreError("none of this network's layers can have a LoRA adapter: export to onnx or torch")


def _nothing(learnt: nn.Module) -> tuple[Tensor, Tensor]:
    module = learnt.get_submodule(_first_layer(learnt))
    assert isinstance(module.weight, Tensor)
    out, rest = module.weight.flatten(1).shape
    return _pair(Factors(torch.zeros(out, 1), torch.zeros(1), torch.zeros(rest, 1)), module)


def _add_layer(adapter: _Adapter, place: str, pair: tuple[Tensor, Tensor]) -> None:
    A, B = pair
    if not len(A):
        return
    adapter.ranks[place] = len(A)
    adapter.tensors |= {f"{place}.lora_A.weight": A, f"{place}.lora_B.weight": B}


def _carry_whole(adapter: _Adapter, place: str, module: nn.Module) -> None:
    if place not in adapter.whole:
        adapter.whole.append(place)
        adapter.tensors |= {f"{place}.{name}": tensor for name, tensor in module.state_dict().items()}


def _close(adapter: _Adapter, backbone: nn.Module, learnt: nn.Module, places: Places) -> None:
    """PEFT finds modules by the end of their names: carries along what it will find, and names tensors as it does."""
    for name, _ in backbone.named_modules():
        place = places.backbone + name
        if name and place not in adapter.whole and any(place.endswith(chosen) for chosen in adapter.whole):
            _carry_whole(adapter, place, learnt.get_submodule(name))
    for place in adapter.ranks:
        if f"{place}.bias" in adapter.tensors:
            adapter.tensors[f"{place}.base_layer.bias"] = adapter.tensors.pop(f"{place}.bias")
    adapter.tensors = {PREFIX + name: tensor for name, tensor in adapter.tensors.items()}


def _config(adapter: _Adapter, source: str | None) -> dict[str, Any]:
    most = max(adapter.ranks.values())
    pattern = {f"^{re.escape(place)}": rank for place, rank in adapter.ranks.items() if rank != most}
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": source.removeprefix("hf:") if source else None,
        "inference_mode": True,
        "r": most,
        "lora_alpha": most,  # a scale of alpha / r = 1
        "rank_pattern": pattern,
        "alpha_pattern": pattern,
        "target_modules": "|".join(re.escape(place) for place in adapter.ranks),  # the whole of a name
        "modules_to_save": adapter.whole,
        "bias": "all" if adapter.biases else "none",
        "lora_dropout": 0.0,
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
    }
