"""Which runs stand side by side: those of one scenario, network and number of tasks; and whether the paper's do too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
            images = images_a_task(each.run)
            if paper.images and images and images < 0.8 * paper.images:
                found.append(
                    f"{each.label} was trained on {images:,.0f} images a task, the whole set has {paper.images:,}"
                )
        return found


def group(runs: Sequence[Run]) -> list[Group]:
    """The runs by what they were run on, in the order they were given."""
    groups: dict[tuple[str, str | None, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.scenario, run.network, len(run.tasks)), []).append(run)
    return [Group(*key, tuple(_labelled(members))) for key, members in groups.items()]


def _labelled(runs: Sequence[Run]) -> list[Labelled]:
    """Method and sparsity; then the protocol, then the folder, where that does not tell them apart."""
    labels = [_method(run) for run in runs]
    labels = [_longer(label, labels, run.protocol) for label, run in zip(labels, runs, strict=True)]
    labels = [_longer(label, labels, run.folder.name) for label, run in zip(labels, runs, strict=True)]
    labels = [_longer(label, labels, str(run.folder)) for label, run in zip(labels, runs, strict=True)]
    return [Labelled(label, run) for label, run in zip(labels, runs, strict=True)]


def _method(run: Run) -> str:
    name = METHODS[run.method].title if run.method in METHODS else printable(run.method)
    sparsity = run.settings.get("sparsity")
    return f"{name} {sparsity:g}" if isinstance(sparsity, int | float) else name


def _longer(label: str, labels: Sequence[str], more: str | None) -> str:
    return f"{label}, {printable(more)}" if more and labels.count(label) > 1 else label


def images_a_task(run: Run) -> float | None:
    """Training images of a task, from the log of epochs."""
    seen = {
        (seed.seed, epoch["task"]): epoch["images"]
        for seed in run.seeds
        for epoch in seed.epochs
        if isinstance(epoch.get("images"), int)
    }
    return fmean(seen.values()) if seen else None


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
    """Whether all seeds learn the tasks that the plan names, so that means over seeds may be taken by name."""
    return all(set(seed.tasks) <= set(run.tasks) for seed in run.shown)
