"""Where should the training of a task begin? Accuracy on held-out training images and size, for several starts.

python benchmarks/initial_factors.py ../shared/data            # prints a Markdown table; resumes from --out
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import nacre
from cifar import holdout, tasks
from nacre.scenarios import CropFlip
from nacre.training.seeding import seeded

STARTS = {
    "random (the paper's)": nacre.Start("random"),
    "SVD of an ordinary initialisation": nacre.Start("svd", later=1.0),
    "the same, later tasks x 0.5": nacre.Start("svd", later=0.5),
    "the same, later tasks x 0.3": nacre.Start("svd", later=0.3),
    "the same, later tasks x 0.1": nacre.Start("svd", later=0.1),
    "the same, later tasks x 0.03": nacre.Start("svd", later=0.03),
    "the same, later tasks s = 0": nacre.Start("svd", later=0.0),
}


@dataclass(frozen=True)
class Cell:
    start: str
    sparsity: float
    seed: int
    tasks: int
    epochs: int
    batch: int
    energy: float

    @property
    def key(self) -> str:
        return json.dumps(vars(self), sort_keys=True)


def run(cell: Cell, data: Path) -> dict[str, Any]:
    """Learns the tasks in order; accuracy on the held-out part right after each, and what each one added."""
    torch.set_num_threads(
        max(1, torch.get_num_threads() // 4) if torch.cuda.is_available() else torch.get_num_threads()
    )
    with seeded(cell.seed, "backbone"):
        backbone = nacre.networks.conv5()
    method = nacre.CACL(sparsity=cell.sparsity, energy=cell.energy, start=STARTS[cell.start])
    recipe = nacre.Recipe(epochs=cell.epochs, batch_size=cell.batch, augment=CropFlip())
    learner = nacre.Learner(backbone, method, seed=cell.seed, progress=False)
    found = []
    for number, (train, _) in enumerate(tasks(data, cell.tasks)):
        part, held_out = holdout(train)
        result = learner.learn(f"task {number}", part, test=held_out, recipe=recipe)
        found.append({"accuracy": result.accuracy, "megabytes": result.megabytes, "rank": sum(result.ranks.values())})
    return {"cell": vars(cell), "tasks": found}


def table(results: list[dict[str, Any]]) -> str:
    """Means over seeds, the first task apart from the later ones."""
    lines = [
        "| start | sparsity | held-out accuracy, task 1 | later tasks "
        "| MB of task 1 | MB of a later task | rank of a later task |",
        "|---|---|---|---|---|---|---|",
    ]
    for sparsity in sorted({result["cell"]["sparsity"] for result in results}):
        for start in STARTS:
            chosen = [r["tasks"] for r in results if (r["cell"]["start"], r["cell"]["sparsity"]) == (start, sparsity)]
            if not chosen:
                continue
            first, later = [found[0] for found in chosen], [task for found in chosen for task in found[1:]]
            means = [
                fmean(task[key] for task in part)
                for part, key in ((first, "accuracy"), (later, "accuracy"), (first, "megabytes"), (later, "megabytes"))
            ]
            ranks = fmean(task["rank"] for task in later)
            lines.append(
                f"| {start} | {sparsity} | {means[0]:.1f} | {means[1]:.1f} "
                f"| {means[2]:.2f} | {means[3]:.3f} | {ranks:.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with uoft-cs/cifar100/*.parquet, or a file made by cifar.py")
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--energy", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0.1, 0.4])
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--out", type=Path, default=Path("runs/initial_factors.jsonl"))
    given = parser.parse_args()
    cells = [
        Cell(start, sparsity, seed, given.tasks, given.epochs, given.batch, given.energy)
        for seed in given.seeds
        for sparsity in given.sparsities
        for start in STARTS
    ]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    kept = given.out.read_text().splitlines() if given.out.exists() else []
    results = [json.loads(line) for line in kept]
    done = {Cell(**result["cell"]).key for result in results}
    todo = [cell for cell in cells if cell.key not in done]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool, given.out.open("a") as file:
        for result in pool.map(run, todo, [given.data] * len(todo)):
            results.append(result)
            file.write(json.dumps(result) + "\n")
            file.flush()
            print(len(results), "of", len(cells), result["cell"]["start"], result["tasks"], flush=True)
    print(table([result for result in results if Cell(**result["cell"]).key in {cell.key for cell in cells}]))


if __name__ == "__main__":
    main()
