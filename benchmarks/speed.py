"""Speed and growth, as ratios between things timed in one run, step by step in turn, on an otherwise idle machine.

python benchmarks/speed.py [--append docs/results.md]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import nacre
from nacre.scenarios import CropFlip
from nacre.training.batch import Batch
from nacre.training.batches import as_batches
from nacre.training.memory import freed_memory_kept
from nacre.training.processes import Processes
from nacre.training.step import Step
from nacre.training.task import Task

BATCH, SIDE, CLASSES = 64, 32, 5
MEAN, STD = torch.tensor([0.507, 0.487, 0.441]), torch.tensor([0.267, 0.256, 0.276])


def dense() -> nn.Module:
    return nn.Sequential(nacre.networks.conv5(), nn.Linear(1024, CLASSES))


def step_of(network: nn.Module, precision: Any, penalty: Callable[[], Tensor] | None = None) -> Callable[[], None]:
    """One training step of nacre's own loop on a batch that is there already."""
    x, y = torch.randn(BATCH, 3, SIDE, SIDE), torch.randint(CLASSES, (BATCH,))
    recipe = nacre.Recipe(batch_size=BATCH, precision=precision)
    processes = Processes(torch.device("cpu"))
    task = Task("timed", nn.Identity(), as_batches((x, y), recipe, processes), F.cross_entropy, recipe, processes)
    network.train()
    step = Step(network, task, recipe.make_optimizer(network.parameters()), penalty, None, None)
    batch = Batch(x, y, 1.0, BATCH)

    def run() -> None:
        step(batch)

    return run


def cacl(space: nacre.SharedSpace, method: nacre.CACL | None = None) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The network and the penalties that a method trains with, at the columns it asks for."""
    network = space.expand(nn.Linear(1024, CLASSES), rank=(method or nacre.CACL()).ranks(space))
    return network, lambda: nacre.orthogonality(network) + 0.1 * nacre.hoyer(network)


def as_in_fit(run: Callable[[], list[str]]) -> list[str]:
    with freed_memory_kept(torch.device("cpu")):
        return run()


def in_turn(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every step; in each round all run once, so that a slow moment of the machine strikes all."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 5):
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            if number >= 5:
                times[name].append(time.perf_counter() - begun)
    return times


def ratio(times: dict[str, list[float]], name: str, to: str) -> float:
    """The median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(times[name], times[to], strict=True))


def training_step(rounds: int) -> list[str]:
    """Item 1: the step of CACL against that of the dense network, in either precision's faster layout."""
    lines = []
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        chosen = (nacre.CACL(), nacre.CACL(columns="half"))
        full, half = (cacl(nacre.SharedSpace(nacre.networks.conv5()), method) for method in chosen)
        steps = {
            "dense": step_of(dense(), precision),
            "cacl": step_of(full[0], precision, full[1]),
            "half": step_of(half[0], precision, half[1]),
            "dense again": step_of(dense(), precision),
        }
        times = in_turn(steps, rounds)
        lines.append(
            f"| CACL step / dense step, {precision} | {ratio(times, 'cacl', 'dense'):.3f} | at most 1.10 "
            f"| with half of the columns {ratio(times, 'half', 'dense'):.3f}; dense / dense "
            f"{ratio(times, 'dense again', 'dense'):.3f}; dense {rate(times['dense']):.0f} images/s |"
        )
    return lines


def rate(seconds: list[float]) -> float:
    return BATCH / statistics.median(seconds)


def space_of(tasks: int) -> nacre.SharedSpace:
    """A space of so many tasks of rank 8."""
    space = nacre.SharedSpace(nacre.networks.conv5())
    for number in range(tasks):
        network = space.expand(nn.Linear(1024, CLASSES), rank=8)
        space.append(f"task {number}", network)
    return space


def growth(rounds: int) -> list[str]:
    """Items 2 and 3: step time and peak memory at the 50th task against the first but one."""
    torch.manual_seed(0)
    early, again = (cacl(nacre.SharedSpace(nacre.networks.conv5())) for _ in range(2))
    late = cacl(space_of(49))
    steps = {
        "first": step_of(early[0], "bfloat16", early[1]),
        "fiftieth": step_of(late[0], "bfloat16", late[1]),
        "first again": step_of(again[0], "bfloat16", again[1]),
    }
    times = in_turn(steps, rounds)
    first, fiftieth = (peak_memory(tasks) for tasks in (0, 49))
    return [
        f"| step at the 50th task / at the 1st, bfloat16 | {ratio(times, 'fiftieth', 'first'):.3f} | at most 1.02 "
        f"| first / first {ratio(times, 'first again', 'first'):.3f} |",
        f"| peak memory of training at the 50th task / at the 1st | {fiftieth / first:.3f} | within 2 % "
        f"| {first / 1e6:.0f} MB and {fiftieth / 1e6:.0f} MB |",
    ]


