"""The container: what goes in comes out, equal contents are equal bytes, and no header is believed unchecked."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nacre.errors import NacreError
from nacre.space.container import FACTS, canonical_json, decode, encode, parse_json

PATH = Path("somewhere/tasks/007-bond.safetensors")
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
FACTS_OF_NONE = json.dumps({FACTS: "{}"})


def raw(header: str | bytes, body: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file by hand."""
    data = header.encode() if isinstance(header, str) else header
    return (len(data) if length is None else length).to_bytes(8, "little") + data + body


def one_tensor(body: bytes = b"", **changes: Any) -> bytes:
    """A file of one empty tensor, some things said of it otherwise."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} | changes
    return raw(json.dumps({"__metadata__": {FACTS: "{}"}, "a": entry}), body)


def two_tensors(first: list[int], second: list[int], body: int = 8) -> bytes:
    entries = {
        name: {"dtype": "F32", "shape": [(stop - start) // 4], "data_offsets": [start, stop]}
        for name, (start, stop) in (("a", first), ("b", second))
    }
    return raw(json.dumps({"__metadata__": {FACTS: "{}"}, **entries}), bytes(body))


@pytest.fixture
def little_memory() -> Iterator[None]:
    """No more address space than is taken now and a little: whoever allocates what a header claims, fails."""
    statistics = Path("/proc/self/statm")
    if not statistics.exists():
        pytest.skip("the address space of a process can be seen and limited on Linux only")
    now = int(statistics.read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def same(one: Tensor, other: Tensor) -> bool:
    """Type, shape and every bit."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.contiguous().flatten().view(torch.uint8).equal(other.contiguous().flatten().view(torch.uint8))


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    bits = torch.randint(0, 2**31, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    tensor = (bits % 2 == 1) if dtype == torch.bool else bits.to(dtype)
    return tensor.transpose(0, -1) if tensor.dim() > 1 and draw(st.booleans()) else tensor


names = st.text(st.characters(codec="utf-8"), max_size=8).filter(lambda name: name != "__metadata__")
facts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(names, tensors(), max_size=4), facts)
def test_what_goes_in_comes_out_bit_for_bit(stored: dict[str, Tensor], said: Any) -> None:
    data = encode(stored, said)
    loaded, heard = decode(data, PATH)
    assert loaded.keys() == stored.keys()
    assert all(same(loaded[name], tensor) for name, tensor in stored.items())
    assert heard == said
    assert encode(dict(reversed(stored.items())), said) == data, "the order in which they were given must not matter"
    by_library = safetensors.torch.load(data)
    assert all(same(by_library[name], tensor) for name, tensor in stored.items()), "others must be able to read it"


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -0.0, 1e-45])
def test_special_numbers_keep_their_bits(special: float) -> None:
    tensor = torch.tensor([special, 1.0])
    assert same(decode(encode({"a": tensor}, {}), PATH)[0]["a"], tensor)


def test_tied_tensors_are_stored_under_each_name_and_the_caller_keeps_them_tied() -> None:
    tensor = torch.arange(4.0)
    given_ones = {"a": tensor, "b": tensor, "part": tensor[1:3]}
    loaded, _ = decode(encode(given_ones, {}), PATH)
    assert [loaded[name].tolist() for name in ("a", "b", "part")] == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2]]
    assert given_ones["a"] is given_ones["b"]


def test_loaded_tensors_share_nothing_with_the_bytes_or_each_other() -> None:
    data = encode({"a": torch.zeros(4), "b": torch.zeros(4)}, {})
    first, _ = decode(data, PATH)
    first["a"].fill_(1)
    second, _ = decode(data, PATH)
    assert first["b"].eq(0).all()
    assert second["a"].eq(0).all()


def test_facts_may_hold_numbers_of_numpy_and_torch() -> None:
    said = {"a": np.int64(3), "b": np.float32(0.5), "c": torch.tensor(2), "d": np.bool_(True)}
    assert parse_json(canonical_json(said).encode()) == {"a": 3, "b": 0.5, "c": 2, "d": True}


