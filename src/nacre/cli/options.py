"""What several commands take, in the types that the command line is made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg

from nacre.experiments.protocols import Options
from nacre.methods import METHODS

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]
ScenarioName = Literal["digits", "cifar100", "miniimagenet", "five-datasets"]
Flag = FlagCreatePairsOff[bool]
Store = Annotated[Positional[Path], arg(metavar="STORE")]
TaskName = Annotated[Positional[str], arg(metavar="TASK")]
AsJson = Annotated[Flag, arg(name="json")]


def shown(metavar: str) -> Any:
    """How the help shows an option that may be left out: its default is in its text, and is no "None"."""
    return arg(metavar=metavar, help_behavior_hint="")


@dataclass(frozen=True)
class Output:
    """Where the results of a run or a grid go."""

    out: Path | None = None  # folder of all that is kept; runs/SCENARIO-METHOD or runs/SCENARIO-compare by default
    resume: Flag = False  # go on with what is in the folder; starts it if there is none. A grid does so anyway
    json: Flag = False  # print the results as JSON on standard output


Asked = Annotated[OmitArgPrefixes[Options], arg(name="")]
Kept = Annotated[OmitArgPrefixes[Output], arg(name="")]
