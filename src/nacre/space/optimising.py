"""A task's network in its low-rank form: layers whose rank pays are run as two smaller ones."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.lowrank import Factors, Layer
from nacre.lowrank.split import least, pays, split, splits
from nacre.space.plain import Inputs, example_inputs

Optimize = Literal["counted", "measured"]
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)  # read weights of their layers
_BATCH, _ROUNDS = 16, 15
_GAIN = 0.97  # what is measured must take at most this share of the time of what it is to replace
_COUNT = 2 / 3  # and what is counted of the multiplications: above it a second layer's traffic eats the gain (results)


def check_optimize(optimize: object) -> None:
    if optimize is not None and optimize not in get_args(Optimize):
        raise NacreError(f"optimize= is 'counted', 'measured' or None; got {optimize!r:.80}")


def optimised(
    network: nn.Module,
    layers: Mapping[str, Layer],
    factors: Mapping[str, Factors],
    how: Optimize,
    inputs: Inputs,
) -> nn.Module:
    """The network with layers in place that take less; `factors`: the whole weight of every layer.

    counted: where two layers take at most two thirds of the multiplications of one. measured: where they take fewer
    and are faster, on this machine's CPU, with batches of 16 inputs of the shape that the network was trained on.
    Convolutions over pictures lie in memory channels last then: of few channels they are faster so, and so are the
    layers between them. Measured, only where that is true.
    """
    chosen: dict[str, nn.Sequential] = {}
    for name, layer in layers.items():
        place = f"backbone.{layer.places[0][0]}".removesuffix(".")
        if len(layer.places) == 1 and _may_split(network, place):
            module, fewest = network.get_submodule(place), least(factors[name])
            if fewest.rank == 0:  # there is no layer without outputs: a column of zeros
                fewest = Factors(*(torch.zeros(*shape) for shape in ((layer.matrix[0], 1), (1,), (layer.matrix[1], 1))))
            if pays(module, fewest.rank, _COUNT if how == "counted" else 1.0):
                chosen[place] = split(module, fewest)
    if how == "measured":
        chosen = _faster(network, chosen, inputs)
    for place, two in chosen.items():
        network.set_submodule(place, two)
    return _laid_out(network, inputs) if how == "measured" else _channels_last(network) if chosen else network


def _may_split(network: nn.Module, place: str) -> bool:
    names = place.split(".")
    owners = [network.get_submodule(".".join(names[:depth])) for depth in range(1, len(names))]
    return splits(network.get_submodule(place)) and not any(isinstance(owner, _FUSED) for owner in owners)


def _channels_last(network: nn.Module) -> nn.Module:
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _laid_out(network: nn.Module, inputs: Inputs) -> nn.Module:
    """The network in the faster of two layouts."""
    other = _channels_last(copy.deepcopy(network))
    return other if _ratio(other, network, example_inputs(inputs, _BATCH)) < _GAIN else network


def _faster(network: nn.Module, chosen: Mapping[str, nn.Sequential], inputs: Inputs) -> dict[str, nn.Sequential]:
    """Those that are faster than the one layer which they are for."""
    if inputs is None:
        raise NacreError("optimize='measured' needs the inputs of the task, but its network has never seen any")
    seen: dict[str, Tensor] = {}

    def remember(place: str) -> Any:
        return lambda _, given: seen.setdefault(place, given[0].detach())

    hooks = [network.get_submodule(place).register_forward_pre_hook(remember(place)) for place in chosen]
    try:
        with torch.no_grad():
            network(example_inputs(inputs, _BATCH))
    finally:
        for hook in hooks:
            hook.remove()
    return {
        place: two
        for place, two in chosen.items()
        if place in seen and _ratio(two, network.get_submodule(place), seen[place]) < _GAIN
    }


def _ratio(two: nn.Module, one: nn.Module, given: Any) -> float:
    """How long a module takes beside another: medians over rounds in which both run in turn."""
    times: dict[nn.Module, list[float]] = {two: [], one: []}
    with torch.no_grad():
        for number in range(_ROUNDS + 3):
            for module, taken in times.items():
                begun = time.perf_counter()
                module(given)
                if number >= 3:  # the first runs find memory and choose kernels
                    taken.append(time.perf_counter() - begun)
    return statistics.median(times[two]) / statistics.median(times[one])
