"""Protocols: how a scenario is trained by default, as the paper says, and as the authors' code does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from nacre.errors import NacreError, WrongUsage
from nacre.experiments.plan import Plan
from nacre.experiments.tracking import TrackerName
from nacre.lowrank import Dtype, Start
from nacre.methods import CACL, METHODS
from nacre.scenarios import SCENARIOS, Choices, Scenario
from nacre.training import Recipe

Protocol = Literal["quick", "paper", "published"]

# ours, for each scenario; docs/results.md has what was measured, and what of it was not yet
_SMALL: dict[str, Any] = {
    "sparsity": 0.0,
    "share": 1 / 8,
    "halfway": 0.35,
    "singular_rate": 10.0,
    "start": Start("svd", later=0.5),
}
_COSINE = Recipe(epochs=40, batch_size=32, learning_rate=2e-3, schedule="cosine")
QUICK: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "digits": (Recipe(epochs=40, batch_size=16), {"energy": 1e-3, "sparsity": 0.1, "share": 1 / 4}),
    "cifar100": (_COSINE, _SMALL),
    "miniimagenet": (_COSINE, {**_SMALL, "share": 1 / 4}),  # a head for 84 pixels is a sixth of a dense network
    "five-datasets": (replace(_COSINE, epochs=10), _SMALL),  # each set is twenty times a task of the others
}
PAPER = Recipe(epochs=200, batch_size=64, milestones=(0.4, 0.6, 0.9))
PUBLISHED = replace(PAPER, milestones=(0.6, 0.9))  # epochs 120 and 180 of 200
PUBLISHED_MINIIMAGENET = replace(PAPER, milestones=(0.75, 0.9))  # 150 and 180
PAPER_SPARSITY = {"vgg16_bn": 0.01}  # by network (Appendix A); 0.1 for the others


@dataclass(frozen=True)
class Options:
    """What may be asked of a run beside its scenario and its methods; `nacre run` and `nacre compare` share it."""

    protocol: Protocol = "quick"  # quick: ours; paper: the text's 200 epochs; published: the authors' code's
    epochs: int | None = None  # epochs a task, and the schedule scales with them; the protocol's own by default
    tasks: int | None = None  # only the first so many tasks
    seeds: tuple[int, ...] = (0,)  # one run each; a seed draws the initial weights and the order of the tasks
    track: TrackerName | None = None  # write curves for TensorBoard (into the run's folder), wandb or MLflow
    choices: Choices = field(default_factory=Choices)


@dataclass(frozen=True)
class Dials:
    """What trades a method's accuracy for its size; the protocol's own where None."""

    sparsity: float | None = None
    share: float | None = None
    dtype: Dtype | None = None  # of factors and heads

    def given(self) -> dict[str, float | str]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        """As part of a folder's name."""
        named = {"sparsity": "", "share": "share-", "dtype": ""}
        values = {name: value if isinstance(value, str) else f"{value:g}" for name, value in self.given().items()}
        return "".join(f"-{named[name]}{value}" for name, value in values.items())


def plan(scenario: str, method: str, options: Options | None = None, dials: Dials | None = None) -> Plan:
    """The plan that a command line asks for."""
    options = options or Options()
    recipe, chosen = recipe_and_method(scenario, method, options, dials)
    return Plan(stream(scenario, options), chosen, recipe, tuple(options.seeds), options.protocol)


def has_dial(method: str, name: str) -> bool:
    kind = _known("method", method, METHODS)
    return issubclass(kind, CACL) and any(part.name == name for part in fields(kind))


def recipe_and_method(scenario: str, method: str, options: Options, dials: Dials | None = None) -> tuple[Recipe, Any]:
    """How each task is trained. Reads no data, so that what is wrong is known at once."""
    if not options.seeds or len(set(options.seeds)) != len(options.seeds):
        raise WrongUsage(f"--seeds takes different numbers, at least one; got {list(options.seeds)}")
    _known("scenario", scenario, SCENARIOS)
    recipe, settings = _protocol(scenario, options.protocol, options.choices.network)
    kind = _known("method", method, METHODS)
    if not issubclass(kind, CACL):
        settings = {}  # a protocol's are CACL's; another method has its own defaults
    for name, value in (dials or Dials()).given().items():
        if not has_dial(method, name):
            raise WrongUsage(f"the method {method} has no --{name}")
        settings = {**settings, name: value, **({"head_dtype": value} if name == "dtype" else {})}
    try:
        chosen = kind(**settings)
        if options.epochs is not None:
            recipe = replace(recipe, epochs=options.epochs)
    except NacreError as error:  # --epochs 0, --sparsity -1: as wrong as --epochs x
        raise WrongUsage(str(error)) from error
    return recipe, chosen


def stream(scenario: str, options: Options) -> Scenario:
    """The tasks, with their data."""
    whole: Scenario = _known("scenario", scenario, SCENARIOS)(options.choices)
    return whole.first(options.tasks)


def _protocol(scenario: str, name: str, network: str | None) -> tuple[Recipe, dict[str, Any]]:
    if name == "paper":
        return PAPER, vars(CACL.text(PAPER_SPARSITY.get(network or "", 0.1)))
    if name == "published":
        settings = vars(CACL.published())
        if scenario == "five-datasets":  # there the code adds r new columns for every task
            settings = {**settings, "columns": "full"}
        return PUBLISHED_MINIIMAGENET if scenario == "miniimagenet" else PUBLISHED, settings
    if name != "quick":
        raise WrongUsage(f"no protocol is called {name!r}; the protocols are {', '.join(get_args(Protocol))}")
    return QUICK[scenario]


def _known(what: str, name: str, known: Any) -> Any:
    if name not in known:
        raise WrongUsage(f"no {what} is called {name!r}; the {what}s are {', '.join(known)}")
    return known[name]
