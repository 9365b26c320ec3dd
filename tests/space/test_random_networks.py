"""Zero forgetting as a property: random networks, norms and heads live random lives, saved along the way; every task
answers in the same bits from memory, from the files, and in a process that shares nothing but those."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nacre import SharedSpace, Start, compress


@dataclass(frozen=True)
class Choice:
    """A network that was drawn: how to make it, what one input looks like, and how many features it gives."""

    layers: tuple[tuple[type[nn.Module], tuple[Any, ...], tuple[tuple[str, Any], ...]], ...]
    inputs: tuple[int, ...]
    features: int

    def make(self) -> nn.Sequential:
        return nn.Sequential(*(kind(*given, **dict(named)) for kind, given, named in self.layers))


CONVOLUTIONS = {
    1: (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d, nn.AdaptiveAvgPool1d),
    2: (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.AdaptiveMaxPool2d),
    3: (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d, nn.InstanceNorm3d, nn.AdaptiveAvgPool3d),
}
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.Tanh, nn.Identity)


@st.composite
def convolutions(draw: st.DrawFn, dimensions: int, width: int) -> tuple[list[Any], int]:
    """A convolution, perhaps a norm, an activation; and how many channels they give."""
    conv, transposed, batch, instance, _ = CONVOLUTIONS[dimensions]
    groups = draw(st.sampled_from([1, 2])) if width % 2 == 0 else 1
    out = groups * draw(st.integers(1, 3))
    named = (("groups", groups), ("bias", draw(st.booleans())), ("stride", draw(st.sampled_from([1, 2]))))
    reflected = dimensions < 3 and draw(st.booleans())
    kind = draw(st.sampled_from([conv, transposed]))
    padded = (("padding", 1), *((("padding_mode", "reflect"),) if reflected and kind is conv else ()))
    norm = draw(
        st.sampled_from(
            [
                (),
                ((batch, (out,), ()),),
                ((instance, (out,), (("affine", True), ("track_running_stats", True))),),
                ((nn.GroupNorm, (groups, out), ()),),
            ]
        )
    )
    return [(kind, (width, out, 3), (*named, *padded)), *norm, (draw(st.sampled_from(ACTIVATIONS)), (), ())], out


@st.composite
def networks(draw: st.DrawFn) -> Choice:
    width = draw(st.integers(1, 4))
    inputs: tuple[int, ...] = (width,)
    layers: list[Any] = []
    if dimensions := draw(st.integers(0, 3)):
        inputs = (width, *(5,) * dimensions)
        for _ in range(draw(st.integers(1, 2))):
            more, width = draw(convolutions(dimensions, width))
            layers += more
        layers += [(CONVOLUTIONS[dimensions][4], (1,), ()), (nn.Flatten, (), ())]
    for _ in range(draw(st.integers(0 if layers else 1, 2))):
        out = draw(st.integers(1, 12))
        norm = draw(st.sampled_from([None, nn.BatchNorm1d, nn.LayerNorm, nn.RMSNorm]))
        layers += [(nn.Linear, (width, out), (("bias", draw(st.booleans())),)), *([(norm, (out,), ())] if norm else [])]
        layers += [(draw(st.sampled_from(ACTIVATIONS)), (), ()), (nn.Dropout, (0.3,), ())]
        width = out
    return Choice(tuple(layers), inputs, width)


def head(kind: str, features: int, outputs: int) -> nn.Module:
    made: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Linear(features, outputs),
        "without bias": lambda: nn.Linear(features, outputs, bias=False),
        "deep": lambda: nn.Sequential(nn.Linear(features, 3), nn.ReLU(), nn.Linear(3, outputs)),
        "normed": lambda: nn.Sequential(nn.BatchNorm1d(features), nn.Linear(features, outputs)),
    }
    return made[kind]()


@dataclass(frozen=True)
class Step:
    """How one task is learnt."""

    head: str
    outputs: int
    way: str  # sharing, alone, dense
    cut: str
    saved: bool  # and loaded again afterwards, to go on from the files


steps = st.builds(
    Step,
    head=st.sampled_from(["linear", "without bias", "deep", "normed"]),
    outputs=st.integers(1, 6),
    way=st.sampled_from(["sharing", "sharing", "sharing", "alone", "dense"]),
    cut=st.sampled_from(["energy", "rank 0", "rank 1", "none"]),
    saved=st.booleans(),
)


def learn(space: SharedSpace, name: str, step: Step, features: int, inputs: Tensor) -> None:
    """Two steps in train mode, so that every trainable tensor and every norm statistic moves; then the cut."""
    network = space.expand(
        head(step.head, features, step.outputs),
        start=Start(later=0.8), sharing=step.way == "sharing", dense=step.way == "dense",
    )  # fmt: skip
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(2):
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        optimizer.step()
    if step.cut == "energy":
        compress(network, energy=0.3)
    elif step.cut != "none":
        compress(network, rank=int(step.cut[-1]))
    space.append(name, network)


@torch.no_grad()
def answers(space: SharedSpace, inputs: Tensor) -> dict[str, Tensor]:
    """Every task's logits; the last first, whatever the order they were learnt in."""
    return {task: space.network(task)(inputs) for task in reversed(space.tasks)}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[task], other[task]) for task in one)


def live(choice: Choice, life: list[Step], base: Any, seed: int, folder: Path) -> None:
    """Lives a life, comparing all earlier answers after every task, and leaves the files and the last answers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        space = SharedSpace(choice.make(), base=base)
        inputs = torch.randn(6, *choice.inputs)
        said: dict[str, Tensor] = {}
        for number, step in enumerate(life):
            learn(space, f"task {number}", step, choice.features, inputs + number)
            now = answers(space, inputs)
            assert same(said, now), number
            said = now
            if step.saved:
                space.save(folder)
                space = SharedSpace.load(folder)
        space.save(folder)
        assert same(said, answers(SharedSpace.load(folder), inputs))
        torch.save({"inputs": inputs, "said": said}, folder.with_suffix(".pt"))


def other_process(folder: Path) -> int:
    """Runs in a process of its own: asks every task of every life that was left in a folder, and counts them."""
    torch.set_num_threads(1)
    asked = 0
    for left in sorted(folder.glob("*.pt")):
        kept = torch.load(left)
        found = answers(SharedSpace.load(left.with_suffix(".nacre")), kept["inputs"])
        assert same(kept["said"], found), left
        asked += len(found)
    return asked


def test_whatever_the_network_and_its_life_no_bit_of_any_task_ever_changes(tmp_path: Path) -> None:
    tasks: list[int] = []
    number = itertools.count()  # also of lives that fail: hypothesis tries those again, smaller

    @settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
    @given(
        networks(), st.lists(steps, min_size=2, max_size=4), st.sampled_from(["zero", "backbone"]), st.integers(0, 99)
    )
    def lives(choice: Choice, life: list[Step], base: str, seed: int) -> None:
        live(choice, life, base, seed, tmp_path / f"{next(number):03d}.nacre")
        tasks.append(len(life))

    lives()
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, str(Path(sys.argv[1]).parent));"
        "import test_random_networks; print(test_random_networks.other_process(Path(sys.argv[2])))"
    )
    arguments = [sys.executable, "-c", program, __file__, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == sum(tasks) > 30
