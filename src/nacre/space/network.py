"""The network that a task is trained on: frozen shared sum, new factors, the task's head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.lowrank import Factors, factors, load_factors
from nacre.space.layout import check_tensors, copy_of
from nacre.space.plain import Features, Inputs, check_inputs, describe_inputs, pick
from nacre.trees import Tree, apply, shapes


@dataclass(frozen=True)
class Origin:
    """Which space gave a network, after which tasks, and what it stands on."""

    space: str
    tasks: tuple[str, ...]
    base: tuple[str, ...]
    shares: bool  # False: a task alone, that neither builds on others nor is built upon


class Network(nn.Module):
    """What `SharedSpace.expand` gives and `append` takes. Train it as any module; its logits are `network(x)`."""

    def __init__(self, backbone: nn.Module, head: nn.Module, features: Features, origin: Origin) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.pick_features = features
        self.origin = origin
        self.inputs: Inputs = None  # what the inputs look like, once there was one

    def forward(self, inputs: Tree) -> Any:
        if self.inputs is None:
            self.inputs = self._described(inputs)
        return self.head(check_features(self.features(inputs), self.head, inputs))

    def features(self, inputs: Tree) -> Any:
        """What the backbone makes of inputs."""
        return pick(self.pick_features, apply(self.backbone, inputs))

    @staticmethod
    def _described(inputs: Tree) -> Inputs:
        described = describe_inputs(inputs)
        try:
            check_inputs(described)
        except ValueError as error:
            raise NacreError(f"the network cannot take inputs {shapes(inputs)}: {error}") from error
        return described

    def factors(self) -> dict[str, Factors]:
        """The new factors of every layer, by name, in the backbone's order."""
        return factors(self)

    def load_factors(self, new: Mapping[str, Factors]) -> None:
        """Sets the new factors of the layers named, at any rank. An optimiser made earlier no longer sees them."""
        load_factors(self, new)


def find_network(module: nn.Module) -> Network:
    """The network that expand gave, also inside of what DDP or torch.compile made of it."""
    modules = module.modules() if isinstance(module, nn.Module) else ()
    found = next((part for part in modules if isinstance(part, Network)), None)
    if found is None:
        raise NacreError(f"append takes a network that expand gave; got a {type(module).__name__}")
    return found


def check_head(head: Any) -> None:
    if not isinstance(head, nn.Module):
        raise NacreError(f"a head is a torch module that turns features into outputs; got {head!r:.80}")
    check_tensors(head, "head")
    copy_of(head, "head")  # what was learnt is kept in a copy: to find out afterwards that there is none is too late


def check_features(features: Any, head: nn.Module | None, inputs: Tree) -> Tensor:
    """Refuses what a head cannot read; a head of one's own that is no Linear may read any tensor."""
    if not isinstance(features, Tensor):
        raise NacreError(
            f"the backbone gave a {type(features).__name__}, nacre expects a tensor (batch, features): "
            "say with features= which part of the output holds them"
        )
    linear = head is None or isinstance(head, nn.Linear)
    if linear and features.dim() != 2:
        raise NacreError(
            f"the backbone turned {shapes(inputs)} into {list(features.shape)}, nacre expects (batch, features): "
            "end it with nn.Flatten(), or give a head= that reads this shape"
        )
    if isinstance(head, nn.Linear) and features.shape[1] != head.in_features:
        raise NacreError(
            f"the head reads {head.in_features} features, the backbone gave {features.shape[1]} for {shapes(inputs)}"
        )
    return features
