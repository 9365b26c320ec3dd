"""Two finished runs on the same tasks and seeds, test image by test image: the difference of ACC with its intervals.

    python benchmarks/paired.py runs/cifar/cacl-share-0.125 runs/cifar/single --data ../shared/data

The first interval is over test images (each one's difference is its mean over the seeds): how far another draw of test
images might move the difference. The second is over seeds (Student's). Both are 95 %.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

import torch
from torch import Tensor

import nacre
from nacre.experiments.protocols import Options, stream
from nacre.scenarios import Choices, Scenario

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # two-sided 95 % for so many values


def scenario_of(run: Path, data: Path | None) -> Scenario:
    """What a run folder was learnt on; its seeds' tasks in the scenario's own order."""
    plan = json.loads((run / "run.json").read_text())
    choices = Choices(data=data, class_order=plan["facts"].get("class_order", "consecutive"), network=plan["network"])
    return stream(plan["scenario"], Options(tasks=len(plan["tasks"]), choices=choices))


def learners(run: Path) -> Iterator[tuple[int, nacre.Learner]]:
    """What each seed of a run has learnt."""
    for seed in json.loads((run / "run.json").read_text())["seeds"]:
        yield seed, nacre.Learner.load(run / f"seed-{seed}" / "life.nacre", progress=False)


def hits(learner: nacre.Learner, scenario: Scenario) -> Tensor:
    """Of every test image of every task, whether it is told right."""
    return torch.cat(
        [learner.predict(task.test[0], task=task.name).argmax(1) == task.test[1] for task in scenario.tasks]
    )


def paired(run: Path, other: Path, data: Path | None) -> dict[str, Any]:
    """Points of ACC by which a run is better than another."""
    scenario = scenario_of(run, data)
    ours, theirs = ({seed: hits(learner, scenario) for seed, learner in learners(each)} for each in (run, other))
    seeds = sorted(ours.keys() & theirs.keys())
    differences = torch.stack(
        [100 * (ours[seed].double() - theirs[seed].double()) for seed in seeds]
    )  # [seeds, images]
    by_image, by_seed = differences.mean(0), differences.mean(1).tolist()
    over_images = NormalDist().inv_cdf(0.975) * float(by_image.std()) / math.sqrt(len(by_image))
    over_seeds = STUDENT[len(seeds)] * stdev(by_seed) / math.sqrt(len(seeds)) if len(seeds) in STUDENT else None
    return {"seeds": seeds, "difference": fmean(by_seed), "over_images": over_images, "over_seeds": over_seeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="+", help="run folders, and last the one that they are compared with")
    parser.add_argument("--data", type=Path, default=None, help="a folder with the data, as for nacre run")
    given = parser.parse_args()
    *runs, other = given.run
    print(f"| run | ACC less {other.name} | over test images | over seeds | seeds |\n|---|---|---|---|---|")
    for run in runs:
        found = paired(run, other, given.data)
        seeds = f"± {found['over_seeds']:.2f}" if found["over_seeds"] is not None else ""
        line = f"| {run.name} | {found['difference']:+.2f} | ± {found['over_images']:.2f} | {seeds} |"
        print(f"{line} {' '.join(map(str, found['seeds']))} |", flush=True)


if __name__ == "__main__":
    main()
