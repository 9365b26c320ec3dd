"""CPG: each task picks among the weights of earlier tasks, compacts what it adds to them, and grows the network where
both are not enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from nacre.methods.checks import check_number
from nacre.methods.compacting import Candidate, Compacting, begun, together
from nacre.methods.holding import Masks
from nacre.methods.piggyback import Scores
from nacre.space import GrowingWeights
from nacre.training import Task


@dataclass(frozen=True)
class CPG(Compacting):
    """Compacting, picking and growing (Hung et al., NeurIPS 2019). Beside the settings of `Compacting`:

    An earlier task's weight is picked where its score is above `threshold`; scores start at `score`, so that at first
    all are. score_rate: what the learning rate is multiplied by for the scores.

    >>> CPG(widest=2.0, goal=0.2).title
    'CPG'
    """

    threshold: float = 5e-3
    score: float = 1e-2
    score_rate: float = 0.5

    name: ClassVar[str] = "cpg"
    title: ClassVar[str] = "CPG"

    def learn(self, weights: GrowingWeights, task: Task) -> None:
        goal = self.goal_of(weights, task)
        trained = self.trained(weights, task, goal)  # picks, and grows while the goal is missed
        own = self.pruned(trained, task)  # compacts while it holds
        masks = together(picked(trained), own)
        weights.append(task.name, trained.network, classes=task.classes, masks=masks)

    def candidate(self, weights: GrowingWeights, task: Task, growth: float) -> Candidate:
        picks = Picks(weights.taken(growth), self.score, self.threshold) if weights.tasks else None
        return begun(weights, task, growth, picks, self.score_rate)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "threshold", least=-1.0, most=1.0)
        check_number(self, "score", least=-1.0, most=1.0)
        check_number(self, "score_rate")


class Picks(Scores):
    """Scores that decide about the weights of earlier tasks alone; the others are always used."""

    def __init__(self, taken: Masks, score: float, threshold: float) -> None:
        super().__init__({name: mask.shape for name, mask in taken.items()}, score, threshold)
        for place, mask in enumerate(taken.values()):
            self.register_buffer(f"free{place}", ~mask, persistent=False)  # goes where the scores go

    def masks(self) -> dict[str, Tensor]:
        high = super().masks().items()
        return {name: mask | self.get_buffer(f"free{place}") for place, (name, mask) in enumerate(high)}


def picked(candidate: Candidate) -> dict[str, Tensor]:
    """Which weights of earlier tasks a network uses."""
    through = candidate.network.through
    if not isinstance(through, Picks):
        return dict(candidate.taken)
    return {name: mask.cpu() & candidate.taken[name] for name, mask in through.masks().items()}
