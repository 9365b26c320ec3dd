"""A task over a pretrained base as a LoRA adapter that PEFT loads, and a LoRA adapter as a task."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
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
from nacre.space.layout import COUNTER, install, tensors
from nacre.space.naming import as_path
from nacre.space.store import replace_file
from nacre.trees import Tree

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
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
    learnt = network.get_submodule("backbone")
    for name in _changed(backbone, learnt):
        _carry(adapter, name, learnt, space.factors(task), places)
    if not adapter.ranks:  # PEFT takes no adapter without a layer
        _add_layer(adapter, places.backbone + _first_layer(learnt), _nothing(learnt))
    _carry_whole(adapter, places.head, network.get_submodule("head"))
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
    module, place = learnt.get_submodule(owner), places.backbone + owner
    if tensor == "weight" and owner in factors and _has_form(module, learnt):
        _add_layer(adapter, place, _pair(least(factors[owner]), module))
    elif tensor == "bias" and isinstance(module, _LAYERS):
        adapter.biases = True
        adapter.tensors[f"{place}.bias"] = tensors(learnt)[name]
    elif any(module.children()) and not isinstance(module, nn.MultiheadAttention):
        raise NacreError(
            f"{name} was learnt, and an adapter has no place for a tensor beside a module's layers: "
            "learn with requires_grad=False there, or export to onnx or torch"
        )
    else:
        _carry_whole(adapter, place, module)


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
        if isinstance(module, _LAYERS) and _has_form(module, learnt):
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
    adapter.tensors = {_PREFIX + name: tensor for name, tensor in adapter.tensors.items()}


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
    return config, {name.removeprefix(_PREFIX): tensor.float() for name, tensor in named.items()}


def _lora_factors(config: Mapping[str, Any], named: Mapping[str, Tensor], places: Places) -> dict[str, Factors]:
    found = {}
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
