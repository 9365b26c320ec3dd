"""SharedSpace: what one network has learnt, task upon task. Expand, append, and a plain network for every task."""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.lowrank import Dtype, Factors, Predicate, Start, check_dtype, concatenate, full_rank
from nacre.space import saving
from nacre.space.appending import record_of
from nacre.space.layout import Layout, copy_of
from nacre.space.naming import as_path, check_known, check_new, class_names
from nacre.space.network import Network, Origin, check_head, find_network
from nacre.space.optimising import Optimize, check_optimize, optimised
from nacre.space.plain import Features, check_choice, compose
from nacre.space.record import TaskRecord
from nacre.space.size import Size, budget_in_share
from nacre.space.sums import Sums
from nacre.space.template import Ranks, Template
from nacre.trees import Tree

Base = Literal["zero", "backbone", "external"]


class SharedSpace:
    """The sum of all that was learnt, kept as one small part for each task.

    >>> space = SharedSpace(nn.Sequential(nn.Linear(4, 8), nn.ReLU()))
    >>> network = space.expand(head=nn.Linear(8, 2))  # train it, compress it
    >>> space.append("animals", network)
    >>> space.tasks, space.network("animals")(torch.zeros(3, 4)).shape
    (('animals',), torch.Size([3, 2]))
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        base: Base = "zero",
        source: str | None = None,
        features: Features = None,
        include: Predicate | None = None,
        exclude: Predicate | None = None,
        private: Predicate | None = None,
    ) -> None:
        """A space for any module that maps a batch to features; it keeps a copy and leaves the module alone.

        base="zero" learns the whole weight; "backbone" keeps the given weights frozen under every task. "external"
        does so too, but a store then names them by their hash, and by `source` if that is said, and does not hold them.
        features: which part of the backbone's output the features are: a key, a position or a function.
        include, exclude: which modules are factorised; private: whose tensors each task keeps for itself.
        All three are predicates on (name, module).
        """
        if base not in get_args(Base):
            raise NacreError(f"base is 'zero', 'backbone' or 'external'; got {base!r}")
        layout = Layout.of(backbone, include, exclude, private)
        self.device = next(backbone.parameters()).device
        layout = layout if base == "zero" else layout.on_base()
        self._begin(Template(copy_of(backbone).cpu(), layout), base, features, source)

    def _begin(self, template: Template, base: Base, features: Features, source: str | None) -> None:
        check_choice(features)
        self.base, self.features, self.source = base, features, source
        self.facts: dict[str, Any] = {}  # JSON that is saved along, for whoever uses the space
        self._identity = uuid.uuid4().hex
        self._template, self._layout = template, template.layout
        self._entries: dict[str, saving.Entry] = {}
        zero = {name: torch.zeros(layer.shape, dtype=torch.float32) for name, layer in self._layout.layers.items()}
        self._sums = Sums(zero if base == "zero" else template.weights(), lambda task: self.record(task).factors)
        self._guard = threading.RLock()

    # what is there

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks in the order learnt."""
        return tuple(self._entries)

    @property
    def layers(self) -> tuple[str, ...]:
        """The factorised layers, in the backbone's order."""
        return tuple(self._layout.layers)

    @property
    def full_ranks(self) -> dict[str, int]:
        """The paper's r of every layer: the rank a task starts with."""
        return {name: full_rank(*layer.matrix) for name, layer in self._layout.layers.items()}

    def ranks(self, task: str) -> dict[str, int]:
        """The rank that a task added to every layer; empty for a task learnt dense."""
        return dict(self._entry(task).ranks)

    def identifier(self, task: str) -> dict[str, int]:
        """The task identifier: the rank of every layer after a task, all it stands on counted in."""
        chain = [*self._base_of(task), task]
        return {name: sum(self._entry(t).ranks.get(name, 0) for t in chain) for name in self._entry(task).ranks}

    def factors(self, task: str | None = None) -> dict[str, Factors]:
        """U<=t, S<=t, V<=t of every layer: a task's factors beside all that it stands on (default: of every task)."""
        chain = [*self._base_of(task), task] if task is not None else self._sharing(self.tasks)
        records = [self.record(name).factors for name in chain]
        return {
            name: concatenate([Factors.zero(*layer.matrix), *(factors[name] for factors in records if factors)])
            for name, layer in self._layout.layers.items()
        }

    def record(self, task: str) -> TaskRecord:
        """What a task itself added, from memory or from its file."""
        with self._guard:
            return self._entry(task).load(self._layout)

    def size(self, task: str | None = None) -> Size:
        """The numbers that all tasks need (or that one task added), and the bytes on disk beside them."""
        chosen = list(self._entries.values()) if task is None else [self._entry(task)]
        counts = {part: sum(entry.numbers[part] for entry in chosen) for part in saving.PARTS}
        return Size(
            factors=counts["factors"],
            heads=counts["head"],
            private=counts["private"],
            frozen=counts["frozen"],
            extra=counts["extra"],
            identifiers=sum(len(entry.ranks) for entry in chosen),
            base=self._base_numbers() if task is None else 0,
            saved=sum(sum(entry.saved.values()) for entry in chosen),
            disk=saving.bytes_on_disk(self.folder, chosen if task is not None else None),
        )

    def budget(self, head: nn.Module, share: float, *, head_dtype: Dtype = "float32") -> int:
        """Bytes that factors may take so that a task with this head takes at most a share of a dense network."""
        return budget_in_share(self._layout, head, share, head_dtype)

    def _base_numbers(self) -> int:
        return self._layout.base_numbers if self.base != "zero" else 0

    # learning

    def expand(
        self,
        head: nn.Module,
        *,
        rank: Ranks = None,
        start: Start | None = None,
        sharing: bool = True,
        dense: bool = False,
    ) -> Network:
        """A trainable network for the next task: the frozen sum of all tasks, new factors, this head. Section 3.4.

        rank: for every layer, or by layer; the paper's r where none is given. 0 adds nothing there.
        start: how new factors are drawn. sharing=False: a task alone, on no other; dense=True: alone and unfactorised.
        """
        check_head(head)
        start, sharing = start or Start(), sharing and not dense
        if not isinstance(start, Start):
            raise NacreError(f"start= is a nacre.Start; got {start!r:.80}")
        base = self._sharing(self.tasks) if sharing else ()
        renew = bool(self._entries) and self.base == "zero"
        backbone = self._assemble(base, base[-1]) if base else self._template.fresh(renew=renew)
        backbone.train()
        if not dense:
            self._template.factorise(backbone, rank, start, first=not base and self.base == "zero")
        if base:
            for name in self._layout.frozen:
                backbone.get_parameter(name).requires_grad_(False)
        features = copy.deepcopy(self.features)  # a module has a mode
        network = Network(backbone, head, features, Origin(self._identity, self.tasks, base, sharing))
        return network.to(self.device)

    def append(
        self,
        name: str,
        network: nn.Module,
        *,
        classes: Sequence[str] | None = None,
        dtype: Dtype = "float32",
        head_dtype: Dtype = "float32",
    ) -> None:
        """Adds what a network has learnt as a task; refused, with nothing changed, if it does not belong here.

        dtype, head_dtype: "bfloat16" or "int8" keep U and V, and the head's weights, in fewer bits. They are rounded
        now, so that what later tasks stand on is what the file says.
        """
        check_dtype("dtype=", dtype)
        check_dtype("head_dtype=", head_dtype)
        body = find_network(network)
        with self._guard:
            check_new(name, self.tasks)
            self._check_origin(body.origin)
            record = record_of(
                body, self._layout, self._inherited() | self._frozen(), class_names(classes), dtype, head_dtype
            )
            self._entries[name] = saving.Entry.new(name, record)

    def _check_origin(self, origin: Origin) -> None:
        if origin.space != self._identity:
            raise NacreError("this network was expanded from another space")
        if origin.tasks != self.tasks:
            since = ", ".join(map(repr, self.tasks[len(origin.tasks) :]))
            raise NacreError(f"this network was expanded before {since} was appended: expand again and train that one")

    def backbone(self) -> nn.Module:
        """A copy of the backbone as it came; one that was loaded without a base has weights drawn anew."""
        with torch.random.fork_rng(devices=[]):
            return self._template.fresh(renew=False)

    def probe(self, inputs: Tree) -> Any:
        """What an untaught backbone makes of inputs: its shape says what a head must read."""
        return self._template.probe(self.features, self.device, inputs)

    # a task's network

    def network(self, task: str, *, optimize: Optimize | None = None) -> nn.Module:
        """A plain module in eval mode that gives this task's logits; it shares nothing with the space.

        optimize="counted" runs each layer whose rank is low as two smaller ones, where that takes fewer
        multiplications; "measured" where it is also faster on this machine's CPU. Logits are the same up to rounding.
        On a dense base, and for a task learnt dense, no layer has a low rank and nothing changes.
        """
        check_optimize(optimize)
        record = self.record(task)
        chain = (*self._base_of(task), task)
        backbone = self._assemble(chain, task)
        network = compose(backbone, self.features, copy.deepcopy(record.head), record.inputs)
        if optimize is not None and self.base == "zero" and record.factors:
            network = optimised(network, self._layout.layers, self.factors(task), optimize, record.inputs)
        return network.to(self.device)

    def _assemble(self, chain: tuple[str, ...], task: str) -> nn.Module:
        """A backbone with the summed weights of a chain of tasks and the private tensors of one."""
        with self._guard:
            record = self.record(task)
            frozen = self._frozen() if record.shares else {}
            sums = self._sums.of(chain) if record.factors else {}
        return self._template.assemble(sums, {**frozen, **record.private})

    # sums

    def _sharing(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if self._entries[name].shares)

    def _base_of(self, task: str) -> tuple[str, ...]:
        """The tasks whose sum a task stands on."""
        if not self._entry(task).shares:
            return ()
        return self._sharing(self.tasks[: self.tasks.index(task)])

    def _inherited(self) -> dict[str, Tensor]:
        """The frozen tensors of the base, which are kept with no task."""
        everything = self._template.everything() if self._layout.inherited else {}
        return {name: everything[name] for name in self._layout.inherited}

    def _frozen(self) -> dict[str, Tensor]:
        first = self._sharing(self.tasks)[:1]
        return self.record(first[0]).frozen if first else {}

    def _entry(self, task: str) -> saving.Entry:
        check_known(task, self.tasks)
        return self._entries[task]

    # files

    folder: Path | None = None  # where the space was last saved or loaded

    def save(self, path: str | Path) -> None:
        """Writes the space to a folder; into one it was saved to before, only what is new."""
        with self._guard:
            saving.save(self, as_path(path))

    @staticmethod
    def load(
        path: str | Path,
        *,
        backbone: nn.Module | None = None,
        features: Features = None,
        heads: Mapping[str, nn.Module] | None = None,
    ) -> SharedSpace:
        """The space in a folder. Runs no code from it: a backbone or a head that is not made of torch's own
        layers must be given, as must a `features` that is a function."""
        return saving.load(as_path(path), backbone, features, heads or {})
