"""Zero forgetting: the logits of a task are the same bits after later tasks, after a save, and in another process."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nacre import Factors, SharedSpace, Start, compress
from nacre.space import Network


class Conv(nn.Module):
    """Convolutions of several kinds with every norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, groups=4, bias=False), nn.GroupNorm(2, 8), nn.GELU(),
            nn.ConvTranspose2d(8, 6, 3, stride=2), nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(486, 12), nn.LayerNorm(12),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features


class Attention(nn.Module):
    """Embeddings and a token that are frozen after the first task, packed and separate attention, norms."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 12)
        self.token = nn.Parameter(torch.randn(1, 1, 12))
        self.encoder = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True)
        self.cross = nn.MultiheadAttention(12, 2, kdim=12, vdim=7, batch_first=True)
        self.values = nn.Linear(12, 7)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        x = self.encoder(torch.cat([self.token.expand(len(x), 1, 12), x], 1))
        features: Tensor = self.cross(x[:, :1], x, self.values(x), need_weights=False)[0][:, 0]
        return features


class Signal(nn.Module):
    """One and three dimensions, forwards and transposed, and a weight that stands twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv1d(4, 6, 3, stride=2)
        self.up = nn.ConvTranspose1d(6, 4, 2, groups=2)
        self.three = nn.Conv3d(1, 3, 2)
        self.down = nn.ConvTranspose3d(3, 2, 2, stride=2, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 32)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.up(torch.tanh(self.one(x))))
        cube = self.three(x.reshape(len(x), 1, 4, 2, 2).tanh())
        flat = self.down(cube).flatten(1)[:, :32]
        features: Tensor = self.second(torch.relu(self.first(flat)))
        return features


def plain_sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 9, bias=False), nn.RMSNorm(9))


def wide_images(generator: torch.Generator, count: int) -> Tensor:
    return torch.randn(count, 3, 6, 6, generator=generator)


def words(generator: torch.Generator, count: int) -> Tensor:
    return torch.randint(11, (count, 5), generator=generator)


def signals(generator: torch.Generator, count: int) -> Tensor:
    return torch.randn(count, 4, 7, generator=generator)


def vectors(generator: torch.Generator, count: int) -> Tensor:
    return torch.randn(count, 10, generator=generator)


# backbone, inputs, features, whether a store of it loads without the backbone
LIVES: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator, int], Tensor], int, bool]] = {
    "conv": (Conv, wide_images, 12, False),
    "attention": (Attention, words, 12, False),
    "signal": (Signal, signals, 32, False),
    "sequential": (plain_sequential, vectors, 9, True),
}
TASKS = ("one", "two", "alone", "three", "dense", "four", "five")


def heads(features: int) -> list[nn.Module]:
    """Of several sizes and kinds."""
    return [
        nn.Linear(features, 5),
        nn.Linear(features, 2, bias=False),
        nn.Sequential(nn.Linear(features, 4), nn.ReLU(), nn.Linear(4, 3)),
        nn.Sequential(nn.LayerNorm(features), nn.Linear(features, 7)),
        nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, 3)),
        nn.Linear(features, 1),
        nn.Linear(features, 5),
    ]


