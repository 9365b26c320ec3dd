"""The frozen sum beneath a task: one dense float32 tensor a layer, summed in task order, so its bits never change."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nacre.lowrank import Factors, add_factors

Chain = tuple[str, ...]


class Sums:
    """Works out base + W_1 + W_2 + ... for chains of tasks, remembering the longest."""

    def __init__(self, base: Mapping[str, Tensor], factors_of: Callable[[str], Mapping[str, Factors]]) -> None:
        self._base = dict(base)
        self._factors_of = factors_of
        self._chain: Chain = ()
        self._longest = self._base

    def of(self, chain: Chain) -> dict[str, Tensor]:
        """The sum over a chain, by layer; the tensors are this object's own."""
        known = chain[: len(self._chain)] == self._chain
        sums = self._longest if known else self._base
        for task in chain[len(self._chain) if known else 0 :]:
            factors = self._factors_of(task)
            with torch.no_grad():
                sums = {name: add_factors(total, factors[name]) for name, total in sums.items()}
        if known:
            self._chain, self._longest = chain, sums
        return sums
