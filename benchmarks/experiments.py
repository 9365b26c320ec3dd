"""What surrounds the training step costs: a whole task beside its raw steps, loading, the report of twenty tasks.

python benchmarks/experiments.py [--data ../shared/data] [--append docs/results.md]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch

import nacre
from nacre.experiments.plan import Plan
from nacre.experiments.run import run
from nacre.scenarios import CropFlip, Scenario, ScenarioTask
from nacre.scenarios.scenario import Examples
from nacre.training.memory import freed_memory_kept
from speed import BATCH, CLASSES, SIDE, cacl, in_turn, step_of

IMAGES, EPOCHS = 2500, 40  # a task of CIFAR-100 under the quick protocol


def pictures(count: int, seed: int, classes: int = CLASSES) -> Examples:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, SIDE, SIDE, generator=draw), torch.arange(count) % classes


def whole_task(rounds: int) -> str:
    """In turn: a task through the front door, with augmentation, checkpoints and a test after it; and bare steps."""
    train, test = pictures(IMAGES, 0), pictures(IMAGES // 5, 1)
    recipe = nacre.Recipe(epochs=EPOCHS, batch_size=BATCH, augment=CropFlip(4))
    quotients, rates = [], []
    for number in range(rounds):
        torch.manual_seed(number)
        learner = nacre.Learner(nacre.networks.conv5(), device="cpu", progress=False)
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            learner.learn("task", train, test=test, recipe=recipe, checkpoint=folder)
            whole = EPOCHS * IMAGES / (time.perf_counter() - begun)
        network, penalty = cacl(nacre.SharedSpace(nacre.networks.conv5()))
        with freed_memory_kept(torch.device("cpu")):
            raw = BATCH / statistics.median(in_turn({"step": step_of(network, "auto", penalty)}, 60)["step"])
        quotients.append(whole / raw)
        rates.append(whole)
    return (
        f"| images/s of a whole task / of bare training steps | {statistics.median(quotients):.3f} | at least 0.9 "
        f"| {statistics.median(rates):.0f} images/s; {EPOCHS} epochs of {IMAGES} images, a test of {len(test[1])} |"
    )


def loading(data: Path) -> str:
    """CIFAR-100 from local parquet, decoded for the first time and read from the cache."""
    code = (
        "import sys, time; from pathlib import Path; from nacre.scenarios import SCENARIOS, Choices\n"
        "begun = time.perf_counter(); SCENARIOS['cifar100'](Choices(data=Path(sys.argv[1])))\n"
        "print(time.perf_counter() - begun)"
    )
    with tempfile.TemporaryDirectory() as cache:
        taken = [
            float(
                subprocess.run(
                    [sys.executable, "-c", code, str(data)],
                    env={**os.environ, "NACRE_CACHE": cache},
                    check=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                ).stdout
            )
            for _ in range(4)
        ]
    return (
        f"| loading CIFAR-100, seconds: first time | {taken[0]:.1f} | under 30 "
        f"| later {statistics.median(taken[1:]):.2f}, which should be under 2 |"
    )


def stream(tasks: int) -> Scenario:
    """Tasks of noise: as many files, ranks and epochs as real ones leave, learnt in a moment."""
    made = [
        ScenarioTask(f"task {number}", pictures(64, number), pictures(32, 100 + number), ("a", "b", "c", "d", "e"))
        for number in range(tasks)
    ]
    return Scenario("noise", made, nacre.networks.conv5)


def report(tasks: int = 20, seeds: int = 3) -> str:
    """A real run folder, and `nacre report` on it as a user calls it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        plan = Plan(stream(tasks), nacre.CACL(budget=100_000), nacre.Recipe(epochs=4), tuple(range(seeds)))
        run(plan, out, progress=False)
        command = [sys.executable, "-m", "nacre", "report", str(out), "--out", str(Path(folder) / "report.html")]
        begun = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken = time.perf_counter() - begun
    return f"| report of {tasks} tasks and {seeds} seeds, seconds | {taken:.1f} | under 10 | the whole command |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--append", type=Path, help="a Markdown file to add the table to")
    parser.add_argument("--data", type=Path, help="folder with uoft-cs/cifar100/*.parquet; loading is skipped without")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    lines = [
        f"### {date.today()}: around the training step, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "",
        "| what | measured | target | beside it |",
        "|---|---|---|---|",
        whole_task(given.rounds),
        *([loading(given.data)] if given.data is not None else []),
        report(),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if given.append is not None:
        with given.append.open("a") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
