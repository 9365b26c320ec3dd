"""CACL-Fixed: expansion for the first task only; later ones learn in the rank that compression freed (Section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from nacre.methods.cacl import CACL
from nacre.space import SharedSpace


@dataclass(frozen=True)
class CACLFixed(CACL):
    """CACL in the memory of its first task; where no rank is left, a task learns its head alone."""

    name: ClassVar[str] = "cacl-fixed"
    title: ClassVar[str] = "CACL-Fixed"

    def ranks(self, space: SharedSpace) -> Mapping[str, int]:
        used = [space.ranks(task) for task in space.tasks]
        return {
            name: max(0, full - sum(ranks.get(name, 0) for ranks in used)) for name, full in space.full_ranks.items()
        }
