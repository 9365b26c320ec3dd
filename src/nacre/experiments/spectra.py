"""Spectra: the singular values of every layer just before a task's first cut, which afterwards nobody knows."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from nacre.experiments.folder import read_json, write_json
from nacre.lowrank import factors, prepare
from nacre.training import Epoch


class Spectra:
    """A callback of `learn`: writes them down at the end of the first phase that a task is learnt in.

    exact: whether the method's cut makes the factors an exact SVD first; if not, s is what it looks at.
    """

    def __init__(self, path: Path, *, exact: bool = True) -> None:
        self._path, self._exact = path, exact

    def __call__(self, epoch: Epoch, network: nn.Module) -> None:
        if not epoch.last or epoch.task in (found := read_json(self._path) or {}):
            return
        if layers := {name: prepare(layer, exact=self._exact).s.tolist() for name, layer in factors(network).items()}:
            write_json(self._path, {**found, epoch.task: layers})
