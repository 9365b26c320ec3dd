"""Checkpoints: a phase of training after each epoch, in one file that is replaced whole. No pickle."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nacre.errors import NacreError
from nacre.space.container import decode, encode, put_together, take_apart
from nacre.space.store import replace_file

_GROUPS = ("network", "best", "state", "optimizer")


def checkpoint_file(folder: Path, task: str, phase: str) -> Path:
    """The file of a task's phase, whatever the task is called."""
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", task).strip("-")[:40]
    digest = hashlib.sha256(f"{task}\x1f{phase}".encode()).hexdigest()[:8]
    return folder / f"{slug}-{phase}-{digest}.safetensors"


def clear(folder: Path, task: str) -> None:
    """Removes the checkpoints of a task that is kept elsewhere now."""
    for path in folder.glob("*.safetensors"):
        _, phase, _ = ["", "", *path.stem.rsplit("-", 2)][-3:]
        if path.name == checkpoint_file(folder, task, phase).name:
            path.unlink(missing_ok=True)


class Checkpoint:
    """Saves and restores a network, its optimiser and what else a loop must know."""

    def __init__(self, folder: Path, task: str, phase: str, facts: Mapping[str, Any]) -> None:
        self.path = checkpoint_file(folder, task, phase)
        self._task, self._facts = task, {name: str(value) for name, value in facts.items()}

    def save(
        self,
        network: nn.Module,
        optimizer: Optimizer,
        state: Mapping[str, Any],
        others: Mapping[str, Mapping[str, Tensor]],
    ) -> None:
        """others: further tensors, "best" (the best network's) and "state" (a method's own)."""
        groups = {"network": network.state_dict(), **others}
        tensors = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
        described, found = take_apart(optimizer.state_dict())
        tensors |= {f"optimizer/{place}": tensor for place, tensor in found.items()}
        facts = {"facts": self._facts, "state": dict(state), "optimizer": described}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, encode(tensors, facts))
        except OSError as error:
            raise NacreError(
                f"the checkpoint {self.path} could not be written: {error.strerror or error}; "
                "the one of the epoch before is still there"
            ) from error

    def restore(
        self, network: nn.Module, optimizer: Optimizer
    ) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]] | None:
        """The state saved last and the further tensors; None where nothing was saved yet."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NacreError(f"{self.path} cannot be read: {error.strerror}") from error
        tensors, saved = decode(data, self.path)
        try:
            self._compare(saved["facts"])
            groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
            for name, tensor in tensors.items():
                group, _, key = name.partition("/")
                groups[group][key] = tensor
            network.load_state_dict(groups["network"])
            optimizer.load_state_dict(put_together(saved["optimizer"], groups["optimizer"]))
            return saved["state"], groups
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise NacreError(f"{self.path} is not of this network: {error}") from error

    def _compare(self, saved: Mapping[str, str]) -> None:
        for name, value in self._facts.items():
            if saved.get(name) != value:
                raise NacreError(
                    f"the checkpoint {self.path} of task {self._task!r} was made with {name} {saved.get(name)}, "
                    f"now it is {value}: use the same, or another checkpoint folder"
                )


def fingerprint(network: nn.Module) -> str:
    """A hash of what training starts from and does not train: the frozen sum of the earlier tasks, above all."""
    digest = hashlib.sha256()
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    for name, tensor in network.state_dict().items():
        if name not in trained:
            digest.update(name.encode() + tensor.detach().to("cpu").contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def cpu_copy(network: nn.Module) -> dict[str, Tensor]:
    """A network's tensors as they are now."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in network.state_dict().items()}


def load_copy(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        network.load_state_dict(dict(values))
