"""Which tensors of a task's file are in fewer bits than float32, on the way into the file and out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.lowrank import Dtype, Encoded, decode, encode, stored_bytes

SCALES = "scales/"  # and then the name of the tensor that they belong to
Dtypes = Mapping[str, Dtype]  # by group: what "factors" and "head" are stored in


def shrunk(named: Mapping[str, Tensor], dtypes: Dtypes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors as the file has them, and which encoding each has that is not stored as it is."""
    stored, encodings = dict(named), {}
    for name, (dtype, axis) in _encoded(named, dtypes).items():
        encoded = encode(named[name], dtype, axis)
        stored[name], encodings[name] = encoded.values, dtype
        if encoded.scales is not None:
            stored[SCALES + name] = encoded.scales
    return stored, dict(encodings)


def restored(stored: Mapping[str, Tensor], encodings: Any, where: str) -> tuple[dict[str, Tensor], dict[str, Dtype]]:
    """The tensors of a file as float32, and what each group was stored in; ValueError where they do not fit."""
    if not isinstance(encodings, dict):
        raise ValueError(f"its encodings are {encodings!r:.80}")
    unknown = [encoding for encoding in encodings.values() if encoding not in get_args(Dtype)]
    if unknown:
        raise NacreError(
            f"{where} uses the encoding {unknown[0]!r}, which this nacre cannot read: install a newer nacre"
        )
    named = dict(stored)
    dtypes: dict[str, Dtype] = {}
    for name, encoding in encodings.items():
        axis = _axis(name, named[name])
        if axis is None or dtypes.setdefault(name.partition("/")[0], encoding) != encoding:
            raise ValueError(f"tensor {name!r} is said to be {encoding!r}")
        named[name] = _read(name, Encoded(named[name], named.pop(SCALES + name, None)), encoding, axis)
    if {name: dtype for name, (dtype, _) in _encoded(named, dtypes).items()} != dict(encodings):
        raise ValueError("some of its tensors are in fewer bits, others of the same kind are not")
    return named, dtypes


def saved(named: Mapping[str, Tensor], dtypes: Dtypes) -> dict[str, int]:
    """By how many bytes each group is smaller than at 4 bytes a number; empty where all is float32."""
    less: dict[str, int] = {}
    for name, (dtype, axis) in _encoded(named, dtypes).items():
        tensor, group = named[name], name.partition("/")[0]
        smaller = 4 * tensor.numel() - stored_bytes(tensor.numel(), tensor.shape[axis], dtype)
        less[group] = less.get(group, 0) + smaller
    return less


def _read(name: str, encoded: Encoded, encoding: Dtype, axis: int) -> Tensor:
    values, scales = encoded.values, encoded.scales
    if scales is None or scales.shape == (values.shape[axis],):
        tensor = decode(encoded, axis)
        again = encode(tensor, encoding, axis)
        if _same(again.values, values) and _same(again.scales, scales):
            return tensor
    raise ValueError(f"tensor {name!r} is not what the encoding {encoding!r} writes")


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)


def _encoded(named: Mapping[str, Tensor], dtypes: Dtypes) -> dict[str, tuple[Dtype, int]]:
    """The tensors that fewer bits are for: of which type, and along which axis their vectors lie."""
    chosen: dict[str, tuple[Dtype, int]] = {}
    for name, tensor in named.items():
        dtype, axis = dtypes.get(name.partition("/")[0], "float32"), _axis(name, tensor)
        if dtype != "float32" and axis is not None and tensor.dtype == torch.float32:
            chosen[name] = (dtype, axis)
    return chosen


def _axis(name: str, tensor: Tensor) -> int | None:
    """Columns of U and V, rows of a head's weights; None for what stays float32: s, biases, numbers that count."""
    group = name.partition("/")[0]
    if group == "factors":
        return None if name.endswith("/s") else 1
    return 0 if group == "head" and tensor.dim() >= 2 else None
