"""One file of named tensors and JSON facts: safetensors, every claim of its header checked before it is believed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from nacre.errors import NacreError

FACTS = "nacre"  # one metadata key holding sorted JSON: the library writes several keys in random order
_TENSOR = "tensor"  # where a tensor stood in a tree
_HEADER_LIMIT = 100_000_000
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def canonical_json(data: Any) -> str:
    """The one way nacre writes JSON: sorted, ASCII, so that equal data are equal bytes."""
    return json.dumps(data, sort_keys=True, allow_nan=False, separators=(",", ":"), default=_number)


def _number(value: Any) -> Any:
    """Numbers of numpy or torch, as Python's."""
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(f"JSON knows no {type(value).__name__}")


def encode(tensors: Mapping[str, Tensor], facts: Any) -> bytes:
    """The file's bytes; the same tensors and facts always give the same bytes."""
    stored = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(_without_sharing(stored), metadata={FACTS: canonical_json(facts)})


def _without_sharing(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tied tensors as copies: safetensors refuses shared storage."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        key = tensor.untyped_storage().data_ptr()
        if key in seen:
            tensors[name] = tensor.clone()
        seen.add(key)
    return tensors


def decode(data: bytes, path: Path) -> tuple[dict[str, Tensor], Any]:
    """Tensors and facts of a file; a NacreError naming it where anything in it does not add up."""
    try:
        facts = _checked_facts(data)
        loaded = safetensors.torch.load(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, safetensors.SafetensorError) as error:
        raise NacreError(f"{path} is damaged: {error}") from error
    # copies, so that every tensor is aligned as torch aligns its own: sums over them then give the same bits
    return {name: tensor.clone() for name, tensor in loaded.items()}, facts


def _checked_facts(data: bytes) -> Any:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, _HEADER_LIMIT):
        raise ValueError("its header is longer than the file")
    header = json.loads(data[8 : 8 + length].decode(), object_pairs_hook=_unique)
    facts = json.loads(header.pop("__metadata__")[FACTS], object_pairs_hook=_unique)
    spans = sorted(_span(name, entry) for name, entry in header.items())
    end = 0
    for start, stop, name in spans:
        if start != end:
            raise ValueError(f"tensor {name!r} overlaps another or leaves a gap")
        end = stop
    if end != len(data) - 8 - length:
        raise ValueError(f"its tensors take {end} bytes, the file holds {len(data) - 8 - length}")
    return facts


def _span(name: str, entry: dict[str, Any]) -> tuple[int, int, str]:
    """(start, stop, name) of a tensor whose type, shape and place agree."""
    shape, (start, stop), kind = entry["shape"], entry["data_offsets"], entry["dtype"]
    if kind not in _ITEM_BYTES:
        raise ValueError(f"tensor {name!r} has the type {kind!r}")
    if not all(type(number) is int and 0 <= number < 2**48 for number in (*shape, start, stop)) or len(shape) > 8:
        raise ValueError(f"tensor {name!r} has the shape {shape}")
    if math.prod(max(1, number) for number in shape) >= 2**60:  # also where a 0 among them makes it empty
        raise ValueError(f"tensor {name!r} has the shape {shape}")
    size = _ITEM_BYTES[kind] * math.prod(shape)
    if size != stop - start:
        raise ValueError(f"tensor {name!r} of shape {shape} takes {size} bytes, its place has {stop - start}")
    return start, stop, name


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; one that says a key twice is refused, since readers would disagree on it."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key stands twice in its JSON")
    return unique


def parse_json(text: bytes) -> Any:
    """JSON without duplicate keys; ValueError for anything else."""
    return json.loads(text.decode(), object_pairs_hook=_unique)


def all_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def take_apart(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """A tree of dicts, lists, numbers and tensors as JSON with places for the tensors."""
    found: dict[str, Tensor] = {}

    def walk(part: Any) -> Any:
        if isinstance(part, Tensor):
            found[str(len(found))] = part
            return {_TENSOR: str(len(found) - 1)}
        if isinstance(part, Mapping):
            return {"items": [[key, walk(value)] for key, value in part.items()]}  # keys may be numbers
        if isinstance(part, list | tuple):
            return [walk(value) for value in part]
        return part

    return walk(tree), found


def put_together(described: Any, found: Mapping[str, Tensor]) -> Any:
    """What `take_apart` took apart; tuples come back as lists."""
    if isinstance(described, list):
        return [put_together(part, found) for part in described]
    if isinstance(described, dict) and _TENSOR in described:
        return found[described[_TENSOR]]
    if isinstance(described, dict):
        return {key: put_together(part, found) for key, part in described["items"]}
    return described
