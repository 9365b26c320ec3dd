"""Weights and their file: sizes by hand, what is refused, damage that is named, a file that is old or new."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nacre import Learner, NacreError
from nacre.methods import Finetune
from nacre.space import Examples, Memory, Size, Weights, describe, facts_of, is_saved, verify
from nacre.space.masks import pack, unpack
from nacre.space.rewritten import FILE, read

DEADLINE_S = 120


def backbone() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3, bias=False))


def weights_with(*tasks: str, **options: Any) -> Weights:
    weights = Weights(backbone())
    for name in tasks:
        network = weights.expand(nn.Linear(3, 2))
        network(torch.randn(6, 5))
        weights.append(name, network, **options)
    return weights


def state(weights: Weights) -> dict[str, dict[str, Tensor]]:
    return {task: dict(weights.network(task).state_dict()) for task in weights.tasks}


def same(a: dict[str, dict[str, Tensor]], b: dict[str, dict[str, Tensor]]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[task][name], b[task][name]) for task in a for name in a[task])


# what is kept


def test_a_new_task_trains_the_weights_of_all_and_keeps_what_is_its_own() -> None:
    weights = weights_with("a")
    before = state(weights)["a"]
    network = weights.expand(nn.Linear(3, 2))
    assert sorted(network.shared()) == ["0.weight", "3.weight"]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    network(torch.randn(8, 5) + 3)
    weights.append("b", network)
    after = state(weights)
    for name in ("backbone.0.weight", "backbone.3.weight"):
        assert torch.equal(after["a"][name], before[name] + 1)
        assert torch.equal(after["a"][name], after["b"][name])
    for name in set(before) - {"backbone.0.weight", "backbone.3.weight", "backbone.1.num_batches_tracked"}:
        assert torch.equal(after["a"][name], before[name]), name
        assert not torch.equal(after["b"][name], before[name]), name


def test_the_size_by_hand() -> None:
    mask = {"0.weight": torch.ones(4, 5, dtype=torch.bool)}
    memory = Memory({"a": Examples(torch.zeros(7, 5), torch.zeros(7, dtype=torch.long))}, 30)
    weights = weights_with(
        "a", "b", masks=mask, extra={"gate": torch.ones(3)}, state={"fisher": torch.ones(11)}, memory=memory
    )
    assert weights.size() == Size(
        weights=4 * 5 + 3 * 4,
        heads=2 * (3 * 2 + 2),
        private=2 * (4 + 4 * 4),  # a bias; scale, shift, mean and variance of the norm layer
        extra=2 * 3,
        mask_bits=2 * 20,
        learning=11,
        images=7,
        image_bytes=7 * (5 * 4 + 8),
    )
    assert weights.size("a") == Size(heads=8, private=20, extra=3, mask_bits=20)
    assert weights.size().megabytes == pytest.approx((4 * (32 + 16 + 40 + 6) + 5) / 1e6)
    assert weights.size().megabytes_without_masks == pytest.approx(4 * (32 + 16 + 40 + 6) / 1e6)


def test_a_mask_leaves_a_task_the_weights_it_names_and_0_elsewhere() -> None:
    chosen = torch.rand(4, 5) > 0.5
    weights = weights_with("a", masks={"0.weight": chosen})
    shared = weights.shared["0.weight"].numpy()
    used = weights.network("a").get_parameter("backbone.0.weight").detach().numpy()
    np.testing.assert_array_equal(used, np.where(chosen.numpy(), shared, 0))
    assert not np.signbit(used[~chosen.numpy()]).any()
    assert torch.equal(weights.network("a").get_parameter("backbone.3.weight"), weights.shared["3.weight"])


def test_what_goes_through_a_module_is_what_the_network_computes_with() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))

        def forward(self, shared: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: self.factor * value for name, value in shared.items()}

    weights = Weights(nn.Sequential(nn.Linear(5, 4, bias=False)))
    network = weights.expand(nn.Identity(), through=Doubled())
    x = torch.randn(3, 5)
    torch.testing.assert_close(network(x), 2 * x @ weights.shared["0.weight"].T)
    assert any(name == "through.factor" for name, _ in network.named_parameters())
    network(x).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_with_earlier_tasks_a_network_answers_for_them_and_trains_what_is_theirs() -> None:
    weights = weights_with("a", "b")
    network, x = weights.expand(nn.Linear(3, 2), earlier=True), torch.randn(6, 5)
    network.eval()
    for task in weights.tasks:
        assert torch.equal(network.answer(task, x), weights.network(task)(x))
    with pytest.raises(NacreError, match="does not answer for 'c'"):
        network.answer("c", x)
    with pytest.raises(NacreError, match="expand it with earlier=True"):
        weights.expand(nn.Linear(3, 2)).answer("a", x)
    own = network.own("a")
    with torch.no_grad():
        own.head.get_parameter("bias").fill_(5)
        own.private["1.weight"].fill_(7)
    network.train()(x)
    before = state(weights)
    weights.append("c", network)
    after = state(weights)
    assert after["a"]["head.bias"].tolist() == [5, 5]
    assert after["a"]["backbone.1.weight"].tolist() == [7] * 4
    assert torch.equal(after["b"]["backbone.1.weight"], before["b"]["backbone.1.weight"])


@pytest.mark.parametrize("spoilt", ["backbone.0.weight", "backbone.1.bias", "head.weight"])
def test_what_is_not_finite_is_refused_and_nothing_changes(spoilt: str) -> None:
    weights = weights_with("a")
    before, network = state(weights), weights.expand(nn.Linear(3, 2))
    with torch.no_grad():
        network.get_parameter(spoilt).view(-1)[0] = torch.inf
    with pytest.raises(NacreError, match=r"holds numbers that are not finite; nothing was appended"):
        weights.append("b", network, state={"x": torch.zeros(1)})
    assert same(state(weights), before)
    assert weights.state == {}


def test_a_network_of_other_weights_or_of_before_is_refused() -> None:
    weights, other = weights_with("a"), weights_with("a")
    early = weights.expand(nn.Linear(3, 2))
    with pytest.raises(NacreError, match="expanded from other weights"):
        weights.append("b", other.expand(nn.Linear(3, 2)))
    weights.append("b", weights.expand(nn.Linear(3, 2)))
    with pytest.raises(NacreError, match="expanded before 'b' was appended"):
        weights.append("c", early)
    with pytest.raises(NacreError, match="already learnt"):
        weights.append("b", weights.expand(nn.Linear(3, 2)))


def test_tied_weights_stay_tied_and_parameters_without_gradient_are_trained_by_no_task() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.two.weight = self.one.weight
            self.table = nn.Parameter(torch.ones(4), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return torch.mul(self.two(self.one(x)), self.table)

    weights = Weights(Tied())
    network = weights.expand(nn.Linear(4, 2))
    assert weights.trained == tuple(network.shared()) == ("one.weight",)
    assert network.backbone.get_parameter("two.weight") is network.backbone.get_parameter("one.weight")
    network(torch.zeros(2, 4))
    weights.append("a", network)
    plain = weights.network("a").get_submodule("backbone")
    assert plain.get_parameter("two.weight") is plain.get_parameter("one.weight")
    assert weights.size().weights == 16 + 4


def test_what_only_a_shared_space_takes_is_refused() -> None:
    with pytest.raises(
        NacreError, match=r"base=, include= says what a SharedSpace factorises; Finetune takes private="
    ):
        Learner(backbone(), Finetune(), device="cpu", include=lambda *_: True, base="backbone")


# the file


def full(folder: Path) -> Weights:
    """Something of every kind."""
    pictures = torch.randint(0, 256, (9, 3, 4, 4)).float().sub(7).div(31)
    memory = Memory({"a": Examples({"x": pictures}, [torch.arange(9)])}, 77)
    weights = weights_with(
        "a", "b/../b", masks={"3.weight": torch.rand(3, 4) > 0.3}, extra={"gate": torch.rand(3)},
        state={"fisher/0.weight": torch.rand(4, 5)}, memory=memory,
    )  # fmt: skip
    weights.facts["seed"] = 3
    weights.save(folder)
    return weights


def test_all_of_it_comes_back_to_the_bit(tmp_path: Path) -> None:
    weights = full(tmp_path / "w")
    loaded = Weights.load(tmp_path / "w")
    assert same(state(loaded), state(weights))
    assert loaded.facts == facts_of(tmp_path / "w") == {"seed": 3}
    assert loaded.size() == weights.size()
    assert loaded.state.keys() == weights.state.keys()
    assert torch.equal(loaded.state["fisher/0.weight"], weights.state["fisher/0.weight"])
    assert torch.equal(loaded.extra("a")["gate"], weights.extra("a")["gate"])
    assert torch.equal(loaded.masks("a")["3.weight"], weights.masks("a")["3.weight"])
    was, now = (each.memory.tasks["a"] for each in (weights, loaded))
    assert torch.equal(was.inputs["x"], now.inputs["x"])
    assert torch.equal(was.targets[0], now.targets[0])
    assert loaded.memory.seen == 77
    assert is_saved(tmp_path / "w")
    assert [path.name for path in (tmp_path / "w").iterdir() if path.name != ".lock"] == [FILE]


def test_saving_again_gives_the_same_bytes(tmp_path: Path) -> None:
    full(tmp_path / "w")
    Weights.load(tmp_path / "w").save(tmp_path / "again")
    assert (tmp_path / "again" / FILE).read_bytes() == (tmp_path / "w" / FILE).read_bytes()


def test_inspect_and_verify_say_what_is_in_it(tmp_path: Path) -> None:
    weights = full(tmp_path / "w")
    described = describe(tmp_path / "w")
    assert [task["task"] for task in described["tasks"]] == ["a", "b/../b"]
    assert described["megabytes"] == weights.size().megabytes
    assert described["tasks"][0]["megabytes"] == weights.size("a").megabytes
    assert (described["images_kept"], described["bytes_on_disk"]) == (9, (tmp_path / "w" / FILE).stat().st_size)
    assert verify(tmp_path / "w") == []


def flipped(data: bytes) -> bytes:
    at = len(data) - 5
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def with_header(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        facts = json.loads(header["__metadata__"]["nacre"])
        change(facts)
        header["__metadata__"]["nacre"] = json.dumps(facts)
        new = json.dumps(header).encode()
        return struct.pack("<Q", len(new)) + new + data[8 + length :]

    return changed


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a bit": (flipped, "its contents do not match its own hash"),
    "cut short": (lambda data: data[:-9], "is damaged"),
    "empty": (lambda _: b"", "is damaged"),
    "no safetensors": (lambda _: b"\xff" * 300, "is damaged"),
    "a fact": (with_header(lambda facts: facts["facts"].update(seed=4)), "its contents do not match its own hash"),
    "a task's name": (with_header(lambda facts: facts["tasks"][0].update(name="x")), "do not match its own hash"),
    "another format": (with_header(lambda facts: facts.update(format="x")), "is damaged"),
    "a later version": (with_header(lambda facts: facts.update(version=9)), "install a newer nacre"),
    "no version": (with_header(lambda facts: facts.update(version="1")), "is damaged"),
    "facts that are none": (with_header(lambda facts: facts.update(facts=3)), "is damaged"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_with_the_file(kind: str, tmp_path: Path) -> None:
    full(tmp_path / "w")
    path = tmp_path / "w" / FILE
    change, message = DAMAGE[kind]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(NacreError, match=message) as caught:
        Weights.load(tmp_path / "w")
    assert str(path) in str(caught.value)
    (problem,) = verify(tmp_path / "w")
    assert str(path) in problem
    with pytest.raises(NacreError):
        Learner.load(tmp_path / "w")


def test_a_file_of_another_life_is_not_written_over(tmp_path: Path) -> None:
    weights = full(tmp_path / "w")
    other = weights_with("x")
    with pytest.raises(NacreError, match="holds something else that was learnt: its task 0 is 'a'"):
        other.save(tmp_path / "w")
    with pytest.raises(NacreError, match=r"its task 0 is 'a'.*here there is none"):
        Weights(backbone()).save(tmp_path / "w")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    with pytest.raises(NacreError, match="holds something else"):
        weights.save(tmp_path / "full")
    assert same(state(Weights.load(tmp_path / "w")), state(weights))
    assert (tmp_path / "full" / "thesis.txt").read_text() == "x"


def test_a_backbone_of_ones_own_is_asked_for(tmp_path: Path) -> None:
    class Own(nn.Sequential):
        pass

    weights = Weights(Own(nn.Linear(5, 4)))
    network = weights.expand(nn.Linear(4, 2))
    network(torch.zeros(2, 5))
    weights.append("a", network)
    weights.save(tmp_path / "w")
    with pytest.raises(NacreError, match=r"is a .*Own of your own: load it with backbone="):
        Weights.load(tmp_path / "w")
    assert same(state(Weights.load(tmp_path / "w", backbone=Own(nn.Linear(5, 4)))), state(weights))
    with pytest.raises(NacreError, match=r"this backbone does not fit"):
        Weights.load(tmp_path / "w", backbone=Own(nn.Linear(6, 4)))


def killed_while_saving(folder: Path, moment: int) -> subprocess.CompletedProcess[str]:
    """Adds a task in another process, which is killed just before one of its file operations."""
    return subprocess.run(
        [sys.executable, __file__, str(folder), str(moment)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    ends = set()
    for moment in range(1, 40):
        folder = tmp_path / str(moment)
        before = state(full(folder))
        done = killed_while_saving(folder, moment)
        loaded = Weights.load(folder)
        assert same({task: state(loaded)[task] for task in before}, before)
        ends.add((done.returncode, len(loaded.tasks)))
        if done.returncode == 0:
            break
    assert (-signal.SIGKILL, 2) in ends
    assert (0, 3) in ends
    assert all(status in (0, -signal.SIGKILL) for status, _ in ends)


# masks and examples


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4))
def test_a_mask_takes_one_bit_a_number_and_comes_back(values: list[bool], rows: int) -> None:
    mask = torch.tensor(values * rows, dtype=torch.bool).view(rows, len(values))
    packed = pack(mask)
    assert packed.numel() == (rows * len(values) + 7) // 8
    assert torch.equal(unpack(packed, mask.shape), mask)


def test_a_mask_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="a mask of 9 bits is not stored in"):
        unpack(torch.zeros(1, dtype=torch.uint8), (3, 3))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.sampled_from([0.0, -0.0, float("nan"), 2.5]))
def test_pictures_come_back_to_the_bit_however_many_values_they_have(seed: int, levels: int, odd: float) -> None:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(3, levels)).astype(np.float32)
    values[0, 0] = odd
    at = draw.integers(0, levels, size=(5, 3, 9, 8))
    pictures = torch.from_numpy(np.stack([values[channel][at[:, channel]] for channel in range(3)], 1))
    kept = Examples(pictures, torch.arange(5))
    tensors, described = kept.stored
    back = Examples.read({name: tensor.clone() for name, tensor in tensors.items()}, described)
    assert back.inputs.numpy().tobytes() == pictures.numpy().tobytes()
    whole = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.uint8}
    if max(len(np.unique(pictures[:, channel].numpy())) for channel in range(3)) > 256:
        assert not whole


def test_pictures_of_256_levels_take_a_byte_a_pixel() -> None:
    pictures = torch.randint(0, 256, (20, 3, 16, 16)).float().div(255).sub(0.5).div(0.26)
    memory = Memory({"a": Examples(pictures, torch.zeros(20, dtype=torch.uint8))})
    assert memory.bytes == 20 * 3 * 16 * 16 + 3 * 256 * 4 + 20
    assert memory.images == 20


if __name__ == "__main__":
    folder, moment = Path(sys.argv[1]), int(sys.argv[2])
    counted = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        global counted
        writes = event in ("os.rename", "os.remove") or (event == "open" and arguments[1] not in (None, "r", "rb"))
        if writes and str(folder) in str(arguments[0]):
            counted += 1
            if counted == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    life = Weights.load(folder)
    network_ = life.expand(nn.Linear(3, 2))
    network_(torch.randn(6, 5))
    life.append("c", network_)
    sys.addaudithook(watch)
    life.save(folder)
    read(folder)
