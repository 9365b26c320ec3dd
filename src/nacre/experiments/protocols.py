"""Protocols: how a scenario is trained by default, and as the paper says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from nacre.errors import NacreError
from nacre.experiments.run import Plan
from nacre.methods import CACL, METHODS
from nacre.scenarios import SCENARIOS, Choices
from nacre.training import Recipe

# ours, for each scenario: measured in docs/results.md
QUICK: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "digits": (Recipe(epochs=40, batch_size=16), {"energy": 1e-3, "sparsity": 0.1}),
}
PAPER = Recipe(epochs=200, batch_size=64, milestones=(0.4, 0.6, 0.9))


def plan(
    scenario: str,
    method: str,
    protocol: str = "quick",
    *,
    sparsity: float | None = None,
    epochs: int | None = None,
    tasks: int | None = None,
    seeds: Sequence[int] = (0,),
) -> Plan:
    """The plan that a command line asks for."""
    if len(set(seeds)) != len(seeds) or not seeds:
        raise NacreError(f"--seeds takes different numbers, at least one; got {list(seeds)}")
    recipe, settings = (PAPER, _text_settings()) if protocol == "paper" else QUICK[scenario]
    kind = METHODS[method]
    known = {field.name for field in fields(kind)}
    if sparsity is not None:
        if "sparsity" not in known:
            raise NacreError(f"the method {method} has no --sparsity")
        settings = {**settings, "sparsity": sparsity}
    chosen = kind(**{name: value for name, value in settings.items() if name in known})
    if epochs is not None:
        recipe = replace(recipe, epochs=epochs)
    return Plan(SCENARIOS[scenario](Choices()).first(tasks), chosen, recipe, tuple(seeds))


def _text_settings() -> dict[str, Any]:
    return vars(CACL.text())
