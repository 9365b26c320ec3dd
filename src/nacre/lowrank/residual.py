"""The low-rank residual of a weight: weight = frozen shared sum + U diag(s) V^T, on any torch layer that has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nacre.errors import NacreError
from nacre.lowrank.factors import Factors, matrix_shape

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
PACKED = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")  # of nn.MultiheadAttention

Predicate = Callable[[str, nn.Module], bool]


@dataclass(frozen=True)
class Layer:
    """One weight tensor of a backbone that is factorised, and every place it stands in (tied weights)."""

    name: str  # the module's name; with the tensor's where that is not `weight`
    places: tuple[tuple[str, str], ...]  # (module name, tensor name)
    shape: tuple[int, ...]

    @property
    def matrix(self) -> tuple[int, int]:
        return matrix_shape(self.shape)

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(f"{module}.{tensor}".lstrip(".") for module, tensor in self.places)


def find_layers(
    backbone: nn.Module, include: Predicate | None = None, exclude: Predicate | None = None
) -> dict[str, Layer]:
    """The weights of a network that have a low-rank residual, by name, in the network's order.

    >>> list(find_layers(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))))
    ['0', '2']
    """
    weights: dict[int, nn.Parameter] = {}  # by identity: a tied weight stands in several places
    places: dict[int, list[tuple[str, str]]] = {}
    chosen: set[int] = set()
    for name, module in backbone.named_modules():
        for tensor_name, weight in module._parameters.items():
            if weight is None:
                continue
            weights[id(weight)] = weight
            places.setdefault(id(weight), []).append((name, tensor_name))
            wanted = (include is None or include(name, module)) and not (exclude and exclude(name, module))
            if wanted and _has_residual(module, tensor_name):
                chosen.add(id(weight))
    layers = (
        Layer(_layer_name(spots), tuple(spots), tuple(weights[key].shape))
        for key, spots in places.items()
        if key in chosen
    )
    return {layer.name: layer for layer in layers}


def _has_residual(module: nn.Module, tensor_name: str) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return tensor_name in PACKED
    return isinstance(module, LAYERS) and tensor_name == "weight"


def _layer_name(places: list[tuple[str, str]]) -> str:
    module, tensor = next((place for place in places if place[1] == "weight"), places[0])
    if tensor == "weight" and module:
        return module
    return f"{module}.{tensor}".lstrip(".")


class Residual(nn.Module):
    """A parametrization: takes the frozen shared sum of a weight, gives it with the new factors added."""

    def __init__(self, layer: str, factors: Factors) -> None:
        super().__init__()
        self.layer = layer
        self.load(factors)

    def load(self, factors: Factors) -> None:
        self.U, self.s, self.V = (nn.Parameter(part.detach().clone()) for part in (factors.U, factors.s, factors.V))

    def factors(self) -> Factors:
        return Factors(self.U, self.s, self.V)

    def forward(self, shared: Tensor) -> Tensor:
        return add_factors(shared, self.factors())


def add_factors(shared: Tensor, factors: Factors) -> Tensor:
    """shared + U diag(s) V^T in the weight's own shape. The one place where weights are summed, so the bits agree.

    float32 even under autocast, the user's too: a sum rounded to bf16 would be learnt around, or be other bits.
    """
    if factors.rank == 0:
        return shared
    with torch.autocast(shared.device.type, enabled=False):
        return shared + factors.weight().view(shared.shape)


def attach(backbone: nn.Module, layer: Layer, shared: Tensor, factors: Factors) -> None:
    """Replaces a weight, in every place it stands, by the frozen `shared` plus trainable factors."""
    residual = Residual(layer.name, factors)
    for module_name, tensor_name in layer.places:
        module = backbone.get_submodule(module_name)
        del module._parameters[tensor_name]
        module.register_buffer(tensor_name, shared)  # a buffer: no optimiser or average can touch it
        parametrize.register_parametrization(module, tensor_name, residual, unsafe=True)


def residuals(network: nn.Module) -> dict[str, Residual]:
    """The residuals in a network (also one wrapped by DDP or torch.compile), by layer name, in the network's order."""
    found: dict[str, Residual] = {}
    for module in network.modules():
        # asked for at their module, since modules() gives what is inside of it first: out_proj before in_proj_weight
        if parametrize.is_parametrized(module):
            parts = cast(nn.ModuleDict, module.parametrizations).modules()
            found |= {part.layer: part for part in parts if isinstance(part, Residual) and part.layer not in found}
    return found


def factors(network: nn.Module) -> dict[str, Factors]:
    """The trainable factors in a network, by layer name."""
    return {name: residual.factors() for name, residual in residuals(network).items()}


def load_factors(network: nn.Module, new: Mapping[str, Factors]) -> None:
    """Sets factors by layer name, at any rank; refused whole if one does not fit."""
    present = residuals(network)
    for name, value in new.items():
        if name not in present:
            raise NacreError(f"no factorised layer is called {name!r}; the layers are {', '.join(present)}")
        if not isinstance(value, Factors):
            raise NacreError(f"layer {name!r} takes nacre.Factors; got {value!r:.80}")
        if value.shape != present[name].factors().shape:
            raise NacreError(
                f"the weight of layer {name!r} is a matrix {present[name].factors().shape}; "
                f"got factors of a matrix {value.shape}"
            )
    for name, value in new.items():
        like = present[name].U
        present[name].load(Factors(*(part.to(like) for part in (value.U, value.s, value.V))))
