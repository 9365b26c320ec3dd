"""The mathematics: factors, the low-rank residual of a weight, penalties, truncation. Knows tensors and layers only."""

from nacre.lowrank.factors import Factors, concatenate, factor_cost, full_rank, matrix_shape
from nacre.lowrank.penalties import hoyer, hoyer_of, orthogonality, orthogonality_of
from nacre.lowrank.residual import (
    Layer,
    Predicate,
    add_factors,
    attach,
    factors,
    find_layers,
    load_factors,
    residuals,
)
from nacre.lowrank.start import Start
from nacre.lowrank.truncation import BYTES_A_NUMBER, compress, prepare, rank_at_energy

__all__ = [
    "BYTES_A_NUMBER",
    "Factors",
    "Layer",
    "Predicate",
    "Start",
    "add_factors",
    "attach",
    "compress",
    "concatenate",
    "factor_cost",
    "factors",
    "find_layers",
    "full_rank",
    "hoyer",
    "hoyer_of",
    "load_factors",
    "matrix_shape",
    "orthogonality",
    "orthogonality_of",
    "prepare",
    "rank_at_energy",
    "residuals",
]
