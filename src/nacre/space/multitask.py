"""A trainable network on weights that the tasks have in common; it may answer for earlier tasks too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.func import functional_call

from nacre.errors import NacreError
from nacre.space.network import Network, Origin, check_features
from nacre.space.plain import Features, pick
from nacre.trees import Tree, apply, arguments


class OfTask(NamedTuple):
    """Inputs of a task that is not the network's newest; what `fit` may be given in place of inputs."""

    task: Tensor  # its place among the earlier tasks
    inputs: Tree


class Own(nn.Module):
    """What belongs to one earlier task: its head, and its norm tensors and biases."""

    def __init__(self, head: nn.Module, private: Mapping[str, Tensor], trained: Iterable[str]) -> None:
        """trained: the names of those that are parameters of the backbone."""
        super().__init__()
        self.head = head
        self.names = {f"private{place}": name for place, name in enumerate(private)}  # no module takes names with dots
        for place, (name, value) in zip(self.names, private.items(), strict=True):
            if name in trained:
                self.register_parameter(place, nn.Parameter(value.clone()))
            else:
                self.register_buffer(place, value.clone())

    @property
    def private(self) -> dict[str, Tensor]:
        return {name: getattr(self, place) for place, name in self.names.items()}


class MultitaskNetwork(Network):
    """What `Weights.expand` gives and `append` takes.

    `network(x)` are the new task's logits, `network.answer(task, x)` those of an earlier one.
    through: makes the weights that the backbone computes with from the shared ones (masks them, draws around them);
    its parameters are trained with the network's.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        features: Features,
        origin: Origin,
        shared: Iterable[str],
        own: list[Own],
        through: nn.Module | None,
    ) -> None:
        super().__init__(backbone, head, features, origin)
        self.earlier = nn.ModuleList(own)  # in the order learnt; empty where only the new task is trained
        self.through = through
        self._shared = tuple(shared)

    def forward(self, inputs: Tree) -> Any:
        if isinstance(inputs, OfTask):
            return self.answer(self.origin.tasks[int(inputs.task)], inputs.inputs)
        return super().forward(inputs)

    def answer(self, task: str, inputs: Tree) -> Any:
        """The logits of an earlier task: these weights with that task's head, norm tensors and biases."""
        head = self.own(task).head
        return head(check_features(self.features(inputs, task), head, inputs))

    def features(self, inputs: Tree, task: str | None = None) -> Any:
        """What the backbone makes of inputs; with an earlier task's norm tensors and biases if one is named."""
        values = dict(self.own(task).private) if task is not None else {}
        if self.through is not None:
            values |= self.through(self.shared())
        output = functional_apply(self.backbone, values, inputs) if values else apply(self.backbone, inputs)
        return pick(self.pick_features, output)

    def own(self, task: str) -> Own:
        """What belongs to an earlier task; trainable."""
        if task not in self.origin.tasks or not len(self.earlier):
            raise NacreError(f"this network does not answer for {task!r}: expand it with earlier=True")
        found = self.earlier[self.origin.tasks.index(task)]
        assert isinstance(found, Own)
        return found

    def shared(self) -> dict[str, nn.Parameter]:
        """The weights that the tasks have in common, by name: all parameters but heads, norm tensors and biases."""
        return {name: self.backbone.get_parameter(name) for name in self._shared}


def functional_apply(module: nn.Module, values: Mapping[str, Tensor], inputs: Tree) -> Any:
    """Calls a module on a tree with other tensors in place of its own; what is tied stays tied."""
    args, kwargs = arguments(inputs)
    return functional_call(module, dict(values), args, kwargs)
