"""One loop, recipes, evaluation, checkpoints. Knows no method."""

from nacre.training.evaluation import evaluate
from nacre.training.fit import fit
from nacre.training.recipe import Recipe
from nacre.training.step import Penalty
from nacre.training.task import Epoch, Task

__all__ = ["Epoch", "Penalty", "Recipe", "Task", "evaluate", "fit"]
