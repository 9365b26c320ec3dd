"""The rivals side by side: a search over each one's main settings on held-out images, then the table on test images.

    python benchmarks/rivals.py --data ../shared/data                   # CIFAR-100, 5 tasks, 15 passes, seeds 0 and 1
    python benchmarks/rivals.py --data ../shared/data --methods ewc er  # some of them; more may come later
    python benchmarks/rivals.py --scenario digits --tasks 2 --epochs 2  # a rehearsal of a few minutes

All methods get the same recipe and as many passes over each task. The search learns the first `--search-tasks` of them
with seed 100 on what `--holdout` leaves of the training images and chooses by ACC on what was held out; the table
learns from all of them. Every run is a folder of nacre's below `--out`: stop it when you like, the same command goes
on, and `nacre report` shows them. Images replayed from a memory are not among the images seen; the time they take is in
the time.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from nacre.errors import NacreError
from nacre.experiments.metrics import printed
from nacre.experiments.protocols import Options, stream
from nacre.experiments.run import Plan, run
from nacre.methods import METHODS
from nacre.scenarios import Choices, Scenario, ScenarioTask
from nacre.training import Recipe

SEARCH_SEED = 100  # none of the table's
# what is tried of each method; one that is not here has nothing to choose
SEARCHED: dict[str, dict[str, tuple[Any, ...]]] = {
    "ewc": {"strength": (50.0, 500.0, 5000.0, 50_000.0)},
    "er": {"batch": (16, 64)},
    "agem": {"batch": (64, 256)},
    "packnet": {"prune": (0.5, 0.65, 0.75), "retrain": (1 / 3, 0.5)},
    "ucb": {"rate": (1.0, 10.0, 50.0), "noise": (0.1, 0.5)},
    "acl": {"adversary": (0.005, 0.05), "difference": (0.01, 0.1)},
    "piggyback": {"rate": (0.1, 0.3, 1.0)},
    "hat": {"strength": (0.1, 0.75), "rate": (1.0, 10.0)},
    "pnn": {"scale": (0.1, 1.0)},
    "cpg": {"pruning": (1 / 3, 0.5), "tolerance": (1.0, 3.0)},
    "pae": {"pruning": (1 / 3, 0.5), "tolerance": (1.0, 3.0)},
}


def candidates(name: str) -> Iterator[dict[str, Any]]:
    """Every combination of the settings that are tried."""
    tried = SEARCHED.get(name, {})
    for values in itertools.product(*tried.values()):
        yield dict(zip(tried, values, strict=True))


def on_held_out(scenario: Scenario) -> Scenario:
    """The same tasks, tested on what was held out of training."""
    tasks = []
    for task in scenario.tasks:
        assert task.val is not None
        tasks.append(ScenarioTask(task.name, task.train, task.val, task.classes, task.augment))
    return replace(scenario, tasks=tasks)


def label(settings: dict[str, Any]) -> str:
    return " ".join(f"{name}={value:.3g}" for name, value in settings.items())


def search(name: str, asked: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    """The settings of highest ACC on held-out images."""
    tried = list(candidates(name))
    if len(tried) == 1:
        return tried[0]
    whole = stream(asked.scenario, options(asked, min(asked.search_tasks, asked.tasks), asked.holdout))
    found = []
    for settings in tried:
        plan = Plan(on_held_out(whole), METHODS[name](**settings), recipe, (SEARCH_SEED,))
        folder = asked.out / "search" / f"{name} {label(settings)}"
        found.append((run(plan, folder, resume=True)["acc"], settings))
        print(f"search: {name} {label(settings)}: ACC {found[-1][0]:.2f} %", flush=True)
    return max(found, key=lambda each: float(each[0]))[1]


def options(asked: argparse.Namespace, tasks: int, holdout: float = 0.0) -> Options:
    choices = Choices(data=asked.data, holdout=holdout, network=asked.network)
    return Options(tasks=tasks, seeds=tuple(asked.seeds), choices=choices)


def row(name: str, settings: dict[str, Any], result: dict[str, Any], images: float, of_single: float | None) -> str:
    """A line of the table in Markdown."""
    runs = result.get("runs", [result])
    std = result.get("std", {})

    def mean(key: str) -> float:
        return fmean(float(one[key]) for one in runs)

    cells = [
        METHODS[name].title,
        label(settings) or "-",
        printed(result["acc"], std.get("acc")),
        printed(result["bwt"], std.get("bwt")),
        f"{mean('megabytes'):.2f}",
        f"{mean('megabytes_without_masks'):.2f}",
        f"{mean('images_kept'):.0f} ({mean('image_megabytes'):.2f} MB)" if mean("images_kept") else "-",
        f"{mean('learning_megabytes'):.2f}" if mean("learning_megabytes") else "-",
        f"{images:,.0f}",
        f"{mean('seconds') / of_single:.2f}" if of_single else "",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "method", "settings", "ACC %", "BWT", "MB", "without masks", "images kept", "MB kept to learn", "images seen",
    "time / single",
)  # fmt: skip


def images_seen(folder: Path) -> float:
    """Training images that a seed of a run went over, its memory's not counted."""
    logs = list(folder.glob("seed-*/epochs.jsonl"))
    return fmean(sum(int(json.loads(line)["images"]) for line in log.read_text().splitlines()) for log in logs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="cifar100")
    parser.add_argument("--network", default=None, help="conv5 or vgg16_bn")
    parser.add_argument("--data", type=Path, default=None, help="a folder with the data, as for nacre run")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--search-tasks", type=int, default=3, help="how many of them the search learns")
    parser.add_argument("--epochs", type=int, default=15, help="passes over each task")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--holdout", type=float, default=0.15, help="share of the training images, for the search")
    parser.add_argument("--out", type=Path, default=Path("runs/rivals"))
    asked = parser.parse_args()
    recipe = Recipe(epochs=asked.epochs, batch_size=asked.batch)
    found: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {}
    for name in asked.methods:
        settings = search(name, asked, recipe)
        plan = Plan(
            stream(asked.scenario, options(asked, asked.tasks)), METHODS[name](**settings), recipe, tuple(asked.seeds)
        )
        folder = asked.out / "table" / name
        result = run(plan, folder, resume=True)
        found[name] = (settings, result, images_seen(folder))
        print(f"table: {name} {label(settings)}: ACC {result['acc']:.2f} %", flush=True)
    of_single = None
    if "single" in found:
        result = found["single"][1]
        of_single = fmean(float(one["seconds"]) for one in result.get("runs", [result]))
    print(f"\n| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for name, each in found.items():
        print(row(name, *each, of_single))


if __name__ == "__main__":
    try:
        main()
    except NacreError as error:
        raise SystemExit(f"rivals: {error}") from error