def test_facts_that_json_has_no_word_for_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": float("nan")})
    with pytest.raises(TypeError, match="object"):
        canonical_json({"a": object()})


BAD = {
    "nothing at all": b"",
    "less than a length": b"\x08\0\0\0",
    "a length and no header": (100).to_bytes(8, "little"),
    "a header of 2^60 bytes": raw("{}", length=2**60),
    "a header of 2^64-1 bytes": raw("{}", length=2**64 - 1),
    "a header longer than the file": raw(FACTS_OF_NONE, length=1000),
    "a header that ends early": raw(FACTS_OF_NONE, length=5),
    "an empty header": raw(""),
    "no JSON": raw("hello"),
    "JSON that is no object": raw("[1, 2]"),
    "JSON null": raw("null"),
    "a number": raw("7"),
    "not UTF-8": raw(b'{"__metadata__": {"nacre": "{}"}, "\xff": 1}'),
    "a lone brace": raw("{"),
    "nothing but zeros": bytes(64),
    "nesting of 10^5 lists": raw("[" * 10**5),
    "nesting of 10^5 objects": raw('{"a":' * 10**5),
    "nesting within the metadata": raw(json.dumps({"__metadata__": {FACTS: "[" * 10**5}})),
    "nesting in a shape": raw('{"__metadata__":{"nacre":"{}"},"a":{"dtype":"F32","shape":' + "[" * 10**5),
    "an integer of 5000 digits": raw('{"__metadata__": {"nacre": "{}"}, "a": ' + "9" * 5000 + "}"),
    "no metadata": raw("{}"),
    "metadata that is a list": raw('{"__metadata__": ["nacre"]}'),
    "metadata that is null": raw('{"__metadata__": null}'),
    "metadata of somebody else": raw('{"__metadata__": {"format": "pt"}}'),
    "metadata that is no JSON": raw('{"__metadata__": {"nacre": "hello"}}'),
    "metadata that is a number": raw('{"__metadata__": {"nacre": 5}}'),
    "metadata with a key twice": raw(json.dumps({"__metadata__": {FACTS: '{"a": 1, "a": 2}'}})),
    "a key twice": raw('{"__metadata__": {"nacre": "{}"}, "a": {}, "a": {}}'),
    "metadata twice": raw('{"__metadata__": {"nacre": "{}"}, "__metadata__": {"nacre": "{}"}}'),
    "bytes after the end": raw(FACTS_OF_NONE, b"\0"),
    "a tensor that is a list": raw('{"__metadata__": {"nacre": "{}"}, "a": [1]}'),
    "a tensor that is null": raw('{"__metadata__": {"nacre": "{}"}, "a": null}'),
    "a tensor without a shape": raw('{"__metadata__": {"nacre": "{}"}, "a": {"dtype": "F32", "data_offsets": [0, 0]}}'),
    "a negative shape": one_tensor(shape=[-1]),
    "two negative extents": one_tensor(bytes(4), shape=[-1, -1], data_offsets=[0, 4]),
    "a shape of floats": one_tensor(bytes(4), shape=[1.0], data_offsets=[0, 4]),
    "a shape of booleans": one_tensor(bytes(4), shape=[True], data_offsets=[0, 4]),
    "a shape of texts": one_tensor(bytes(4), shape=["1"], data_offsets=[0, 4]),
    "a shape that is a text": one_tensor(shape="11"),
    "a shape that is an object": one_tensor(bytes(4), shape={}, data_offsets=[0, 4]),
    "a shape that is a number": one_tensor(shape=0),
    "a shape of 2^40 and no bytes": one_tensor(shape=[2**40]),
    "a shape of 2^62": one_tensor(shape=[2**62]),
    "a shape that overflows to nothing": one_tensor(shape=[2**32, 2**32]),
    "a shape that overflows to one": one_tensor(bytes(4), shape=[2**63 + 1, 2**63 + 1], data_offsets=[0, 4]),
    "an empty shape too large for torch": one_tensor(shape=[2**47, 2**47, 0]),
    "an empty shape of 2^100": one_tensor(shape=[0, 2**100]),
    "a hundred dimensions": one_tensor(bytes(4), shape=[1] * 100, data_offsets=[0, 4]),
    "one float too few": one_tensor(bytes(4), shape=[2], data_offsets=[0, 4]),
    "the end before the start": one_tensor(bytes(4), data_offsets=[4, 0]),
    "negative offsets": one_tensor(data_offsets=[-4, -4]),
    "offsets of floats": one_tensor(data_offsets=[0.0, 0.0]),
    "offsets of booleans": one_tensor(bytes(1), dtype="U8", shape=[1], data_offsets=[False, True]),
    "three offsets": one_tensor(data_offsets=[0, 0, 0]),
    "no offsets": one_tensor(data_offsets=None),
    "an end after the file": one_tensor(bytes(4), shape=[2], data_offsets=[0, 8]),
    "a place at 2^60": one_tensor(shape=[0], data_offsets=[2**60, 2**60]),
    "tensors that overlap": two_tensors([0, 8], [4, 8]),
    "tensors in the same place": two_tensors([0, 8], [0, 8]),
    "a gap at the start": two_tensors([4, 8], [8, 12], body=12),
    "a gap between tensors": two_tensors([0, 4], [8, 12], body=12),
    "a gap at the end": two_tensors([0, 4], [4, 8], body=12),
    "the type F8_E4M3": one_tensor(bytes(1), dtype="F8_E4M3", shape=[1], data_offsets=[0, 1]),
    "the type X": one_tensor(dtype="X"),
    "the type ''": one_tensor(dtype=""),
    "the type null": one_tensor(dtype=None),
    "a type that is a list": one_tensor(dtype=["F32"]),
    "a type that is a number": one_tensor(dtype=32),
}


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_refused_by_name_and_allocates_nothing(what: str) -> None:
    with pytest.raises(NacreError) as refused:
        decode(BAD[what], PATH)
    message = str(refused.value)
    assert str(PATH) in message
    assert "alloc" not in message, "refused only because there was no memory"
    assert len(message) < 2000


