"""What fewer bits cost: accuracy against bytes on tasks of CIFAR-100, learnt one upon the other in each encoding.

python benchmarks/encodings.py carry/cifar.safetensors --seeds 0 1 2        # resumes from --out
python benchmarks/encodings.py carry/cifar.safetensors --epochs 10 --table  # prints what is there

A life learns five tasks; each is built on what was stored before it. Accuracy is on held-out training images, never on
the test set. "rounded after" needs no life of its own: the networks of the float32 life, each with its own factors and
head rounded, so that nothing but the rounding differs.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor

import nacre
from cifar import holdout, tasks
from nacre.lowrank import Dtype, rounded_factors
from nacre.scenarios import CropFlip
from nacre.space.record import round_head
from nacre.training.seeding import seeded

SETTINGS: dict[str, tuple[Dtype, Dtype]] = {
    "float32": ("float32", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("int8", "float32"),
    "int8, heads bfloat16": ("int8", "bfloat16"),
    "int8, heads int8": ("int8", "int8"),
}
Life = dict[str, Any]


def live(label: str, seed: int, count: int, epochs: int, data: Path) -> list[Life]:
    """Learns the tasks in order; of the float32 life also what rounding each task afterwards comes to."""
    dtype, head_dtype = SETTINGS[label]
    recipe = nacre.Recipe(epochs=epochs, batch_size=32, schedule="cosine", augment=CropFlip())
    with seeded(seed, "backbone"):
        backbone = nacre.networks.conv5()
    learner = nacre.Learner(backbone, nacre.CACL(dtype=dtype, head_dtype=head_dtype), seed=seed, progress=False)
    names = list(SETTINGS) if label == "float32" else [label]
    after: dict[str, list[float]] = {f"{name}, rounded after": [] for name in names if name != label}
    accuracies = []
    for number, (train, _) in enumerate(tasks(data, count)):
        part, held_out = holdout(train, seed=seed)
        accuracies.append(learner.learn(f"task {number}", part, test=held_out, recipe=recipe).accuracy)
        for name in after:
            rounded = SETTINGS[name.removesuffix(", rounded after")]
            after[name].append(rounded_accuracy(learner, f"task {number}", held_out, *rounded))
    space = cast(nacre.SharedSpace, learner.knowledge)
    size = space.size()
    life: Life = {"seed": seed, "epochs": epochs, "tasks": count}
    sizes = {"numbers": size.factors, "bytes": factor_bytes(space), "megabytes": size.megabytes}
    own = {**life, "label": label, "accuracies": accuracies, **sizes}
    return [own, *({**life, "label": name, "accuracies": measured} for name, measured in after.items())]


def factor_bytes(space: nacre.SharedSpace) -> int:
    """Bytes of U, s, V and their scales."""
    records = [space.record(task) for task in space.tasks]
    return sum(4 * record.numbers()["factors"] - record.saved().get("factors", 0) for record in records)


def rounded_accuracy(
    learner: nacre.Learner, task: str, held_out: tuple[Tensor, Tensor], dtype: Dtype, head_dtype: Dtype
) -> float:
    """Accuracy in per cent of a task whose own factors and head are rounded, on the sum that it was learnt on."""
    space = cast(nacre.SharedSpace, learner.knowledge)
    network = copy.deepcopy(learner.network(task)).cpu()
    with torch.no_grad():
        for name, factors in space.record(task).factors.items():
            weight = network.get_parameter(f"backbone.{name}.weight")
            change = rounded_factors(factors, dtype).weight() - factors.weight()
            weight.add_(change.view_as(weight))
        round_head(network.get_submodule("head"), head_dtype)
        x, y = held_out
        return 100 * float((network(x).argmax(1) == y).float().mean())


def table(lives: list[Life]) -> str:
    lines = [
        "| kept as | held-out accuracy | less than float32 | bytes of factors / as float32 | MB | lives |",
        "|---|---|---|---|---|---|",
    ]
    plain = {life["seed"]: fmean(life["accuracies"]) for life in lives if life["label"] == "float32"}
    labels = [*SETTINGS, *(f"{name}, rounded after" for name in SETTINGS if name != "float32")]
    for label in labels:
        chosen = [life for life in lives if life["label"] == label and life["seed"] in plain]
        if not chosen:
            continue
        accuracy = fmean(fmean(life["accuracies"]) for life in chosen)
        less = fmean(plain[life["seed"]] - fmean(life["accuracies"]) for life in chosen)
        kept = [life for life in chosen if "bytes" in life]
        share = f"{fmean(life['bytes'] / (4 * life['numbers']) for life in kept):.4f}" if kept else ""
        size = f"{fmean(life['megabytes'] for life in kept):.3f}" if kept else ""
        lines.append(f"| {label} | {accuracy:.2f} | {less:+.2f} | {share} | {size} | {len(chosen)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with uoft-cs/cifar100/*.parquet, or a file made by cifar.py")
    parser.add_argument("--labels", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--table", action="store_true", help="print what --out holds and learn nothing")
    parser.add_argument("--out", type=Path, default=Path("runs/encodings.jsonl"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    kept = given.out.read_text().splitlines() if given.out.exists() else []
    asked = (given.epochs, given.tasks)
    lives = [life for life in map(json.loads, kept) if (life["epochs"], life["tasks"]) == asked]
    done = {(life["label"], life["seed"]) for life in lives}
    with given.out.open("a") as file:
        for seed, label in [] if given.table else [(seed, label) for seed in given.seeds for label in given.labels]:
            if (label, seed) not in done:
                for life in live(label, seed, given.tasks, given.epochs, given.data):
                    lives.append(life)
                    file.write(json.dumps(life) + "\n")
                file.flush()
                print(label, seed, lives[-1]["accuracies"], flush=True)
    print(table(lives))


if __name__ == "__main__":
    main()
