"""PNN: a network for every task, which also hears what all earlier ones make of the input, layer by layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, fx, nn

from nacre.errors import NacreError
from nacre.methods.checks import check_number
from nacre.space import MultitaskNetwork, Weights
from nacre.space.layout import install, tensors
from nacre.space.network import Origin
from nacre.training import Task, fit

Heard = Sequence[Sequence[Tensor]]  # of every earlier column, what its layers got


@dataclass(frozen=True)
class PNN:
    """Progressive neural networks (Rusu et al., 2016): a column a task, adapters to the frozen columns before it.

    scale: what is heard of an earlier column is multiplied by a learnt number, at first drawn between 0 and this.
    """

    scale: float = 0.1

    name: ClassVar[str] = "pnn"
    title: ClassVar[str] = "PNN"

    def begin(self, backbone: nn.Module, **options: Any) -> Columns:
        return Columns(backbone, **options)

    def load(self, path: Path, **options: Any) -> Columns:
        return Columns.load(path, **options)

    def learn(self, columns: Columns, task: Task) -> None:
        network = columns.progress(task.head, self.scale)
        fit(network, task)
        columns.append(task.name, network, classes=task.classes, keep=bool(columns.tasks), extra=columns.own(network))

    def __post_init__(self) -> None:
        check_number(self, "scale")


class Columns(Weights):
    """A column a task. The first one's weights are the shared ones; the others', and all adapters, are a task's own."""

    def __init__(self, backbone: nn.Module, *, features: Any = None, **options: Any) -> None:
        if not isinstance(backbone, nn.Sequential) or features is not None:
            came = f"a {type(backbone).__name__}" + ("" if features is None else f" with features={features!r:.40}")
            raise NacreError(
                f"PNN connects networks layer by layer: it takes an nn.Sequential that gives features; got {came}"
            )
        super().__init__(backbone, **options)

    def progress(self, head: nn.Module, scale: float) -> Progressive:
        """A trainable network: a column drawn anew, which hears all that there are."""
        fresh = self.expand(head, fresh=True)
        adapters = adapters_of(fresh.backbone, head, len(self.tasks), scale)
        columns = [self._column(task) for task in self.tasks]
        return Progressive(fresh.backbone, head, fresh.origin, columns, adapters).to(self.device)

    def own(self, network: Progressive) -> dict[str, Tensor]:
        """What stands with the network's task beside head, norm tensors and biases."""
        values = tensors(network.backbone)
        column = {f"column/{name}": values[name] for name in self.kinds} if self.tasks else {}
        return column | {f"adapter/{name}": value for name, value in network.adapters.state_dict().items()}

    def weights_of(self, task: str) -> dict[str, Tensor]:
        return self._part("column/", task) or super().weights_of(task)

    def _part(self, start: str, task: str) -> dict[str, Tensor]:
        return {name.removeprefix(start): value for name, value in self.extra(task).items() if name.startswith(start)}

    def _column(self, task: str) -> Column:
        record = self.record(task)
        backbone = self.template_of(task).assemble({}, {**self.weights_of(task), **record.private})
        with torch.device("meta"):  # draws nothing
            adapters = adapters_of(backbone, record.head, self.tasks.index(task), 0.0)
        install(adapters, {name: value.clone() for name, value in self._part("adapter/", task).items()})
        return Column(backbone, adapters)

    def network(self, task: str) -> nn.Module:
        """The columns up to a task's as one graph of plain layers."""
        with self._guard:
            head = copy.deepcopy(self.record(task).head)
            *columns, own = [self._column(name) for name in self.tasks[: self.tasks.index(task) + 1]]
            origin = Origin(self._identity, self.tasks, (), shares=True)
        whole = Progressive(own.backbone, head, origin, columns, own.adapters).requires_grad_(True)
        return fx.GraphModule(whole, _Tracer().trace(whole)).eval().to(self.device)


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


def chain(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested Sequentials, in order."""
    if not isinstance(module, nn.Sequential):
        yield module
        return
    for part in module:
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
        if self.inputs is None:
            self.inputs = self._described(inputs)
        return self.logits(inputs)

    def logits(self, inputs: Any) -> Any:
        earlier: list[list[Any]] = []
        with torch.no_grad():
            for column in cast(Sequence[Column], self.columns):
                earlier.append(through(column.backbone, column.adapters, inputs, earlier))
        *got, features = through(self.backbone, self.adapters, inputs, earlier)
        first, *rest = chain(self.head)
        output = heard(first, features, len(got), self.adapters, earlier)
        for layer in rest:
            output = layer(output)
        return output


class _Tracer(fx.Tracer):
    """Writes down what a progressive network computes; every layer stays what it is."""

    traced_func_name = "logits"

    def is_leaf_module(self, m: nn.Module, _: str) -> bool:
        return not isinstance(m, Adapter)
