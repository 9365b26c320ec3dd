"""How small can tasks be? CACL with a budget against the dense network, on held-out training images, by nacre itself.

python benchmarks/small_tasks.py carry/cifar.safetensors --labels "dense" "x 1.0, rate 2e-3"  # resumes from --out
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import nacre
from cifar import holdout, tasks
from nacre.methods.method import settings
from nacre.scenarios import CropFlip
from nacre.training import Task
from nacre.training.seeding import seeded

EIGHTH, SIXTEENTH = 177_000, 78_000  # bytes of factors that leave a head of 20,520 beside them
QUICK = nacre.Recipe(epochs=40, batch_size=32, schedule="cosine", augment=CropFlip())
FAST = nacre.Recipe(epochs=40, batch_size=32, learning_rate=2e-3, schedule="cosine", augment=CropFlip())


@dataclass(frozen=True)
class LargerFirst(nacre.CACL):
    """CACL whose first task, which all others stand on, has a larger budget."""

    first: float = 1.0

    def budget_of(self, space: nacre.SharedSpace, task: Task) -> int | None:
        budget = super().budget_of(space, task)
        return budget if budget is None or space.tasks else int(self.first * budget)


def small(
    budget: int = SIXTEENTH, later: float = 1.0, halfway: float = 0.5, rate: float = 10.0, **more: Any
) -> LargerFirst:
    settings = {"sparsity": 0.0, "start": nacre.Start("svd", later=later), "columns": "full", **more}
    return LargerFirst(budget=budget, halfway=halfway, singular_rate=rate, **settings)


def larger_first(**more: Any) -> LargerFirst:
    """As small as SIXTEENTH over five tasks."""
    return small(57_000, later=0.5, halfway=0.35, first=2.8, **more)


SETTINGS: dict[str, tuple[Any, nacre.Recipe]] = {
    "dense": (nacre.Single(), QUICK),
    "dense, rate 2e-3": (nacre.Single(), FAST),
    "eighth": (small(EIGHTH), QUICK),
    "eighth, rate 2e-3": (small(EIGHTH), FAST),
    "sixteenth": (small(), QUICK),
    "rate 2e-3": (small(), FAST),
    "rate 2e-3, at a third": (small(halfway=0.35), FAST),
    "rate 2e-3, at a quarter": (small(halfway=0.25), FAST),
    "rate 2e-3, x 0.5": (small(later=0.5), FAST),
    "rate 2e-3, x 0.5, at a third": (small(later=0.5, halfway=0.35), FAST),
    "rate 2e-3, x 0.5, at a quarter": (small(later=0.5, halfway=0.25), FAST),
    "rate 2e-3, s x 30": (small(rate=30.0), FAST),
    "larger first": (larger_first(), FAST),
    "larger first, half the columns": (larger_first(columns="half"), FAST),
    "larger first, batches of 16": (larger_first(), replace(FAST, batch_size=16)),
    "no budget": (nacre.CACL(sparsity=0.1, columns="full"), QUICK),
    "no budget, s x 10": (nacre.CACL(sparsity=0.1, columns="full", singular_rate=10.0), QUICK),
}


def live(label: str, seed: int, count: int, data: Path) -> dict[str, Any]:
    """Learns the tasks in order; accuracy on the held-out part right after each, and what each one added."""
    method, recipe = SETTINGS[label]
    with seeded(seed, "backbone"):
        backbone = nacre.networks.conv5()
    learner = nacre.Learner(backbone, method, seed=seed, progress=False)
    found = []
    for number, (train, _) in enumerate(tasks(data, count)):
        part, held_out = holdout(train, seed=seed)
        result = learner.learn(f"task {number}", part, test=held_out, recipe=recipe)
        found.append({"accuracy": result.accuracy, "megabytes": result.megabytes, "ranks": result.ranks})
    return {"label": label, "seed": seed, "method": settings(method), "tasks": found}


def table(lives: list[dict[str, Any]]) -> str:
    lines = ["| setting | held-out accuracy | tasks one by one | MB | lives |", "|---|---|---|---|---|"]
    for label in SETTINGS:
        chosen = [life["tasks"] for life in lives if life["label"] == label]
        if not chosen:
            continue
        each = [fmean(task["accuracy"] for task in tasks) for tasks in zip(*chosen, strict=True)]
        size = fmean(sum(task["megabytes"] for task in tasks) for tasks in chosen)
        shown = ", ".join(f"{accuracy:.1f}" for accuracy in each)
        lines.append(f"| {label} | {fmean(each):.2f} | {shown} | {size:.3f} | {len(chosen)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with uoft-cs/cifar100/*.parquet, or a file made by cifar.py")
    parser.add_argument("--labels", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/small_tasks.jsonl"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    kept = given.out.read_text().splitlines() if given.out.exists() else []
    lives = [life for life in map(json.loads, kept) if len(life["tasks"]) == given.tasks]
    done = {(life["label"], life["seed"]) for life in lives}
    with given.out.open("a") as file:
        for seed in given.seeds:
            for label in given.labels:
                if (label, seed) not in done:
                    lives.append(live(label, seed, given.tasks, given.data))
                    file.write(json.dumps(lives[-1]) + "\n")
                    file.flush()
                    print(label, seed, lives[-1]["tasks"], flush=True)
    print(table(lives))


if __name__ == "__main__":
    main()
