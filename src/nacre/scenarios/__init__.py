"""Streams of tasks, by name."""

from collections.abc import Callable

from nacre.scenarios.digits import digits
from nacre.scenarios.scenario import Scenario, ScenarioTask

SCENARIOS: dict[str, Callable[[], Scenario]] = {"digits": digits}

__all__ = ["SCENARIOS", "Scenario", "ScenarioTask", "digits"]
