"""Plan: what is run, everything that a result follows from but for the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nacre.methods.method import settings
from nacre.scenarios import Scenario
from nacre.training import Recipe

Json = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """A method on a scenario, trained by a recipe, once for every seed."""

    scenario: Scenario
    method: Any
    recipe: Recipe
    seeds: tuple[int, ...] = (0,)
    protocol: str | None = None  # the name that the recipe and the settings come from; None for one's own

    def to_json(self) -> Json:
        return {
            "scenario": self.scenario.name,
            "facts": self._facts(),
            "network": self.scenario.facts.get("network"),
            "protocol": self.protocol,
            "tasks": [task.name for task in self.scenario.tasks],
            "method": settings(self.method),
            "recipe": {name: _named(value) for name, value in asdict(self.recipe).items()},
            "seeds": list(self.seeds),
        }

    def _facts(self) -> Json:
        """Those of the scenario; where a seed draws which classes make a task, the classes under each seed as well."""
        if self.scenario.draw is None:
            return dict(self.scenario.facts)
        drawn = {f"seed {seed}": self.scenario.ordered(seed).facts["classes"] for seed in self.seeds}
        return {**self.scenario.facts, "classes": drawn}


def _named(value: Any) -> Any:
    """A setting as JSON; a function by its name."""
    if isinstance(value, tuple):
        return list(value)
    if not callable(value):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
