"""A cell of a grid: one method with its dials set and one seed. Run as a script, the process that learns it."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.experiments.environment import describe_session, record_session
from nacre.experiments.folder import RUN, claim
from nacre.experiments.plan import Json, Plan
from nacre.experiments.protocols import Dials, Options, plan
from nacre.experiments.run import run_seed, seed_folder
from nacre.scenarios import Choices


@dataclass(frozen=True)
class Cell:
    """What a process must know to learn it; `options` are those of the whole grid."""

    scenario: str
    method: str
    dials: Dials
    seed: int
    options: Options

    @property
    def name(self) -> str:
        """The name of its run's folder, which the seeds share."""
        return f"{self.method}{self.dials}"

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"

    def plan(self) -> Plan:
        return plan(self.scenario, self.method, self.options, self.dials)

    def to_json(self) -> Json:
        return {**asdict(self), "options": options_to_json(self.options)}

    @staticmethod
    def from_json(data: Json) -> Cell:
        choices = dict(data["options"]["choices"])
        choices["data"] = Path(choices["data"]) if choices["data"] is not None else None
        options = {**data["options"], "seeds": tuple(data["options"]["seeds"]), "choices": Choices(**choices)}
        return Cell(**{**data, "options": Options(**options), "dials": Dials(**data["dials"])})


def options_to_json(options: Options) -> Json:
    """As JSON; the folder of the data in full, for processes that start elsewhere."""
    data = options.choices.data
    choices = {**asdict(options.choices), "data": str(data.resolve()) if data is not None else None}
    return {**asdict(options), "seeds": list(options.seeds), "choices": choices}


def learn_cell(cell: Cell, out: Path, *, progress: bool) -> None:
    """Learns a cell in the folder of its run, which says already what its settings must be."""
    learnt = cell.plan()
    claim(out, RUN, learnt.to_json(), resume=True)
    record_session(out, {**describe_session(), "seeds": [cell.seed]})
    run_seed(learnt, cell.seed, seed_folder(out, cell.seed), progress=progress, track=cell.options.track)


def what_went_wrong(error: BaseException) -> str:
    """A mistake that nacre can name in one line; anything else with all that is known of it."""
    if isinstance(error, NacreError):
        return str(error)
    return "".join(traceback.format_exception(error)).strip()


def main() -> None:
    """Reads one line of JSON, learns, and prints one: null or what went wrong."""
    asked: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    error: str | None = None
    try:
        learn_cell(Cell.from_json(asked["cell"]), Path(asked["out"]), progress=asked["progress"])
    except Exception as raised:  # whatever it is, the grid goes on
        error = what_went_wrong(raised)
    sys.stdout.write("\n" + json.dumps(error) + "\n")


def _end_with_parent() -> None:
    """The pipe stays open as long as the command lives that started this process, however that ends."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
