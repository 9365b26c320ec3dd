"""Which runs stand side by side: those of one scenario, network and number of tasks; and whether the paper's do too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean

from nacre.experiments.report.published import Benchmark, benchmark
from nacre.experiments.report.runs import Run, Seed
from nacre.experiments.report.text import printable
from nacre.methods import METHODS


@dataclass(frozen=True)
class Labelled:
    """A run and the short name that tells it from the others in its group."""

    label: str
    run: Run


@dataclass(frozen=True)
class Group:
    """Runs that may be compared with each other."""

    scenario: str
    network: str | None
    tasks: int
    runs: tuple[Labelled, ...]

    @property
    def title(self) -> str:
        named = [printable(self.scenario), f"{self.tasks} tasks" if self.tasks != 1 else "1 task"]
        return ", ".join(named + ([printable(self.network)] if self.network else []))

    @property
    def benchmark(self) -> Benchmark | None:
        return benchmark(self.scenario, self.network)

    def differences(self) -> list[str]:
        """Why the paper's numbers are not comparable with these runs; empty where they are."""
        paper = self.benchmark
        if paper is None:
            return []
        found = []
        if self.tasks != paper.tasks:
            found.append(f"the paper learns {paper.tasks} tasks, these runs {self.tasks}")
        for each in self.runs:
            known = [
                (images, whole) for task, images in images_by_task(each.run).items() if (whole := paper.whole(task))
            ]
            seen, there = (fmean(column) for column in zip(*known, strict=True)) if known else (0.0, 0.0)
            if seen < 0.8 * there:
                found.append(f"{each.label} was trained on {seen:,.0f} images a task, the whole set has {there:,.0f}")
            if each.run.facts.get("class_order") == "superclass":
                found.append(f"each task of {each.label} has the classes of one superclass, the paper's are mixed")
        return found


def group(runs: Sequence[Run]) -> list[Group]:
    """The runs by what they were run on, in the order they were given."""
    groups: dict[tuple[str, str | None, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.scenario, run.network, len(run.tasks)), []).append(run)
    return [Group(*key, tuple(_labelled(members))) for key, members in groups.items()]


def _labelled(runs: Sequence[Run]) -> list[Labelled]:
    """Method and dial; then the protocol, then the folder, where that does not tell them apart."""
    labels = [_method(run) for run in runs]
    for more in ([run.protocol for run in runs], [run.folder.name for run in runs], [str(run.folder) for run in runs]):
        labels = _longer(labels, more)
    return [Labelled(label, run) for label, run in zip(labels, runs, strict=True)]


def _method(run: Run) -> str:
    name = METHODS[run.method].title if run.method in METHODS else printable(run.method)
    sparsity, share = run.settings.get("sparsity"), run.settings.get("share")
    dtype = run.settings.get("dtype", "float32")
    stored = f", {printable(str(dtype))}" if dtype != "float32" else ""
    if isinstance(share, int | float):  # what makes a task small where there is one
        return f"{name} {Fraction(share).limit_denominator(1000)}{stored}"
    return f"{name} {sparsity:g}{stored}" if isinstance(sparsity, int | float) else name + stored


def _longer(labels: Sequence[str], more: Sequence[str | None]) -> list[str]:
    """Labels that stand for several runs with what tells these apart, where it does."""
    alike = {label: {each for other, each in zip(labels, more, strict=True) if other == label} for label in labels}
    return [
        f"{label}, {printable(each)}" if each and len(alike[label]) > 1 else label
        for label, each in zip(labels, more, strict=True)
    ]


def images_by_task(run: Run) -> dict[str, int]:
    """Training images of each task, from the log of epochs."""
    return {
        epoch["task"]: epoch["images"]
        for seed in run.seeds
        for epoch in seed.epochs
        if isinstance(epoch.get("images"), int)
    }


Place = tuple[Seed, int]  # a task of a seed, by its position there


def aligned(run: Run) -> list[tuple[str, list[Place]]]:
    """The tasks of a run with where each seed learnt them.

    One seed: in the order learnt. Several: by name, in the scenario's order; by position where names differ.
    """
    seeds = run.shown
    if len(seeds) == 1:
        return [(name, [(seeds[0], at)]) for at, name in enumerate(seeds[0].tasks)]
    if by_name(run):
        named = [(name, [(s, s.tasks.index(name)) for s in seeds if name in s.tasks]) for name in run.tasks]
    else:
        most = max((len(seed.tasks) for seed in seeds), default=0)
        named = [(f"task {at + 1}", [(s, at) for s in seeds if at < len(s.tasks)]) for at in range(most)]
    return [(name, places) for name, places in named if places]


def by_name(run: Run) -> bool:
    """Whether all seeds learn the tasks that the plan names, so that means over seeds may be taken by name.

    Tasks of drawn classes are called alike under every seed and have other classes under each.
    """
    return run.facts.get("class_order") != "random" and all(set(seed.tasks) <= set(run.tasks) for seed in run.shown)
