"""Run folders as nacre writes them, made without training: real stores, real files, numbers that are drawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nacre import SharedSpace
from nacre.lowrank import Factors

MakeRun = Callable[..., Path]
EPOCHS = 4


def backbone() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 10))


def make_run(
    folder: Path,
    tasks: Sequence[str] = ("0-1", "2-3", "4-5"),
    *,
    seeds: Sequence[int] = (0,),
    done: Mapping[int, int] | None = None,
    method: str = "cacl",
    settings: Mapping[str, Any] | None = None,
    network: Callable[[], nn.Module] = backbone,
    features: int = 10,
    epochs: int = EPOCHS,
    images: int = 2500,
    spectra: bool = True,
    environment: Mapping[str, Any] | None = None,
    **plan: Any,
) -> Path:
    """A run folder; `done` says how many tasks a seed has learnt, where that is not all of them."""
    folder.mkdir(parents=True)
    given = {"sparsity": 0.1} if method != "single" and settings is None else dict(settings or {})
    default: dict[str, Any] = {"scenario": "digits", "protocol": "quick", "network": "conv5", "tasks": list(tasks)}
    default |= {"method": {"name": method, "settings": given}, "recipe": {"epochs": epochs, "batch_size": 16}}
    write(folder / "run.json", {**default, "seeds": list(seeds), **plan})
    if environment is not None:
        write(folder / "environment.json", environment)
    for seed in seeds:
        count = (done or {}).get(seed, len(tasks))
        order = [tasks[at] for at in np.random.default_rng(seed).permutation(len(tasks))]
        if count >= 0:
            make_seed(folder / f"seed-{seed}", order[:count], seed, method, network, features, epochs, images, spectra)
    return folder


def make_seed(
    folder: Path,
    tasks: Sequence[str],
    seed: int,
    method: str,
    network: Callable[[], nn.Module],
    features: int,
    epochs: int,
    images: int,
    spectra: bool,
) -> None:
    folder.mkdir()
    draw = np.random.default_rng(seed)
    space, lines = SharedSpace(network()), list[str]()
    before: dict[str, dict[str, list[float]]] = {}
    matrix: list[list[float]] = []
    dense = method == "single"
    for at, task in enumerate(tasks):
        expanded = space.expand(nn.Linear(features, 2), dense=dense, sharing=method != "cacl-st")
        cut: dict[str, Factors] = {}
        before[task] = {}
        for layer, (U, s, V) in {
            name: (f.U, f.s, f.V) for name, f in (expanded.factors() if not dense else {}).items()
        }.items():
            values = (
                np.sort(np.exp(draw.normal(-0.04 * np.arange(len(s)), 0.1)))[::-1] * np.r_[1, np.full(len(s) - 1, 0.6)]
            )
            kept = int(draw.integers(0, 1 + len(s) // (1 if at == 0 else 3)))
            before[task][layer] = values.tolist()
            cut[layer] = Factors(U[:, :kept], torch.tensor(values[:kept].copy(), dtype=torch.float32), V[:, :kept])
        if not dense:
            expanded.load_factors(cut)
        space.append(task, expanded)
        matrix.append([*(matrix[-1] if matrix else []), float(draw.uniform(80, 95))])
        for epoch in range(1, epochs + 1):
            measures = {} if dense else {"orthogonality": 0.01, "rank": int(400 * 0.9**epoch) + at}
            line = {
                "task": task,
                "phase": "train",
                "epoch": epoch,
                "epochs": epochs,
                "loss": 1.6 / epoch + 0.1 * draw.random(),
            }
            line |= {"accuracy": 90.0, "val": None, "seconds": 0.5, "images": images, "measures": measures}
            lines.append(json.dumps(line) + "\n")
    if tasks:
        space.save(folder / "life.nacre")
    write(folder / "accuracy.json", matrix)
    (folder / "epochs.jsonl").write_text("".join(lines))
    if spectra and not dense:
        write(folder / "spectra.json", before)


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data))


@pytest.fixture(name="make_run")
def _make_run() -> MakeRun:
    return make_run
