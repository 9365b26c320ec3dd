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
from nacre.lowrank import Dtype, Factors

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
    dtype: Dtype = "float32",
    environment: Mapping[str, Any] | None = None,
    **plan: Any,
) -> Path:
    """A run folder; `done` says how many tasks a seed has learnt, where that is not all of them."""
    folder.mkdir(parents=True)
    given = {"sparsity": 0.1} if method != "single" and settings is None else dict(settings or {})
    given |= {"dtype": dtype} if method != "single" else {}
    default: dict[str, Any] = {"scenario": "digits", "protocol": "quick", "network": "conv5", "tasks": list(tasks)}
    default |= {"method": {"name": method, "settings": given}, "recipe": {"epochs": epochs, "batch_size": 16}}
    write(folder / "run.json", {**default, "seeds": list(seeds), **plan})
    if environment is not None:
        write(folder / "environment.json", environment)
    for seed in seeds:
        count = (done or {}).get(seed, len(tasks))
        order = [tasks[at] for at in np.random.default_rng(seed).permutation(len(tasks))]
        if count >= 0:
            of = (method, network, features, epochs, images, spectra, dtype)
            make_seed(folder / f"seed-{seed}", order[:count], seed, *of)
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
    dtype: Dtype,
) -> None:
    folder.mkdir()
    draw, space = np.random.default_rng(seed), SharedSpace(network())
    before: dict[str, dict[str, list[float]]] = {}
    matrix: list[list[float]] = []
    lines: list[str] = []
    for at, task in enumerate(tasks):
        expanded = space.expand(nn.Linear(features, 2), dense=method == "single", sharing=method != "cacl-st")
        if method != "single":
            before[task] = cut(expanded, draw, 1 if at == 0 else 3)
        space.append(task, expanded, **({} if method == "single" else {"dtype": dtype, "head_dtype": dtype}))
        matrix.append([*(matrix[-1] if matrix else []), float(draw.uniform(80, 95))])
        lines += [log_line(task, epoch, epochs, images, draw, method) for epoch in range(1, epochs + 1)]
    if tasks:
        space.save(folder / "life.nacre")
    write(folder / "accuracy.json", matrix)
    (folder / "epochs.jsonl").write_text("".join(lines))
    if spectra and before:
        write(folder / "spectra.json", before)


def cut(network: Any, draw: np.random.Generator, share: int) -> dict[str, list[float]]:
    """Gives a network falling singular values, cuts them at a drawn rank, and says what they were before."""
    before, factors = {}, {}
    for layer, whole in network.factors().items():
        values = np.sort(np.exp(draw.normal(-0.04 * np.arange(whole.rank), 0.1)))[::-1].copy()
        kept = int(draw.integers(0, 1 + whole.rank // share))
        before[layer] = values.tolist()
        s = torch.tensor(values[:kept], dtype=torch.float32)
        factors[layer] = Factors(whole.U[:, :kept], s, whole.V[:, :kept])
    network.load_factors(factors)
    return before


def log_line(task: str, epoch: int, epochs: int, images: int, draw: np.random.Generator, method: str) -> str:
    measures = {} if method == "single" else {"orthogonality": 0.01, "rank": int(400 * 0.9**epoch)}
    line = {"task": task, "phase": "train", "epoch": epoch, "epochs": epochs, "loss": 1.6 / epoch + 0.1 * draw.random()}
    line |= {"accuracy": 90.0, "val": None, "seconds": 0.5, "images": images, "measures": measures}
    return json.dumps(line) + "\n"


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data))


@pytest.fixture(name="make_run", scope="session")
def _make_run() -> MakeRun:
    return make_run
