"""Progressive networks: a column beside frozen ones, each of whose layers hears what the same layer gets in those."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self, cast

import torch
from torch import Tensor, fx, nn

from nacre.space.multitask import MultitaskNetwork
from nacre.space.network import Origin

Heard = Sequence[Sequence[Tensor]]  # of every earlier column, what its layers got


class Adapter(nn.Module):
    """What a layer hears of earlier columns: U relu(V [a_1 h_1, a_2 h_2, ...]).

    h_j is what the same layer gets in column j, a_j a learnt number. V projects to no more units than the layer takes
    or gives, for maps as a convolution of size 1; U is such a layer itself.
    """

    def __init__(self, layer: nn.Module, columns: int, scale: float) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.empty(columns).uniform_(0, scale))
        self.V, self.U = _linear(layer, columns) if isinstance(layer, nn.Linear) else _convolution(layer, columns)
        self.relu = nn.ReLU()
        self.axis = -1 if isinstance(layer, nn.Linear) else 1

    def forward(self, heard: Sequence[Tensor]) -> Tensor:
        scaled = [self.scales[place] * each for place, each in enumerate(heard)]
        output: Tensor = self.U(self.relu(self.V(torch.cat(scaled, self.axis))))
        return output


def _linear(layer: nn.Linear, columns: int) -> tuple[nn.Module, nn.Module]:
    units = min(layer.in_features, layer.out_features)
    V = nn.Linear(columns * layer.in_features, units, bias=False)
    return V, nn.Linear(units, layer.out_features, bias=False)


def _convolution(layer: Any, columns: int) -> tuple[nn.Module, nn.Module]:
    kind, units = type(layer), min(layer.in_channels, layer.out_channels)
    how = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
    V = kind(columns * layer.in_channels, units, 1, bias=False)
    return V, kind(units, layer.out_channels, layer.kernel_size, bias=False, **how)


def hears(layer: nn.Module) -> bool:
    """Whether a layer has weights that an adapter can stand beside."""
    return isinstance(layer, nn.Linear) or type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_chain(module: nn.Module) -> bool:
    """Whether a module is no more than its parts, one after another."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def chain(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested Sequentials, in order."""
    if not is_chain(module) or not len(parts := cast(nn.Sequential, module)):
        yield module
        return
    for part in parts:  # one that stands there twice comes twice
        yield from chain(part)


def adapters_of(backbone: nn.Module, head: nn.Module, columns: int, scale: float) -> nn.ModuleDict:
    """An adapter for every layer that hears, by its number, and one for the head's first layer.

    Before any layer with parameters all columns have the same to say; there is none.
    """
    found: dict[str, nn.Module] = {}
    place, differ = 0, False
    for layer in (*chain(backbone), next(chain(head))):
        if hears(layer):
            if columns and differ:
                found[str(place)] = Adapter(layer, columns, scale)
            place += 1
        differ = differ or next(layer.parameters(), None) is not None
    return nn.ModuleDict(found)


def heard(layer: nn.Module, inputs: Any, place: int, adapters: nn.ModuleDict, earlier: Heard) -> Any:
    """What a layer makes of its inputs, and of what it hears of earlier columns."""
    output = layer(inputs)
    return output + adapters[str(place)]([column[place] for column in earlier]) if str(place) in adapters else output


def through(backbone: nn.Module, adapters: nn.ModuleDict, inputs: Any, earlier: Heard) -> list[Any]:
    """What every layer that hears gets in a column, and the features."""
    got: list[Any] = []
    for layer in chain(backbone):
        if hears(layer):
            got.append(inputs)
            inputs = heard(layer, inputs, len(got) - 1, adapters, earlier)
        else:
            inputs = layer(inputs)
    return [*got, inputs]


class Column(nn.Module):
    """A task's backbone and adapters; frozen, once the task is learnt."""

    def __init__(self, backbone: nn.Module, adapters: nn.ModuleDict) -> None:
        super().__init__()
        self.backbone, self.adapters = backbone, adapters


class Progressive(MultitaskNetwork):
    """A column beside the frozen ones before it, which no gradient reaches and which are never in training mode."""

    def __init__(
        self, backbone: nn.Module, head: nn.Module, origin: Origin, columns: Sequence[Column], adapters: nn.ModuleDict
    ) -> None:
        super().__init__(backbone, head, None, origin, (), [], None)
        self.columns = nn.ModuleList(columns).requires_grad_(False).eval()
        self.adapters = adapters

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.columns.eval()
        return self

    def forward(self, inputs: Any) -> Any:
        self.look_at(inputs)
        return self.logits(inputs)

    def features(self, inputs: Any, task: str | None = None) -> Any:
        if task is not None:
            self.own(task)  # which is refused: earlier columns are not trained here
        return self.columns_through(inputs)[-1][-1]

    def logits(self, inputs: Any) -> Any:
        *earlier, (*got, features) = self.columns_through(inputs)
        first, *rest = chain(self.head)
        output = heard(first, features, len(got), self.adapters, earlier)
        for layer in rest:
            output = layer(output)
        return output

    def columns_through(self, inputs: Any) -> list[list[Any]]:
        """Of every column what its layers get, and its features; the one that is trained comes last."""
        found: list[list[Any]] = []
        with torch.no_grad():
            for column in cast(Sequence[Column], self.columns):
                found.append(through(column.backbone, column.adapters, inputs, found))
        return [*found, through(self.backbone, self.adapters, inputs, found)]


class Tracer(fx.Tracer):
    """Writes down what a progressive network computes; every layer stays what it is."""

    traced_func_name = "logits"

    def is_leaf_module(self, m: nn.Module, _: str) -> bool:
        return not isinstance(m, Adapter)
