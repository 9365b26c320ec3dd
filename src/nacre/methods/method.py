"""What a method of continual learning is: settings, a way to learn one more task, and something that was learnt."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import nn

from nacre.errors import NacreError
from nacre.space import SharedSpace, Size, Weights
from nacre.training import Task
from nacre.trees import Tree


class Knowledge(Protocol):
    """What has been learnt so far. A SharedSpace is one; a method that overwrites its weights keeps another kind."""

    facts: dict[str, Any]  # JSON saved along
    device: torch.device  # where the networks it gives are

    @property
    def tasks(self) -> tuple[str, ...]: ...

    def network(self, task: str) -> nn.Module:
        """A plain module in eval mode for a task."""
        ...

    def ranks(self, task: str) -> dict[str, int]:
        """The rank that a task added to every layer; empty where a method has none."""
        ...

    def probe(self, inputs: Tree) -> Any:
        """What an untaught backbone makes of inputs: its shape says what a head must read."""
        ...

    def size(self, task: str | None = None) -> Size: ...

    def save(self, path: str | Path) -> None: ...


Learnt = TypeVar("Learnt", bound=Knowledge)


class Method(Protocol[Learnt]):
    """A frozen dataclass of settings. It keeps no state: everything learnt is in the knowledge that it began."""

    name: ClassVar[str]  # in commands and records
    title: ClassVar[str]  # in tables

    def begin(self, backbone: nn.Module, **options: Any) -> Learnt:
        """Knowledge of no task yet. A method that needs a certain kind of network refuses others here."""
        ...

    def learn(self, knowledge: Learnt, task: Task) -> None:
        """Learns one more task, with as many calls of `fit` as it takes; run again after an interrupt it goes on."""
        ...

    def load(self, path: Path, **options: Any) -> Learnt:
        """The knowledge that was saved in a folder."""
        ...


class SpaceMethod:
    """The part of every method whose knowledge is a SharedSpace."""

    def begin(self, backbone: nn.Module, **options: Any) -> SharedSpace:
        return SharedSpace(backbone, **options)

    def load(self, path: Path, **options: Any) -> SharedSpace:
        return SharedSpace.load(path, **options)


class WeightsMethod:
    """The part of every method that trains one set of weights on and on, or masks it: its knowledge is Weights."""

    def begin(self, backbone: nn.Module, **options: Any) -> Weights:
        if unknown := set(options) - {"features", "private"}:
            names = ", ".join(f"{name}=" for name in sorted(unknown))
            raise NacreError(f"{names} says what a SharedSpace factorises; {type(self).__name__} takes private= alone")
        return Weights(backbone, **options)

    def load(self, path: Path, **options: Any) -> Weights:
        return Weights.load(path, **options)


def settings(method: Any) -> dict[str, Any]:
    """A method as JSON."""
    return {"name": method.name, "settings": asdict(method)}