def train(network: nn.Module, x: Tensor, steps: int = 2) -> None:
    """A few steps in train mode, so that every trainable tensor and every norm statistic moves."""
    network.train()
    optimizer = torch.optim.SGD((p for p in network.parameters() if p.requires_grad), lr=0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()


@torch.no_grad()
def logits(network: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = network.eval()(x)
    return output


class Life:
    """A space that learns all the tasks, with what each gave at the moment it was learnt."""

    def __init__(self, kind: str, folder: Path) -> None:
        torch.manual_seed(len(kind))
        generator = torch.Generator().manual_seed(7)
        make, inputs, features, _ = LIVES[kind]
        self.kind, self.folder = kind, folder / kind
        self.x = inputs(generator, 8)
        self.space = SharedSpace(make())
        self.trained: dict[str, Tensor] = {}  # by the trained and compressed network itself
        self.plain: dict[str, Tensor] = {}  # by space.network, at once
        self.again: dict[str, list[Tensor]] = {}  # by space.network, after each later task
        for task, head in zip(TASKS, heads(features), strict=True):
            network = self.space.expand(head, start=Start(later=0.7), sharing=task != "alone", dense=task == "dense")
            train(network, inputs(generator, 16))
            compress(network, energy=0.2)
            self.trained[task] = logits(network, self.x)
            self.space.append(task, network)
            self.again[task] = []
            for learnt in self.space.tasks:
                self.again[learnt].append(logits(self.space.network(learnt), self.x))
            self.plain[task] = self.again[task][0]

    def load(self) -> SharedSpace:
        make, _, _, described = LIVES[self.kind]
        return SharedSpace.load(self.folder, backbone=None if described else make())


@functools.cache
def life(kind: str, folder: Path) -> Life:
    lived = Life(kind, folder)
    lived.space.save(lived.folder)
    return lived


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lives")


kinds = pytest.mark.parametrize("kind", LIVES)


@kinds
def test_the_lives_say_something(kind: str, folder: Path) -> None:
    """Every task's logits are finite, no two tasks' networks agree, and ranks were really cut."""
    lived = life(kind, folder)
    assert all(output.isfinite().all() for output in lived.plain.values())
    firsts = [output[:, 0] for output in lived.plain.values()]
    assert not any(torch.equal(one, other) for at, one in enumerate(firsts) for other in firsts[:at])
    for task in ("one", "two", "three", "alone"):
        ranks = lived.space.ranks(task)
        assert any(ranks[name] < full for name, full in lived.space.full_ranks.items())
        assert any(ranks.values())
    assert lived.space.ranks("dense") == {}


@kinds
def test_the_plain_network_gives_the_bits_of_the_trained_and_compressed_one(kind: str, folder: Path) -> None:
    lived = life(kind, folder)
    for task in TASKS:
        assert torch.equal(lived.plain[task], lived.trained[task]), task


@kinds
def test_later_tasks_change_no_bit_of_earlier_ones(kind: str, folder: Path) -> None:
    lived = life(kind, folder)
    for at, task in enumerate(TASKS):
        assert len(lived.again[task]) == len(TASKS) - at
        assert all(torch.equal(output, lived.plain[task]) for output in lived.again[task]), task


@kinds
def test_a_loaded_space_gives_the_same_bits(kind: str, folder: Path) -> None:
    lived = life(kind, folder)
    loaded = lived.load()
    assert loaded.tasks == TASKS
    for task in reversed(TASKS):  # whatever the order of asking
        assert torch.equal(logits(loaded.network(task), lived.x), lived.plain[task]), task


@kinds
def test_what_is_learnt_after_loading_changes_no_bit_either(kind: str, folder: Path, tmp_path: Path) -> None:
    lived = life(kind, folder)
    loaded = lived.load()
    network = loaded.expand(nn.Linear(LIVES[kind][2], 4))
    train(network, lived.x)
    compress(network, energy=0.2)
    after = logits(network, lived.x)
    loaded.append("six", network)
    loaded.save(tmp_path / "longer")
    again = SharedSpace.load(tmp_path / "longer", backbone=None if LIVES[kind][3] else LIVES[kind][0]())
    for space in (loaded, again):
        assert torch.equal(logits(space.network("six"), lived.x), after)
        for task in TASKS:
            assert torch.equal(logits(space.network(task), lived.x), lived.plain[task]), task


def other_process(folder: Path, kinds: Sequence[str], threads: int) -> None:
    """Runs in a process of its own: loads every life and writes the logits of its tasks."""
    torch.set_num_threads(threads)
    for kind in kinds:
        make, inputs, _, described = LIVES[kind]
        space = SharedSpace.load(folder / kind, backbone=None if described else make())
        x = inputs(torch.Generator().manual_seed(7), 8)
        np.save(folder / f"{kind} x.npy", x.numpy())
        for task in TASKS:
            np.save(folder / f"{kind} {task}.npy", logits(space.network(task), x).numpy())


def test_another_process_gives_the_same_bits(folder: Path) -> None:
    for kind in LIVES:
        life(kind, folder)
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, str(Path(sys.argv[1]).parent));"
        "import test_bits; test_bits.other_process(Path(sys.argv[2]), sys.argv[4:], int(sys.argv[3]))"
    )
    arguments = [__file__, str(folder), str(torch.get_num_threads()), *LIVES]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for kind in LIVES:
        lived = life(kind, folder)
        assert np.array_equal(np.load(folder / f"{kind} x.npy"), lived.x.numpy())
        for task in TASKS:
            written = np.load(folder / f"{kind} {task}.npy")
            assert np.array_equal(written, lived.plain[task].numpy()), (kind, task)


# random networks


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, ...], int]:
    """A small sequential backbone, the shape of one input, and how many features it gives."""
    layers: list[nn.Module] = []
    width = draw(st.integers(1, 5))
    shape: tuple[int, ...] = (width,)
    if draw(st.booleans()):
        shape = (width, 6)
        for _ in range(draw(st.integers(1, 2))):
            out = draw(st.integers(1, 4))
            layer = draw(st.sampled_from([nn.Conv1d, nn.ConvTranspose1d]))
            layers += [layer(width, out, draw(st.integers(1, 3)), bias=draw(st.booleans())), nn.ReLU()]
            if draw(st.booleans()):
                layers.append(draw(st.sampled_from([nn.BatchNorm1d(out), nn.GroupNorm(1, out)])))
            width = out
        layers += [nn.AdaptiveAvgPool1d(2), nn.Flatten()]
        width *= 2
    for _ in range(draw(st.integers(0 if layers else 1, 2))):
        out = draw(st.integers(1, 20))
        layers += [nn.Linear(width, out, bias=draw(st.booleans())), nn.Tanh()]
        if draw(st.booleans()):
            layers.append(nn.LayerNorm(out))
        width = out
    return nn.Sequential(*layers), shape, width


