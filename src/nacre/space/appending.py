"""What of a trained network becomes a task's record."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.lowrank import Dtype, Factors, rounded_factors
from nacre.space.container import all_finite
from nacre.space.layout import Kinds, Layout, tensors
from nacre.space.network import Network
from nacre.space.record import TaskRecord, round_head


def record_of(
    network: Network,
    layout: Layout,
    kept: Mapping[str, Tensor],
    classes: tuple[str, ...] | None,
    dtype: Dtype,
    head_dtype: Dtype,
) -> TaskRecord:
    """The record of a network; `kept` are the tensors that the base and the first task froze.

    In fewer bits than float32 the record holds the numbers that the file will say: what later tasks stand on is then
    the same before and after loading.
    """
    values = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors(network.backbone).items()}
    factors = {name: rounded_factors(layer.detach(), dtype) for name, layer in network.factors().items()}
    own, frozen = [*layout.private], {}
    _check_frozen(layout.inherited, kept, values)
    if not network.origin.shares:  # everything, so that nothing of other tasks is needed
        own += [*_kept(layout), *layout.constant, *(() if factors else layout.weights)]
    elif network.origin.base:
        own += _changed(layout, kept, values)
    else:
        frozen = {name: values[name] for name in (*_kept(layout), *layout.constant)}
    head = stored_head(network.head)
    round_head(head, head_dtype)
    private = {name: values[name] for name in own}
    check_numbers(factors, private | frozen, tensors(head), layout.constant)
    return TaskRecord(
        network.origin.shares,
        factors,
        head,
        private,
        frozen,
        network.inputs,
        classes,
        dtype=dtype if factors else "float32",
        head_dtype=head_dtype,
    )


def _kept(layout: Layout) -> list[str]:
    """The frozen tensors that are kept with a task, and not taken from the base."""
    return [name for name in layout.frozen if name not in layout.inherited]


def stored_head(trained: nn.Module) -> nn.Module:
    """A copy of a head as a record keeps it."""
    head = copy.deepcopy(trained).cpu().eval().requires_grad_(True)
    head.zero_grad(set_to_none=True)
    return head


def _changed(layout: Layout, kept: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> list[str]:
    """The buffers that this task changed; what is frozen since the first task must not have."""
    _check_frozen(layout.frozen, kept, values)
    return [name for name in layout.constant if not torch.equal(values[name], kept[name])]


def _check_frozen(names: Iterable[str], kept: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name in names:
        if not torch.equal(values[name], kept[name]):
            raise NacreError(f"{name} is frozen since the first task, but training changed it; nothing was appended")


def check_numbers(
    factors: Mapping[str, Factors], own: Mapping[str, Tensor], head: Mapping[str, Tensor], constant: Kinds
) -> None:
    named = {f"{layer}.{part}": getattr(f, part) for layer, f in factors.items() for part in ("U", "s", "V")}
    for name, tensor in {**named, **own, **{f"head.{key}": value for key, value in head.items()}}.items():
        infinite = name in constant and not tensor.isnan().any()  # an attention mask may be
        if not (all_finite(tensor) or infinite):
            raise NacreError(f"{name} holds numbers that are not finite; nothing was appended")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise NacreError(f"nacre keeps float32, but {name} is {tensor.dtype}; nothing was appended")
