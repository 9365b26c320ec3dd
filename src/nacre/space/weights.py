"""Weights: what a method keeps that trains one network on and on. One set of weights, and for each task what is its."""

from __future__ import annotations

import copy
import math
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.lowrank import Predicate
from nacre.space import weights_saving
from nacre.space.appending import check_numbers, stored_head
from nacre.space.examples import Memory
from nacre.space.layout import Kinds, Layout, copy_of, tensors
from nacre.space.masks import pack, unpack
from nacre.space.multitask import MultitaskNetwork, Own
from nacre.space.naming import as_path, check_known, check_new, class_names
from nacre.space.network import Origin, check_head, find_network
from nacre.space.plain import Features, check_choice, compose
from nacre.space.record import TaskRecord
from nacre.space.size import Size
from nacre.space.template import Template
from nacre.trees import Tree

_MASK = "mask/"


class Weights:
    """One backbone that every task may change; beside it each task's head, norm tensors and biases.

    shared: the weights as they are now, by name. state: named tensors that a method keeps to learn the next task.
    memory: examples of earlier tasks.

    >>> weights = Weights(nn.Sequential(nn.Linear(4, 8), nn.ReLU()))
    >>> network = weights.expand(head=nn.Linear(8, 2))  # train it
    >>> weights.append("animals", network)
    >>> weights.tasks, weights.network("animals")(torch.zeros(3, 4)).shape
    (('animals',), torch.Size([3, 2]))
    """

    def __init__(self, backbone: nn.Module, *, features: Features = None, private: Predicate | None = None) -> None:
        """For any module that maps a batch to features; a copy is kept, and its weights are where training starts.

        private: which further modules, by (name, module), each task keeps for itself.
        """
        layout = Layout.of(backbone, private=private)
        self.device = next(backbone.parameters()).device
        template = Template(copy_of(backbone).cpu(), layout)
        self._begin(template, features)
        self.shared |= {name: value.clone() for name, value in template.everything().items() if name in self.kinds}

    def _begin(self, template: Template, features: Features) -> None:
        check_choice(features)
        self.features = features
        self.facts: dict[str, Any] = {}  # JSON that is saved along
        self.shared: dict[str, Tensor] = {}
        self.state: dict[str, Tensor] = {}
        self.memory = Memory()
        self._identity = uuid.uuid4().hex
        self._template, self._layout = template, template.layout
        self._records: dict[str, TaskRecord] = {}
        self._created: dict[str, str] = {}
        self._disk: int | None = None
        self._guard = threading.RLock()

    # what is there

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks in the order learnt."""
        return tuple(self._records)

    @property
    def kinds(self) -> Kinds:
        """Type and shape of the weights that the tasks have in common."""
        return self._layout.common

    @property
    def trained(self) -> tuple[str, ...]:
        """Those of them that are trained: parameters, but for those that came with requires_grad=False."""
        trainable = {name for name, parameter in self._template.module.named_parameters() if parameter.requires_grad}
        return tuple(name for name in self.kinds if name in trainable)

    def template_of(self, task: str) -> Template:  # noqa: ARG002 - a subclass's may differ
        """The backbone as a task was learnt with it: the same for all, unless a method lets it grow."""
        return self._template

    def ranks(self, task: str) -> dict[str, int]:
        """Nothing here has a rank."""
        check_known(task, self.tasks)
        return {}

    def record(self, task: str) -> TaskRecord:
        """What belongs to a task alone."""
        check_known(task, self.tasks)
        return self._records[task]

    def extra(self, task: str) -> dict[str, Tensor]:
        """The further tensors that a method has kept with a task."""
        return {name: value for name, value in self.record(task).extra.items() if not name.startswith(_MASK)}

    def masks(self, task: str) -> dict[str, Tensor]:
        """Which weights are a task's, by name; empty where it has no masks."""
        extra, kinds = self.record(task).extra, self.template_of(task).layout.common
        return {name: unpack(extra[_MASK + name], shape) for name, (_, shape) in kinds.items() if _MASK + name in extra}

    def weights_of(self, task: str) -> dict[str, Tensor]:
        """The weights that a task answers with: the present ones, 0 where its mask says so.

        Where the backbone has grown since, they are the first units of each layer.
        """
        masks, kinds = self.masks(task), self.template_of(task).layout.common
        values = {name: corner(value, kinds[name][1]) for name, value in self.shared.items()}
        return {
            name: value if name not in masks else torch.where(masks[name], value, torch.zeros(()))
            for name, value in values.items()
        }

    def size(self, task: str | None = None) -> Size:
        """The numbers that all tasks need (or that one task has alone), and what is kept beside them."""
        chosen = {name: self.record(name) for name in (self.tasks if task is None else (task,))}
        counts = [record.numbers() for record in chosen.values()]
        alone = Size(
            heads=sum(count["head"] for count in counts),
            private=sum(count["private"] for count in counts),
            extra=sum(value.numel() for name in chosen for value in self.extra(name).values()),
            mask_bits=sum(self._mask_bits(name) for name in chosen),
        )
        if task is not None:
            return alone
        return replace(
            alone,
            weights=sum(value.numel() for value in self.shared.values()),
            learning=sum(value.numel() for value in self.state.values()),
            images=self.memory.images,
            image_bytes=self.memory.bytes,
            disk=self._disk,
        )

    def _mask_bits(self, task: str) -> int:
        kinds, extra = self.template_of(task).layout.common, self._records[task].extra
        return sum(math.prod(shape) for name, (_, shape) in kinds.items() if _MASK + name in extra)

    # learning

    def expand(
        self, head: nn.Module, *, earlier: bool = False, fresh: bool = False, through: nn.Module | None = None
    ) -> MultitaskNetwork:
        """A trainable network for the next task: the present weights, the norm tensors of the last task, this head.

        earlier: it can also answer for all earlier tasks, and trains what is theirs. fresh: on weights drawn anew.
        through: a module that makes of the shared weights, by name, those that the network computes with.
        """
        check_head(head)
        if self._records and not fresh:
            last = self._records[self.tasks[-1]]
            backbone = self.template_of(self.tasks[-1]).assemble({}, {**self.shared, **last.private})
        else:
            backbone = self._template.fresh(renew=bool(self._records))
        trained = {name for name, parameter in backbone.named_parameters() if parameter.requires_grad}
        records = self._records.values() if earlier else ()
        own = [
            Own(copy.deepcopy(record.head), {name: record.private[name] for name in self._layout.private}, trained)
            for record in records
        ]
        origin = Origin(self._identity, self.tasks, (), shares=True)
        features = copy.deepcopy(self.features)
        network = MultitaskNetwork(backbone.train(), head, features, origin, self.trained, own, through)
        return network.to(self.device)

    def append(
        self,
        name: str,
        network: nn.Module,
        *,
        classes: Sequence[str] | None = None,
        keep: bool = False,
        masks: Mapping[str, Tensor] | None = None,
        extra: Mapping[str, Tensor] | None = None,
        state: Mapping[str, Tensor] | None = None,
        memory: Memory | None = None,
    ) -> None:
        """Takes over what a network has learnt as a task; refused, with nothing changed, if it does not belong here.

        keep: the weights stay as they are. masks: which of them are the task's, True by name; the others are 0 for it.
        extra: further tensors that the task needs. state, memory: in place of what was there; as they were if None.
        """
        body = find_network(network)
        with self._guard:
            check_new(name, self.tasks)
            self._check_origin(body)
            values = {key: value.detach().to("cpu", copy=True) for key, value in tensors(body.backbone).items()}
            shared = self.shared if keep else {key: values[key] for key in self.kinds}
            kept = {key: value.detach().to("cpu", copy=True) for key, value in (extra or {}).items()}
            kept |= {_MASK + key: pack(mask) for key, mask in (masks or {}).items()}
            private = {key: values[key] for key in self._layout.private}
            record = TaskRecord(True, {}, stored_head(body.head), private, {}, body.inputs, class_names(classes), kept)
            records = {task: self._renewed(body, task) for task in self.tasks} | {name: record}
            for each in records.values():
                check_numbers({}, shared | each.private, tensors(each.head), self._layout.constant)
            self.shared, self._records = shared, records
            self.state = self.state if state is None else _on_cpu(state)
            self.memory = self.memory if memory is None else memory
            self._created[name] = datetime.now(UTC).isoformat(timespec="seconds")

    def _renewed(self, network: Any, task: str) -> TaskRecord:
        """An earlier task's record, with what the network has trained of it."""
        record = self._records[task]
        if not len(network.earlier):
            return record
        own = network.own(task)
        return replace(record, head=stored_head(own.head), private=_on_cpu(own.private))

    def _check_origin(self, network: Any) -> None:
        if network.origin.space != self._identity:
            raise NacreError("this network was expanded from other weights")
        if network.origin.tasks != self.tasks:
            since = ", ".join(map(repr, self.tasks[len(network.origin.tasks) :]))
            raise NacreError(f"this network was expanded before {since} was appended: expand again and train that one")

    def probe(self, inputs: Tree) -> Any:
        """What an untaught backbone makes of inputs: its shape says what a head must read."""
        return self._template.probe(self.features, self.device, inputs)

    # a task's network

    def network(self, task: str) -> nn.Module:
        """A plain module in eval mode: the weights as they are now, with this task's head, norm tensors and biases."""
        with self._guard:
            record = self.record(task)
            backbone = self.template_of(task).assemble({}, {**self.weights_of(task), **record.private})
            beside = self.beside(task)
        head = copy.deepcopy(record.head)
        return compose(backbone, self.features, head, record.inputs, beside).to(self.device)

    def beside(self, task: str) -> nn.Module | None:
        """What reads a task's inputs beside the backbone; its features follow the backbone's. Here nothing does."""
        check_known(task, self.tasks)
        return None

    # files

    def save(self, path: str | Path) -> None:
        """Writes all of it to a folder, in place of what was saved there before."""
        with self._guard:
            weights_saving.save(self, as_path(path))

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        backbone: nn.Module | None = None,
        features: Features = None,
        heads: Mapping[str, nn.Module] | None = None,
    ) -> Self:
        """What was saved in a folder. Runs no code from it: what is not made of torch's own layers must be given."""
        loaded = cls.__new__(cls)
        weights_saving.load(loaded, as_path(path), backbone, features, heads or {})
        return loaded


def corner(value: Tensor, shape: Sequence[int]) -> Tensor:
    """The first numbers of a tensor in every direction, as many as a shape has.

    >>> corner(torch.arange(6).view(2, 3), (2, 2))
    tensor([[0, 1],
            [3, 4]])
    """
    return value[tuple(slice(count) for count in shape)].contiguous()


def _on_cpu(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in named.items()}
