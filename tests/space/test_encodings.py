"""Tasks in fewer bits: what later tasks stand on is what the file says, sizes are those bytes, damage is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import Tensor, nn

import nacre
from nacre import NacreError, SharedSpace
from nacre.lowrank import Dtype
from nacre.space import describe, store, verify
from nacre.space.container import FACTS, decode, encode

FEWER: tuple[Dtype, ...] = ("bfloat16", "int8")
X = torch.linspace(-2, 2, 7 * 3 * 64).view(7, 3, 8, 8)


def learnt(*dtypes: Dtype, head: Dtype = "float32") -> SharedSpace:
    """One task after another, each appended in its own number of bits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 20)]
        space = SharedSpace(nn.Sequential(*parts))
        for number, dtype in enumerate(dtypes):
            network = space.expand(nn.Linear(20, 4), rank=3 + number)
            optimizer = torch.optim.SGD(network.parameters(), 0.05)
            network(torch.randn(16, 3, 8, 8)).square().mean().backward()
            optimizer.step()
            space.append(f"task {number}", network, dtype=dtype, head_dtype=head)
    return space


def answers(space: SharedSpace) -> dict[str, bytes]:
    with torch.no_grad():
        return {task: space.network(task)(X).numpy().tobytes() for task in space.tasks}


@pytest.mark.parametrize("dtype", FEWER)
@pytest.mark.parametrize("head", ["float32", *FEWER])
def test_what_is_stored_is_what_is_answered_with_and_built_upon(dtype: Dtype, head: Dtype, tmp_path: Path) -> None:
    space = learnt(dtype, "float32", dtype, head=head)
    before = answers(space)
    space.save(tmp_path / "s")
    assert answers(space) == before
    loaded = SharedSpace.load(tmp_path / "s")
    assert answers(loaded) == before
    for task in space.tasks:
        for name, factors in space.record(task).factors.items():
            again = loaded.record(task).factors[name]
            assert torch.equal(factors.U, again.U)
            assert torch.equal(factors.V, again.V)
            assert torch.equal(factors.s, again.s)
    assert verify(tmp_path / "s") == []
    assert SharedSpace.load(tmp_path / "s").size() == loaded.size()

    loaded.save(tmp_path / "copy")  # written anew from what was read
    for file in ("space.json", "tasks/000-task-0.safetensors"):
        assert (tmp_path / "copy" / file).read_bytes() == (tmp_path / "s" / file).read_bytes()


