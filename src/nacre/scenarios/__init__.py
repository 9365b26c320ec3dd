"""Streams of tasks, by name."""

from collections.abc import Callable

from nacre.scenarios.choices import Choices
from nacre.scenarios.digits import digits
from nacre.scenarios.scenario import Scenario, ScenarioTask

SCENARIOS: dict[str, Callable[[Choices], Scenario]] = {"digits": digits}

__all__ = ["SCENARIOS", "Choices", "Scenario", "ScenarioTask", "digits"]
