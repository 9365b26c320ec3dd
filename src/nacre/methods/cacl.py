"""CACL: compression-aware continual learning, Algorithm 1 of the paper."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import ClassVar, Literal

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.lowrank import (
    Dtype,
    Factors,
    Start,
    check_dtype,
    compress,
    concatenate,
    hoyer,
    hoyer_of,
    orthogonality,
    orthogonality_of,
    prepare,
    rank_at_energy,
)
from nacre.methods.method import SpaceMethod
from nacre.space import Network, SharedSpace
from nacre.training import Penalty, Recipe, Task, fit


@dataclass(frozen=True)
class CACL(SpaceMethod):
    """Each task adds a low-rank residual to the frozen sum of the earlier ones.

    sparsity, orthogonality: weights of the two penalties; energy: the share of s^2 that compression gives up.
    share: what a task may take, head and all, of the bytes of a dense network for it; budget: bytes that its factors
    alone may take. Either way they are cut after `halfway` of the epochs, and the rest of the epochs train what was
    kept. singular_rate: what the learning rate is multiplied by for s.
    dtype, head_dtype: what factors and heads are stored in: "float32", "bfloat16" or "int8".
    The rest is what the presets differ in: how factors start, whether the orthogonality norm is squared and the
    factors are made an exact SVD before the cut, which factors are penalised, how many columns a task gets.

    >>> CACL(sparsity=0.4).squared, CACL.text(sparsity=0.4).squared
    (True, False)
    """

    sparsity: float = 0.1
    orthogonality: float = 1.0
    energy: float = 1e-5
    start: Start = field(default_factory=Start)
    share: float | None = None
    budget: int | None = None
    halfway: float = 0.5
    singular_rate: float = 1.0
    dtype: Dtype = "float32"
    head_dtype: Dtype = "float32"
    squared: bool = True
    exact: bool = True
    penalised: Literal["new", "all"] = "new"
    columns: Literal["full", "half", "freed"] = "full"

    name: ClassVar[str] = "cacl"
    title: ClassVar[str] = "CACL"

    def learn(self, space: SharedSpace, task: Task) -> None:
        network = self.expand(space, task)  # Section 3.4
        penalty, budget = self.penalty_on(network, space, task), self.budget_of(space, task)
        for phase, epochs in self.phases(task.recipe).items():
            self.train(network, task, penalty, phase, epochs)  # Section 3.5
            if budget is not None:
                compress(network, budget=budget, exact=self.exact, dtype=self.dtype)
        compress(network, energy=self.energy, exact=self.exact)  # Section 3.6
        space.append(task.name, network, classes=task.classes, **self.stored)  # U<=t, S<=t, V<=t

    def expand(self, space: SharedSpace, task: Task) -> Network:
        return space.expand(task.head, rank=self.ranks(space), start=self.start)

    @property
    def stored(self) -> dict[str, Dtype]:
        """In how many bits a task is kept."""
        return {"dtype": self.dtype, "head_dtype": self.head_dtype}

    def ranks(self, space: SharedSpace) -> Mapping[str, int] | None:
        """How many columns the next task gets in every layer; None for the paper's r."""
        if self.columns == "half":
            return {name: -(-full // 2) for name, full in space.full_ranks.items()}
        return freed_columns(space) if self.columns == "freed" else None

    def budget_of(self, space: SharedSpace, task: Task) -> int | None:
        """Bytes that the task's factors may take."""
        return self.budget if self.share is None else space.budget(task.head, self.share, head_dtype=self.head_dtype)

    def phases(self, recipe: Recipe) -> dict[str, range]:
        """The epochs before the factors are cut to the budget, and those in which what was kept learns on."""
        limited = self.budget is not None or self.share is not None
        cut = round(self.halfway * recipe.epochs) if limited else 0
        if not 0 < cut < recipe.epochs:
            return {"train": range(recipe.epochs)}
        return {"train": range(cut), "refine": range(cut, recipe.epochs)}

    def train(self, network: Network, task: Task, penalty: Penalty, phase: str, epochs: range) -> None:
        rates = {layer.s: self.singular_rate for layer in network.factors().values()}
        report = functools.partial(self.report, network)
        fit(network, task, penalty=penalty, report=report, phase=phase, epochs=epochs, rates=rates)

    def penalty_on(self, network: Network, space: SharedSpace, task: Task) -> Penalty:
        """The penalties of equation 2, on the new factors or (as published) on all of them."""
        if self.penalised == "new":
            return lambda: (
                self.orthogonality * orthogonality(network, squared=self.squared) + self.sparsity * hoyer(network)
            )
        device = task.processes.device
        frozen = {name: Factors(f.U.to(device), f.s.to(device), f.V.to(device)) for name, f in space.factors().items()}
        return lambda: self._penalty_on_all(network, frozen)

    def _penalty_on_all(self, network: Network, frozen: Mapping[str, Factors]) -> Tensor:
        layers = [concatenate([frozen[name], new]) for name, new in network.factors().items()]
        off = orthogonality_of(layers, squared=self.squared, smaller=True)
        return self.orthogonality * off + self.sparsity * hoyer_of(layers)

    def report(self, network: Network) -> dict[str, float]:
        """What the progress line shows: how far from orthogonal, and the rank a cut would leave now."""
        with torch.no_grad():
            off = float(orthogonality(network, squared=self.squared))
        kept = [rank_at_energy(prepare(f, exact=self.exact).s, self.energy) for f in network.factors().values()]
        return {"orthogonality": off, "rank": sum(kept)}

    def __post_init__(self) -> None:
        kind = type(self).__name__
        shares, weights = ("energy", "halfway"), ("sparsity", "orthogonality", "singular_rate")
        for name, most in (*((name, math.inf) for name in weights), *((name, 1.0) for name in shares)):
            value = getattr(self, name)
            if not isinstance(value, Real) or not (math.isfinite(value) and 0 <= float(value) <= most):
                raise NacreError(f"{kind}.{name} is a number from 0{' to 1' if most == 1 else ''}; got {value!r}")
        if self.share is not None and not (isinstance(self.share, Real) and 0 < self.share <= 1):
            raise NacreError(f"{kind}.share is a number above 0, at most 1, or None for no limit; got {self.share!r}")
        if self.share is not None and self.budget is not None:
            raise NacreError(f"{kind} takes share= or budget=, not both")
        if self.budget is not None and (type(self.budget) is not int or self.budget < 0):
            raise NacreError(f"{kind}.budget is a number of bytes, or None for no limit; got {self.budget!r}")
        check_dtype(f"{kind}.dtype", self.dtype)
        check_dtype(f"{kind}.head_dtype", self.head_dtype)
        if self.penalised not in ("new", "all"):
            raise NacreError(f"{kind}.penalised is 'new' or 'all'; got {self.penalised!r}")
        if self.columns not in ("full", "half", "freed"):
            raise NacreError(f"{kind}.columns is 'full', 'half' or 'freed'; got {self.columns!r}")

    @classmethod
    def text(cls, sparsity: float = 0.1) -> CACL:
        """The paper as printed: random factors, the norm not squared, the trained factors cut as they are."""
        return cls(sparsity, start=Start("random"), squared=False, exact=False)

    @classmethod
    def published(cls, sparsity: float = 0.1) -> CACL:
        """The authors' code: it also penalises the frozen factors and uses freed columns again."""
        return cls(sparsity, energy=3e-5, start=Start("random"), exact=False, penalised="all", columns="freed")


def freed_columns(space: SharedSpace) -> dict[str, int]:
    """The authors' growth: columns that pruning freed are drawn afresh; where fewer are left than the running mean of
    the identifiers, that many are added instead, at most r."""
    full = space.full_ranks
    left, used = dict(full), dict.fromkeys(full, 0)
    totals: list[dict[str, int]] = []
    for task in space.tasks:
        added = space.ranks(task)
        for name, columns in left.items():
            used[name] += added.get(name, 0)  # a task learnt dense has no ranks
            left[name] = max(0, columns - added.get(name, 0))
            mean = sum(total[name] for total in totals) / len(totals) if totals else 0
            if totals and left[name] < min(mean, full[name]):
                left[name] = int(min(mean, full[name]))
        totals.append(dict(used))
    return left