def test_the_file_holds_the_small_numbers_as_documented(tmp_path: Path) -> None:
    """Read with numpy and the page on the format alone: value = number times the scale of its column, or row."""
    space = learnt("int8", head="int8")
    space.save(tmp_path / "s")
    path = tmp_path / "s" / "tasks" / "000-task-0.safetensors"
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    encodings = json.loads(header["__metadata__"][FACTS])["encodings"]
    assert encodings == {"head/weight": "int8"} | {
        f"factors/{layer}/{part}": "int8" for layer in ("0", "4") for part in "UV"
    }

    def read(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        def values(key: str, kind: str) -> np.ndarray[Any, Any]:
            start, stop = header[key]["data_offsets"]
            body = 8 + int.from_bytes(data[:8], "little")
            return np.frombuffer(data[body + start : body + stop], kind)

        scales = (values(f"scales/{name}", "<u2").astype(np.uint32) << 16).view(np.float32)
        return values(name, "i1").reshape(header[name]["shape"]).astype(np.float32) * scales.reshape(shape)

    record = space.record("task 0")
    for layer in ("0", "4"):
        assert np.array_equal(read(f"factors/{layer}/U", (1, -1)), record.factors[layer].U.numpy())
        assert np.array_equal(read(f"factors/{layer}/V", (1, -1)), record.factors[layer].V.numpy())
        assert header[f"factors/{layer}/s"]["dtype"] == "F32"
    assert np.array_equal(read("head/weight", (-1, 1)), dict(record.head.named_parameters())["weight"].detach().numpy())
    assert header["head/bias"]["dtype"] == "F32"


@pytest.mark.parametrize(("dtype", "entry", "scale"), [("bfloat16", 2, 0), ("int8", 1, 2)])
def test_sizes_count_the_bytes_that_are_stored(dtype: Dtype, entry: int, scale: int, tmp_path: Path) -> None:
    space, plain = learnt(dtype, head=dtype), learnt("float32")
    shapes = ((8, 27), (20, 288))
    factors = sum(3 * (entry * (out + rest) + 2 * scale + 4) for out, rest in shapes)
    head = entry * 4 * 20 + scale * 4 + 4 * 4
    others = 4 * (4 * 8 + 20 + 2)  # norm tensors, the bias of the linear layer, an identifier for each layer
    assert space.size().bytes == factors + head + others == round(space.size().megabytes * 1e6)
    assert space.size().numbers == plain.size().numbers
    space.save(tmp_path / "s")
    described = describe(tmp_path / "s")
    assert described["megabytes"] == space.size().megabytes == SharedSpace.load(tmp_path / "s").size().megabytes
    on_disk = sum(tensor.nbytes for tensor in stored(tmp_path / "s")[0].values())
    assert on_disk == factors + head + 4 * (4 * 8 + 20)


def test_int8_brings_the_factors_of_conv5_under_the_share_that_is_promised() -> None:
    sizes = {}
    for dtype in ("float32", "int8"):
        space = SharedSpace(nacre.networks.conv5())
        space.append("one", space.expand(nn.Linear(1024, 5)), dtype=dtype)
        sizes[dtype] = 4 * space.size().factors - space.size().saved
    assert sizes["int8"] < 0.27 * sizes["float32"]


def test_a_method_passes_its_choice_on_and_keeps_it(tmp_path: Path) -> None:
    x, y = torch.randn(32, 6), torch.arange(32) % 2
    method = nacre.CACL(dtype="int8", head_dtype="bfloat16", budget=2000)
    learner = nacre.Learner(nn.Sequential(nn.Linear(6, 30), nn.ReLU()), method, device="cpu", progress=False)
    for task in ("a", "b"):
        learner.learn(task, (x, y), recipe=nacre.Recipe(epochs=2))
    answered = learner.predict(x, task="a")
    record = learner.knowledge.record("a")  # type: ignore[attr-defined]
    assert (record.dtype, record.head_dtype) == ("int8", "bfloat16")
    learner.save(tmp_path / "s")
    loaded = nacre.Learner.load(tmp_path / "s", device="cpu", progress=False)
    assert loaded.method == method
    assert torch.equal(loaded.predict(x, task="a"), answered)


def test_numbers_that_fewer_bits_cannot_hold_are_refused_and_nothing_is_appended() -> None:
    space = SharedSpace(nn.Linear(4, 3))
    network = space.expand(nn.Linear(3, 2), rank=1)
    factors = network.factors()["weight"]
    for dtype, number in (("bfloat16", 3.4028e38), ("int8", float("nan")), ("int8", float("inf"))):
        U = factors.U.detach().clone().fill_(number)
        network.load_factors({"weight": nacre.Factors(U, factors.s, factors.V)})
        with pytest.raises(NacreError, match=r"weight\.U holds numbers that are not finite"):
            space.append("too large", network, dtype=dtype)  # type: ignore[arg-type]
    assert space.tasks == ()


# damage


def stored(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    path = folder / "tasks" / "000-task-0.safetensors"
    return decode(path.read_bytes(), path)


def forge(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any], saved: Any = None) -> None:
    """Puts another file into a store, with all hashes right: what a careful forger would do."""
    data = encode(tensors, facts)
    index = store.read_index(folder)
    (folder / "tasks" / "000-task-0.safetensors").write_bytes(data)
    index["tasks"][0] |= store.fingerprint(data)
    if saved is not None:
        index["tasks"][0]["saved"] = saved
    (folder / "space.json").write_bytes(store.signed(index))


def changed_scale(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    t["scales/factors/4/U"] = t["scales/factors/4/U"].float().nextafter(torch.tensor(9.0)).to(torch.float32)


def negative_scale(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    t["scales/factors/4/U"] = -t["scales/factors/4/U"]


def infinite_scale(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    t["scales/factors/4/U"] = t["scales/factors/4/U"] * float("inf")


def no_scale(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    del t["scales/factors/4/U"]


def scale_too_many(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    t["scales/factors/4/s"] = torch.ones(1, dtype=torch.bfloat16)


def too_few_scales(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    t["scales/factors/4/U"] = t["scales/factors/4/U"][:-1]


def unused_step(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    t["factors/4/U"] = t["factors/4/U"].clone().fill_(-128)


def half_a_range(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    t["factors/4/U"] = t["factors/4/U"] // 2


def wrong_type(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    t["factors/4/U"] = t["factors/4/U"].to(torch.int16)


def not_said(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    del f["encodings"]["factors/4/U"]


def said_of_nothing(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    f["encodings"]["factors/9/U"] = "int8"


def said_of_s(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    f["encodings"]["factors/4/s"] = "int8"


def said_otherwise(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    f["encodings"]["factors/4/U"] = "bfloat16"


def said_private(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    f["encodings"]["private/1.weight"] = "bfloat16"


def no_object(t: dict[str, Tensor], f: dict[str, Any]) -> None:
    f["encodings"] = ["int8"]


DAMAGE = [
    *(changed_scale, negative_scale, infinite_scale, no_scale, scale_too_many, too_few_scales, unused_step),
    *(half_a_range, wrong_type, not_said, said_of_nothing, said_of_s, said_otherwise, said_private, no_object),
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_forged_encoding_is_refused_by_the_name_of_its_file(damage: Any, tmp_path: Path) -> None:
    learnt("int8").save(tmp_path / "s")
    tensors, facts = stored(tmp_path / "s")
    damage(tensors, facts)
    forge(tmp_path / "s", tensors, facts)
    with pytest.raises(NacreError, match=r"000-task-0\.safetensors is damaged"):
        SharedSpace.load(tmp_path / "s").network("task 0")
    assert verify(tmp_path / "s") != []


def test_an_encoding_of_the_future_asks_for_a_newer_nacre(tmp_path: Path) -> None:
    learnt("int8").save(tmp_path / "s")
    tensors, facts = stored(tmp_path / "s")
    facts["encodings"]["factors/4/U"] = "int4"
    forge(tmp_path / "s", tensors, facts)
    with pytest.raises(NacreError, match="encoding 'int4', which this nacre cannot read: install a newer nacre"):
        SharedSpace.load(tmp_path / "s").network("task 0")


@pytest.mark.parametrize("saved", [{}, {"factors": 1}, {"head": 5}])
def test_an_index_that_counts_other_bytes_is_refused(saved: dict[str, int], tmp_path: Path) -> None:
    learnt("int8").save(tmp_path / "s")
    forge(tmp_path / "s", *stored(tmp_path / "s"), saved=saved)
    with pytest.raises(NacreError, match="damaged"):
        SharedSpace.load(tmp_path / "s").network("task 0")
    assert verify(tmp_path / "s") != []


def test_a_store_without_encodings_is_written_as_before(tmp_path: Path) -> None:
    learnt("float32").save(tmp_path / "s")
    assert "saved" not in store.read_index(tmp_path / "s")["tasks"][0]
    assert stored(tmp_path / "s")[1]["encodings"] == {}
    assert safetensors.numpy.load_file(tmp_path / "s/tasks/000-task-0.safetensors")["factors/4/U"].dtype == np.float32