def peak_memory(tasks: int) -> int:
    """Peak resident bytes of a fresh process that loads a store of so many tasks and trains the next one."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "life.nacre"
        space_of(tasks).save(store)
        found = [
            int(subprocess.run([sys.executable, __file__, "--peak", store], check=True, capture_output=True).stdout)
            for _ in range(3)
        ]
    return round(statistics.median(found))


def print_peak(store: Path) -> None:
    """In that process: ten steps on top of what the store holds; the peak is counted from the first of them."""
    network, penalty = cacl(nacre.SharedSpace.load(store))
    step = step_of(network, "bfloat16", penalty)
    Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
    for _ in range(10):
        step()
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) * 1024)


class Images(Dataset[tuple[Tensor, int]]):
    """Images as a plain loop has them: cropped, mirrored and normalised one by one."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = F.pad(self.images[index], (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = image[:, top : top + SIDE, left : left + SIDE]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image / 255 - MEAN[:, None, None]) / STD[:, None, None], int(self.labels[index])


def whole_task(rounds: int) -> list[str]:
    """Item 4: a task learnt by nacre against a plain loop with a DataLoader of one worker; in turn."""
    torch.manual_seed(0)
    images, labels = torch.randint(0, 256, (2500, 3, SIDE, SIDE), dtype=torch.uint8), torch.randint(5, (2500,))
    loader = DataLoader(Images(images, labels), BATCH, shuffle=True, num_workers=1, persistent_workers=True)
    network = dense()
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    normalised = (images / 255 - MEAN[:, None, None]) / STD[:, None, None]
    learner = nacre.Learner(nacre.networks.conv5(), device="cpu", progress=False)
    plain, ours = [], []
    plain_epoch(network, optimizer, loader)  # starts the worker
    recipe = nacre.Recipe(epochs=4, batch_size=BATCH, augment=CropFlip())
    for number in range(rounds):
        begun = time.perf_counter()
        for _ in range(2):
            plain_epoch(network, optimizer, loader)
        plain.append(2 * len(images) / (time.perf_counter() - begun))
        result = learner.learn(f"task {number}", (normalised, labels), recipe=recipe)
        ours.append(recipe.epochs * len(images) / result.seconds)  # expansion, compression and appending counted in
    share = statistics.median(ours) / BATCH * dense_flops() / matrix_rate()
    quotient = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
    return [
        f"| learning a task here / plain PyTorch loop of the dense network, images/s | {quotient:.2f} | at least 2 "
        f"| {statistics.median(ours):.0f} and {statistics.median(plain):.0f} images/s; "
        f"{100 * share:.0f} % of the machine's bfloat16 matrix rate |"
    ]


def plain_epoch(network: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any]) -> None:
    network.train()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()


def dense_flops() -> float:
    """Multiply-adds, times two, of forward and backward of the dense network on one batch."""
    from torch.utils.flop_counter import FlopCounterMode

    network = dense()
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(torch.randn(BATCH, 3, SIDE, SIDE)), torch.zeros(BATCH, dtype=torch.long)).backward()
    return float(counter.get_total_flops())


def matrix_rate() -> float:
    """Operations a second of a large bfloat16 matrix product."""
    a, b = (torch.randn(2048, 2048, dtype=torch.bfloat16) for _ in range(2))

    def product() -> None:
        torch.mm(a, b)

    times = in_turn({"product": product}, 10)["product"]
    return 2 * 2048**3 / statistics.median(times)


def import_time() -> list[str]:
    """Item 5: what importing nacre costs once torch is there."""
    code = "import torch, time; t = time.perf_counter(); import nacre; print(time.perf_counter() - t)"
    taken = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout) for _ in range(5)
    ]
    return [f"| `import nacre` beyond `import torch`, seconds | {statistics.median(taken):.3f} | under 0.3 | |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--append", type=Path, help="a Markdown file to add the table to")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--peak", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak is not None:
        print_peak(given.peak)
        return
    busy = os.getloadavg()[0]
    lines = [
        f"### {date.today()}: {platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, load before {busy:.2f}",
        "",
        "| what | measured | target | beside it |",
        "|---|---|---|---|",
        *as_in_fit(lambda: training_step(given.rounds)),
        *as_in_fit(lambda: growth(given.rounds)),
        *whole_task(5),
        *import_time(),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if given.append is not None:
        with given.append.open("a") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
