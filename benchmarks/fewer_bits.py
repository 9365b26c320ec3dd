"""What fewer bits cost: the tasks of finished runs with their factors and heads rounded, on test images.

    nacre compare cifar100 --data ../shared/data --tasks 5 --seeds 0 1 2 --methods cacl --shares 0.125 --out runs/cifar
    python benchmarks/fewer_bits.py runs/cifar/cacl-share-0.125 --data ../shared/data

Each task's own factors and head are rounded as they would be stored, on the sum that the task was learnt on: nothing
but the rounding differs. What a life comes to in which every task is built on rounded ones is `nacre compare --dtypes`.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from statistics import fmean
from typing import cast

import torch

import nacre
from nacre.lowrank import Dtype, rounded_factors
from nacre.lowrank.encoding import column_bytes
from nacre.scenarios import Scenario
from nacre.space.record import round_head
from paired import learners, scenario_of

SETTINGS: dict[str, tuple[Dtype, Dtype]] = {
    "float32": ("float32", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "bfloat16, heads too": ("bfloat16", "bfloat16"),
    "int8": ("int8", "float32"),
    "int8, heads bfloat16": ("int8", "bfloat16"),
    "int8, heads too": ("int8", "int8"),
}


def accuracy(space: nacre.SharedSpace, scenario: Scenario, dtype: Dtype, head_dtype: Dtype) -> float:
    """ACC in per cent of all tasks with their own factors and heads rounded."""
    found = []
    for task in scenario.tasks:
        network = copy.deepcopy(space.network(task.name)).cpu()
        x, y = task.test
        with torch.no_grad():
            for name, factors in space.record(task.name).factors.items():
                weight = network.get_parameter(f"backbone.{name}.weight")
                change = rounded_factors(factors, dtype).weight() - factors.weight()
                weight.add_(change.view_as(weight))
            round_head(network.get_submodule("head"), head_dtype)
            found.append(100 * float((network(x).argmax(1) == y).float().mean()))
    return fmean(found)


def factor_bytes(space: nacre.SharedSpace, dtype: Dtype) -> int:
    """Bytes of U, s, V and their scales, over all tasks."""
    layers = [layer for task in space.tasks for layer in space.record(task).factors.values()]
    return sum(layer.rank * column_bytes(*layer.shape, dtype) for layer in layers)


def table(run: Path, data: Path | None) -> str:
    lines = [
        f"| {run.name}, kept as | ACC | less than float32 | bytes of factors / as float32 | seeds |",
        "|---|---|---|---|---|",
    ]
    scenario = scenario_of(run, data)
    spaces = [cast(nacre.SharedSpace, learner.knowledge) for _, learner in learners(run)]
    plain: list[float] = []
    for label, (dtype, head_dtype) in SETTINGS.items():
        found = [accuracy(space, scenario, dtype, head_dtype) for space in spaces]
        plain = plain or found
        share = fmean(factor_bytes(space, dtype) / factor_bytes(space, "float32") for space in spaces)
        less = ", ".join(f"{before - after:+.2f}" for before, after in zip(plain, found, strict=True))
        mean = fmean(plain) - fmean(found)
        lines.append(f"| {label} | {fmean(found):.2f} | {mean:+.2f} ({less}) | {share:.4f} | {len(found)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs of cacl")
    parser.add_argument("--data", type=Path, default=None, help="a folder with the data, as for nacre run")
    given = parser.parse_args()
    for run in given.runs:
        print(table(run, given.data), flush=True)


if __name__ == "__main__":
    main()