@pytest.mark.usefixtures("little_memory")
def test_a_large_empty_shape_takes_no_memory() -> None:
    loaded, _ = decode(one_tensor(shape=[2**40, 0]), PATH)  # rank 0 of a huge layer; the layout says whether it fits
    assert loaded["a"].shape == (2**40, 0)


GOOD = encode({"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([True, False])}, {"task": "x", "n": [1, 2]})


def test_no_beginning_of_a_file_passes_for_a_file() -> None:
    for length in range(len(GOOD)):
        with pytest.raises(NacreError, match="007-bond"):
            decode(GOOD[:length], PATH)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_changed_file_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    """Without the hash in the index, changed numbers cannot be seen; changed structure must be."""
    header_end = 8 + int.from_bytes(GOOD[:8], "little")
    at = data.draw(st.integers(0, header_end - 1))
    removed = data.draw(st.integers(0, 4))
    changed = GOOD[:at] + data.draw(st.binary(max_size=4)) + GOOD[at + removed :]
    loaded: dict[str, Tensor] = {}
    refusal = "007-bond"
    try:
        loaded, _ = decode(changed, PATH)
    except NacreError as error:
        refusal = str(error)
    assert "007-bond" in refusal
    assert sum(tensor.numel() * tensor.element_size() for tensor in loaded.values()) <= len(changed)


def test_the_good_file_itself_is_read() -> None:
    loaded, said = decode(GOOD, PATH)
    assert loaded["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert said == {"task": "x", "n": [1, 2]}
