"""Tensors in fewer bits: bfloat16, or int8 with one scale a vector. What was decoded encodes to the same again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.errors import NacreError
from nacre.lowrank.factors import Factors

Dtype = Literal["float32", "bfloat16", "int8"]
_STEPS = 127  # of int8, to either side; -128 is not used
_TINIEST = torch.finfo(torch.bfloat16).tiny  # a scale below it would have fewer bits than the others


@dataclass(frozen=True, eq=False)
class Encoded:
    """A tensor as it is stored: value = values * scales, one scale a vector; without scales the values themselves."""

    values: Tensor
    scales: Tensor | None = None  # [number of vectors], bfloat16

    @property
    def bytes(self) -> int:
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)


def check_dtype(option: str, dtype: object) -> None:
    """Refuses what is no way of storing factors."""
    if dtype not in get_args(Dtype):
        raise NacreError(f"{option} is {', '.join(map(repr, get_args(Dtype)))}; got {dtype!r:.80}")


def encode(tensor: Tensor, dtype: Dtype, axis: int) -> Encoded:
    """A float32 tensor in fewer bits. int8: each vector along `axis` has a scale, its largest entry over 127.

    The scale is a bfloat16: 7 bits of a value times 8 of a scale are exact in float32, so that decoding loses nothing
    and encoding what was decoded gives the same bits. A vector with no entry above 1.5e-36 becomes zero.

    >>> encoded = encode(torch.tensor([[3.0, 0.1], [-1.5, 0.05]]), "int8", axis=1)
    >>> encoded.values.tolist(), encoded.bytes
    ([[127, 127], [-63, 64]], 8)
    """
    if dtype == "float32":
        return Encoded(tensor)
    if dtype == "bfloat16":
        return Encoded(tensor.to(torch.bfloat16))
    largest = F.pad(tensor.movedim(axis, 0).flatten(1).abs(), (0, 1)).amax(1)  # 0 where a vector is empty
    scales = (largest / _STEPS).to(torch.bfloat16)
    scales = torch.where(scales < _TINIEST, 0, scales)
    steps = tensor / _beside(torch.where(scales == 0, torch.inf, scales.float()), tensor, axis)
    return Encoded(steps.round().clamp(-_STEPS, _STEPS).to(torch.int8), scales)


def decode(encoded: Encoded, axis: int) -> Tensor:
    """The float32 tensor that an encoding stands for."""
    values = encoded.values.float()
    return values if encoded.scales is None else values * _beside(encoded.scales.float(), values, axis)


def rounded(tensor: Tensor, dtype: Dtype, axis: int) -> Tensor:
    """A tensor as it will be after storing and loading: bit for bit."""
    return decode(encode(tensor, dtype, axis), axis)


def rounded_factors(factors: Factors, dtype: Dtype) -> Factors:
    """Factors as they will be after storing: a scale for every column of U and V; s stays as it is."""
    return Factors(rounded(factors.U, dtype, 1), factors.s, rounded(factors.V, dtype, 1))


def column_bytes(out: int, rest: int, dtype: Dtype = "float32") -> int:
    """Bytes that one singular value costs: a column of U, the value, a column of V, and their scales.

    >>> [column_bytes(64, 27, dtype) for dtype in ("float32", "bfloat16", "int8")]
    [368, 186, 99]
    """
    return stored_bytes(out + rest, 2, dtype) + 4


def stored_bytes(numbers: int, vectors: int, dtype: Dtype) -> int:
    """Bytes that so many numbers take, in so many vectors."""
    return {"float32": 4 * numbers, "bfloat16": 2 * numbers, "int8": numbers + 2 * vectors}[dtype]


def _beside(scales: Tensor, tensor: Tensor, axis: int) -> Tensor:
    """Scales in a shape that multiplies each vector of a tensor."""
    return scales.view([-1 if dim == axis else 1 for dim in range(tensor.dim())])
