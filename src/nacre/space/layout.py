"""Which tensors of a backbone are factorised, which belong to a task, and which are frozen after the first task."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from nacre.errors import NacreError
from nacre.lowrank import Layer, Predicate, find_layers
from nacre.space.container import all_finite
from nacre.trees import explained

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
COUNTER = "num_batches_tracked"  # not needed at inference: neither stored nor counted


Kinds = dict[str, tuple[str, tuple[int, ...]]]  # type and shape of tensors, by name


@dataclass(frozen=True)
class Layout:
    """A backbone's tensors, by what becomes of them."""

    layers: dict[str, Layer]  # factorised
    private: Kinds  # each task its own: norm layers, biases
    frozen: Kinds  # learnt with the first task, frozen afterwards: embeddings, tokens
    constant: Kinds  # buffers outside norm layers: stored with a task only if it changed them
    fixed: tuple[str, ...] = ()  # parameters that came with requires_grad=False: no task trains them
    inherited: frozenset[str] = frozenset()  # those of `frozen` that every task takes from the base as they are

    @staticmethod
    def of(
        backbone: nn.Module,
        include: Predicate | None = None,
        exclude: Predicate | None = None,
        private: Predicate | None = None,
    ) -> Layout:
        """The layout of a network; `private` names further modules whose tensors each task keeps for itself."""
        check_backbone(backbone)
        for option, chosen in (("include", include), ("exclude", exclude), ("private", private)):
            if chosen is not None and not callable(chosen):
                raise NacreError(f"{option}= is a function of (name, module); got {chosen!r:.80}")
        layers = find_layers(backbone, include, exclude)
        if not layers:
            raise NacreError(
                f"nothing to factorise in {type(backbone).__name__}: it has no Linear, convolution or "
                "MultiheadAttention weight" + (" that include= and exclude= let through" if include or exclude else "")
            )
        factorised = {tensor for layer in layers.values() for tensor in layer.tensors}
        modules = dict(backbone.named_modules())
        own: Kinds = {}
        rest: dict[str, Kinds] = {"parameter": {}, "buffer": {}}
        present = tensors(backbone)
        for kind, name in _tensor_names(backbone):
            owner, _, tensor = name.rpartition(".")
            if name in factorised or tensor == COUNTER:
                continue
            module = modules[owner]
            bias = tensor.startswith("bias") or tensor.endswith("bias")  # LSTM: bias_ih_l0
            if is_norm(module) or bias or (private is not None and private(owner, module)):
                own[name] = kind_of(present[name])
            else:
                rest[kind][name] = kind_of(present[name])
        fixed = [name for name, parameter in backbone.named_parameters() if not parameter.requires_grad]
        untrained = tuple(name for name in fixed if name not in factorised)
        return Layout(layers, own, rest["parameter"], rest["buffer"], untrained)

    def on_base(self) -> Layout:
        """The layout where tasks lie on the backbone's own weights: what no task trains need not be kept with one."""
        return replace(self, inherited=frozenset(self.fixed) & frozenset(self.frozen))

    @property
    def weights(self) -> Kinds:
        """The factorised weights themselves, each under its first name."""
        return {layer.tensors[0]: ("float32", layer.shape) for layer in self.layers.values()}

    @property
    def base_numbers(self) -> int:
        """How many numbers of the backbone's own every task stands on."""
        kinds = [*self.weights.values(), *(self.frozen[name] for name in self.inherited)]
        return sum(torch.Size(shape).numel() for _, shape in kinds)

    @property
    def common(self) -> Kinds:
        """All tensors but the private ones: what tasks have in common that train one set of weights."""
        return self.weights | self.frozen | self.constant

    @property
    def everything(self) -> Kinds:
        """All tensors that decide what the backbone computes, tied ones under their first name."""
        return self.weights | self.private | self.frozen | self.constant

    def of_shapes(self, module: nn.Module) -> Layout:
        """The layout of a module that has the same tensors in other shapes."""
        kinds = {name: kind_of(tensor) for name, tensor in tensors(module).items()}
        layers = {name: replace(layer, shape=kinds[layer.tensors[0]][1]) for name, layer in self.layers.items()}
        private, frozen, constant = ({name: kinds[name] for name in getattr(self, group)} for group in GROUPS)
        return Layout(layers, private, frozen, constant, self.fixed)

    def to_json(self) -> dict[str, Any]:
        return {
            "layers": [
                {"name": layer.name, "places": [list(place) for place in layer.places], "shape": list(layer.shape)}
                for layer in self.layers.values()
            ],
            **{group: [[name, *kind] for name, kind in getattr(self, group).items()] for group in GROUPS},
            "fixed": list(self.fixed),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> Layout:
        layers = [
            Layer(str(entry["name"]), tuple((str(m), str(t)) for m, t in entry["places"]), tuple(entry["shape"]))
            for entry in data["layers"]
        ]
        private, frozen, constant = (
            {str(name): (str(kind), tuple(shape)) for name, kind, shape in data[group]} for group in GROUPS
        )
        for layer in layers:
            if not layer.places or len(layer.shape) < 2 or not all(type(extent) is int for extent in layer.shape):
                raise ValueError(f"layer {layer.name!r} has the shape {layer.shape} and stands in {layer.places}")
        fixed = tuple(str(name) for name in data["fixed"])
        return Layout({layer.name: layer for layer in layers}, private, frozen, constant, fixed)

    def check(self, backbone: nn.Module) -> None:
        """Refuses a backbone whose tensors are not the ones this layout names."""
        present = {name: kind_of(tensor) for name, tensor in tensors(backbone).items()}
        wanted = {name: ("float32", layer.shape) for layer in self.layers.values() for name in layer.tensors}
        for name, kind in {**wanted, **self.private, **self.frozen, **self.constant}.items():
            if present.get(name) != kind:
                came = present.get(name, "no such tensor")
                raise NacreError(f"this backbone does not fit the space: {name} should be {kind}, it has {came}")
        self._check_ties(tensors(backbone))

    def _check_ties(self, present: Mapping[str, Tensor]) -> None:
        """Refuses further tensors, unless they are ties to known ones, and other ties than the layout's."""
        first = (*self.weights, *self.private, *self.frozen, *self.constant)
        known = {id(present[name]): name for name in first}
        if len(known) < len(first):
            raise NacreError("this backbone does not fit the space: it ties tensors that are separate there")
        ties = {name: layer.tensors[0] for layer in self.layers.values() for name in layer.tensors}
        for name, tensor in present.items():
            owner = known.get(id(tensor))
            if name in ties and owner != ties[name]:
                raise NacreError(f"this backbone does not fit the space: {name} should be tied to {ties[name]}")
            if owner is None and not _is_counter(name):
                raise NacreError(f"this backbone does not fit the space, which has no {name}")


GROUPS = ("private", "frozen", "constant")


def kind_of(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def is_norm(module: nn.Module) -> bool:
    """A norm layer of torch, or one that its class name says is one (transformers has its own)."""
    return isinstance(module, NORMS) or "norm" in type(module).__name__.lower()


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, tied ones under each of their names."""
    named: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    return named | {name: tensor for name, tensor, persistent in _buffers(module) if persistent}


def stored_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Those that are needed at inference: all but the counters."""
    return {name: tensor for name, tensor in tensors(module).items() if not _is_counter(name)}


def install(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Gives a module new tensors by name; what was tied stays tied. The module keeps the tensors themselves."""
    present = tensors(module)
    names: dict[int, list[str]] = {}
    for name, tensor in present.items():
        names.setdefault(id(tensor), []).append(name)
    for name, value in values.items():
        old = present[name]
        new = nn.Parameter(value, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else value
        for alias in names[id(old)]:
            owner, _, tensor_name = alias.rpartition(".")
            setattr(module.get_submodule(owner), tensor_name, new)


def counters(module: nn.Module) -> dict[str, Tensor]:
    """The batch counters of norm layers, at zero."""
    return {name: torch.zeros((), dtype=torch.long) for name in tensors(module) if _is_counter(name)}


def _is_counter(name: str) -> bool:
    return name.rpartition(".")[2] == COUNTER


def _tensor_names(module: nn.Module) -> list[tuple[str, str]]:
    """Every tensor once, tied ones under their first name."""
    parameters = [("parameter", name) for name, _ in module.named_parameters()]
    buffers: dict[int, str] = {}
    for name, buffer, persistent in _buffers(module):
        if persistent:
            buffers.setdefault(id(buffer), name)
    return parameters + [("buffer", name) for name in buffers.values()]


def _buffers(module: nn.Module) -> list[tuple[str, Tensor, bool]]:
    return [
        (f"{name}.{key}".lstrip("."), buffer, key not in part._non_persistent_buffers_set)
        for name, part in module.named_modules()
        for key, buffer in part._buffers.items()
        if buffer is not None
    ]


def check_backbone(backbone: Any) -> None:
    if not isinstance(backbone, nn.Module):
        raise NacreError(f"the backbone is a torch module that maps a batch to features; got {backbone!r:.80}")
    check_tensors(backbone)


def copy_of(module: nn.Module, what: str = "backbone") -> nn.Module:
    with explained(f"the {what} cannot be copied: this", module):
        return copy.deepcopy(module)


def check_tensors(module: nn.Module, what: str = "backbone") -> None:
    """Refuses a module that cannot be trained, or kept in float32."""
    prefix = "" if what == "backbone" else f"{what}."
    for name, tensor in ((prefix + name, tensor) for name, tensor in tensors(module).items()):
        if is_lazy(tensor):
            raise NacreError(f"{name} has no shape yet: run one batch through the lazy layers first")
        if tensor.is_meta:
            raise NacreError(f"{name} is on the device 'meta', which holds no numbers")
        if (tensor.is_floating_point() and tensor.dtype != torch.float32) or tensor.is_complex():
            raise NacreError(f"nacre learns in float32, but {name} is {tensor.dtype}: call {what}.float() first")
        if isinstance(tensor, nn.Parameter) and not all_finite(tensor):
            raise NacreError(f"{name} holds numbers that are not finite")