@settings(deadline=None, max_examples=40)
@given(
    drawn=networks(),
    tasks=st.lists(st.tuples(st.sampled_from(["energy", "rank", "none"]), st.booleans()), min_size=2, max_size=4),
    base=st.sampled_from(["zero", "backbone"]),
    seed=st.integers(0, 99),
)
def test_no_bit_of_any_task_ever_changes(
    drawn: tuple[nn.Sequential, tuple[int, ...], int], tasks: list[tuple[str, bool]], base: str, seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    backbone, shape, width = drawn
    torch.manual_seed(seed)
    space = SharedSpace(backbone, base=base)  # type: ignore[arg-type]
    x = torch.randn(5, *shape)
    first: dict[str, Tensor] = {}
    for at, (cut, sharing) in enumerate(tasks):
        network = space.expand(nn.Linear(width, 1 + at), sharing=sharing)
        train(network, x)
        if cut == "energy":
            compress(network, energy=0.3)
        elif cut == "rank":
            compress(network, rank=at % 3)
        first[f"task {at}"] = logits(network, x)
        space.append(f"task {at}", network)
    path = tmp_path_factory.mktemp("space") / "life.nacre"
    space.save(path)
    for known in (space, SharedSpace.load(path)):
        for task, output in first.items():
            assert torch.equal(logits(known.network(task), x), output), task


# the sum


def learn_three(space: SharedSpace, features: int) -> list[Network]:
    networks = []
    for at, task in enumerate(("a", "b", "c")):
        network = space.expand(nn.Linear(features, 2), start=Start(later=1.0))
        compress(network, rank=2 + at)
        networks.append(network)
        space.append(task, network)
    return networks


@pytest.mark.parametrize("base", ["zero", "backbone"])
def test_a_plain_weight_is_the_sum_written_out_in_task_order(base: str) -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv1d(4, 6, 3), nn.Flatten(), nn.Linear(12, 9))
    space = SharedSpace(backbone, base=base)  # type: ignore[arg-type]
    parts = [network.factors() for network in learn_three(space, 9)]
    for name in ("0", "2"):
        came = backbone.get_parameter(f"{name}.weight").detach()
        bits = came if base == "backbone" else torch.zeros_like(came)
        exact = bits.double().numpy()
        for task, factors in zip(("a", "b", "c"), parts, strict=True):
            bits = bits + factors[name].weight().view_as(came)  # ((W1 + W2) + W3)
            U, s, V = (part.detach().double().numpy() for part in (factors[name].U, factors[name].s, factors[name].V))
            exact = exact + np.einsum("ik,k,jk->ij", U, s, V).reshape(came.shape)
            weight = space.network(task).get_parameter(f"backbone.{name}.weight").detach()
            assert torch.equal(weight, bits), (name, task)
            np.testing.assert_allclose(weight.numpy(), exact, rtol=1e-5, atol=1e-6)


def test_the_spaces_factors_are_those_of_all_tasks_side_by_side() -> None:
    torch.manual_seed(0)
    space = SharedSpace(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 9)))
    parts = [network.factors() for network in learn_three(space, 9)]
    for count, task in enumerate(("a", "b", "c"), start=1):
        expected = sum(factors["2"].weight().double() for factors in parts[:count])
        seen: Factors = space.factors(task)["2"]
        assert seen.rank == space.identifier(task)["2"] == sum(factors["2"].rank for factors in parts[:count])
        torch.testing.assert_close(seen.weight().double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(space.factors()["0"].s, torch.cat([factors["0"].s for factors in parts]))


def test_a_task_alone_stands_on_no_other_and_no_other_on_it() -> None:
    torch.manual_seed(0)
    space = SharedSpace(nn.Sequential(nn.Linear(8, 9)))
    alone = space.expand(nn.Linear(9, 2), sharing=False)
    space.append("alone", alone)
    (first, second, _) = learn_three(space, 9)
    weights = {task: space.network(task).get_parameter("backbone.0.weight") for task in ("alone", "a", "b")}
    ours, one, two = (network.factors()["0"].weight() for network in (alone, first, second))
    assert torch.equal(weights["alone"], ours)
    assert torch.equal(weights["a"], one)
    assert torch.equal(weights["b"], one + two)
    assert space.identifier("alone") == {"0": alone.factors()["0"].rank}
    assert space.identifier("b") == {"0": 2 + 3}
