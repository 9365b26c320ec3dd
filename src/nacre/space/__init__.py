"""What has been learnt: the shared space, its tasks, files and sizes. Knows no training."""

from nacre.space.columns import Columns
from nacre.space.dropping import drop
from nacre.space.examples import Examples, Memory
from nacre.space.growing import GrowingWeights
from nacre.space.inspection import describe, facts_of, is_saved, verify
from nacre.space.multitask import MultitaskNetwork, OfTask
from nacre.space.network import Network
from nacre.space.shared import SharedSpace
from nacre.space.size import Size
from nacre.space.weights import Weights

__all__ = [
    "Columns",
    "Examples",
    "GrowingWeights",
    "Memory",
    "MultitaskNetwork",
    "Network",
    "OfTask",
    "SharedSpace",
    "Size",
    "Weights",
    "describe",
    "drop",
    "facts_of",
    "is_saved",
    "verify",
]
