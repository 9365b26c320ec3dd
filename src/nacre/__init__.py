"""nacre teaches one PyTorch network task after task: nothing is forgotten, and each task costs kilobytes."""

from nacre import networks
from nacre.errors import NacreError
from nacre.learner import Learner, Result
from nacre.lowrank import Factors, Start, compress, hoyer, orthogonality
from nacre.methods import CACL, CACLST, CACLFixed, Single
from nacre.space import SharedSpace
from nacre.training import Recipe

__version__ = "0.1.0"
__all__ = [
    "CACL",
    "CACLST",
    "CACLFixed",
    "Factors",
    "Learner",
    "NacreError",
    "Recipe",
    "Result",
    "SharedSpace",
    "Single",
    "Start",
    "compress",
    "hoyer",
    "networks",
    "orthogonality",
]
