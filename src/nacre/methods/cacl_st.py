"""CACL-ST: every task alone, factorised and compressed, without the shared space (the paper's Section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from nacre.methods.cacl import CACL
from nacre.space import Network, SharedSpace
from nacre.training import Task


@dataclass(frozen=True)
class CACLST(CACL):
    """CACL whose tasks share nothing."""

    name: ClassVar[str] = "cacl-st"
    title: ClassVar[str] = "CACL-ST"

    def expand(self, space: SharedSpace, task: Task) -> Network:
        return space.expand(task.head, rank=self.ranks(space), start=self.start, sharing=False)

    def ranks(self, space: SharedSpace) -> Mapping[str, int] | None:
        """Every task is as the first: nothing was freed for it."""
        return None if self.columns == "freed" else super().ranks(space)
