"""Columns: what has been learnt where every task has a network of its own that hears the earlier ones."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn

from nacre.errors import NacreError
from nacre.space.layout import install, tensors
from nacre.space.network import Origin
from nacre.space.progressive import Column, Progressive, Tracer, adapters_of, is_chain
from nacre.space.weights import Weights


class Columns(Weights):
    """A column a task. The first one's weights are the shared ones; the others', and all adapters, are a task's own."""

    def __init__(self, backbone: nn.Module, *, features: Any = None, **options: Any) -> None:
        if not is_chain(backbone) or features is not None:
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
        return fx.GraphModule(whole, Tracer().trace(whole)).eval().to(self.device)
