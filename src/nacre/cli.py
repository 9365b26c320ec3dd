"""The nacre command: reads what was typed, calls the rooms, prints. Results on standard output, the rest on error."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

try:
    import tyro
    from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg
except ImportError:
    sys.exit("nacre: the command needs a few more packages: pip install 'nacre[bench]'")

from nacre.errors import NacreError, WrongUsage
from nacre.experiments.protocols import Options
from nacre.methods import METHODS
from nacre.training.processes import Processes

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(METHODS)]
ScenarioName = Literal["digits", "cifar100", "miniimagenet", "five-datasets"]
Flag = FlagCreatePairsOff[bool]
AsJson = Annotated[Flag, arg(name="json")]


@dataclass(frozen=True)
class Output:
    """Where the results of a run or a grid go."""

    out: Path | None = None  # folder of all that is kept; runs/SCENARIO-METHOD or runs/SCENARIO-compare by default
    resume: Flag = False  # go on with what is in the folder; starts it if there is none. A grid does so anyway
    json: Flag = False  # print the results as JSON on standard output


Asked = Annotated[OmitArgPrefixes[Options], arg(name="")]
Kept = Annotated[OmitArgPrefixes[Output], arg(name="")]

_EXAMPLES = """Teach one PyTorch network task after task: nothing is forgotten, each task costs kilobytes.

Examples:
    nacre run                                             the digits, about a minute
    nacre run cifar100 --tasks 5 --seeds 0 1 2            ACC as the paper prints it, 86.19(0.38)
    nacre run cifar100 --protocol paper --out runs/paper  stop it when you like ...
    nacre run cifar100 --protocol paper --out runs/paper --resume    ... and go on
    nacre compare digits --methods cacl single --sparsities 0.1 0.4 --jobs 2
    nacre report runs/* --out report.html                 tables and pictures of all of them
"""


def main() -> None:
    """The entry point: exit status 0, 1 for what failed, 2 for wrong usage."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of tasks and folders may be any text
    commands: dict[str, Callable[..., Any]] = {
        "run": run,
        "compare": compare,
        "report": report,
        "inspect": inspect,
        "verify": verify,
    }
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="nacre", description=_EXAMPLES)
        sys.stdout.flush()
    except WrongUsage as error:  # --epochs 0, --tasks 9: as wrong as --epochs x
        _say(f"{_who()}: {error}")
        sys.exit(2)
    except NacreError as error:
        sys.exit(f"{_who()}: {error}")
    except KeyboardInterrupt:
        sys.exit("nacre: interrupted; the same command with --resume goes on from the last epoch")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that flushing it at exit fails no more
        sys.exit(1)
    except OSError as error:  # a disk that is full, a folder that may not be written to
        sys.exit(f"{_who()}: {error}")


def _who() -> str:
    """Who speaks: of several processes that learn together, all but the first with their number."""
    rank = os.environ.get("RANK", "0")
    return "nacre" if rank == "0" else f"nacre (process {rank})"


def run(
    scenario: Positional[ScenarioName] = "digits",
    /,
    *,
    method: MethodName = "cacl",
    sparsity: float | None = None,
    share: float | None = None,
    options: Asked = Options(),  # noqa: B008 - frozen
    output: Kept = Output(),
) -> None:
    """Run a method on a scenario: learn its tasks one after another, measure all of them after each.

    Without arguments: CACL on scikit-learn's digits, about a minute on two cores. Everything is kept in the
    folder --out; stop it whenever you like and go on with --resume. On several devices or machines:
    torchrun --nproc_per_node 2 -m nacre run cifar100.

    Args:
        scenario: The stream of tasks.
        method: cacl, a relative of it (cacl-st: no sharing; cacl-fixed: in the memory of the first task), one dense
            network a task (single), or a rival; docs/methods.md says what each does.
        sparsity: Weight of the penalty on singular values; more makes smaller tasks. The protocol's own by default.
        share: What a task may take, of the bytes of a dense network for it: 0.125. The protocol's own by default.
    """
    from nacre.experiments.protocols import Dials, plan
    from nacre.experiments.run import run as run_plan

    chosen = plan(scenario, method, options, Dials(sparsity, share))
    folder = output.out or Path("runs") / f"{scenario}-{method}"
    result = run_plan(chosen, folder, resume=output.resume, track=options.track)
    if not Processes.current().main:
        return
    if output.json:
        _print_json(result)
    else:
        from nacre.experiments.table import print_run

        print_run(result)


def compare(
    scenario: Positional[ScenarioName],
    /,
    *,
    methods: tuple[MethodName, ...],
    sparsities: Annotated[tuple[float, ...], arg(aliases=["--sparsity"])] = (),
    shares: Annotated[tuple[float, ...], arg(aliases=["--share"])] = (),
    jobs: int | None = None,
    ray: str | None = None,
    options: Asked = Options(),  # noqa: B008
    output: Kept = Output(),
) -> None:
    """Compare methods: each with every sparsity, every share and every seed, then a table of ACC, BWT and MB.

    Each result is kept as it comes. The same command again learns what is missing: after a failure, Ctrl-C or a crash.
    A cell that fails is reported, and the others go on; the exit status is then 1.

    Args:
        scenario: The stream of tasks.
        methods: cacl, its relatives cacl-st (no sharing) and cacl-fixed (in the memory of the first task), single
            (one dense network a task), and the rivals; docs/methods.md says what each does.
        sparsities: Weights of the penalty on singular values, for the methods that have it.
        shares: What a task may take, of the bytes of a dense network for it, for the methods that have it.
        jobs: How many cells at a time: one for each accelerator by default, one where there are none.
        ray: Address of a Ray cluster that learns the cells ("auto", or HOST:PORT). Every node needs nacre and the data
            (--data at the same path); what was learnt comes back into the folder here.
    """
    from nacre.experiments.grid import Grid
    from nacre.experiments.grid import compare as compare_all

    grid = Grid(scenario, methods, sparsities, options, shares)
    folder = output.out or Path("runs") / f"{scenario}-compare"
    result = compare_all(grid, folder, jobs=jobs, ray=ray, say=_say)
    if output.json:
        _print_json(result)
    elif result["cells"]:
        from nacre.experiments.table import print_grid

        print_grid(result)
    if result["failed"]:
        sys.stdout.flush()
        sys.exit(
            "\n".join(
                f"nacre: {cell['cell']}, seed {cell['seed']} failed: {cell['error']}" for cell in result["failed"]
            )
        )


def report(runs: Positional[tuple[Path, ...]], /, *, out: Path = Path("report.html")) -> None:
    """Make one page of runs: tables with the paper's numbers beside ours, figures, all of it also as files.

    Args:
        runs: Folders of runs (--out of nacre run) or of grids (of nacre compare).
        out: The page; figures and tables as files lie beside it.
    """
    from nacre.experiments.report import write_report

    print(write_report(runs, out))


def inspect(store: Positional[Path], /, *, json: AsJson = False) -> None:
    """Show what a store holds: tasks, classes, ranks of every layer, MB, bytes, when each was learnt.

    Args:
        store: The folder that was saved to.
        json: Print it as JSON.
    """
    from nacre.experiments.table import print_space
    from nacre.space import describe

    described = describe(store)
    if json:
        _print_json(described)
    else:
        print_space(described)


def verify(store: Positional[Path], /) -> None:
    """Check every file of a store against its hash; exit status 1 and the file's name if one is damaged.

    Args:
        store: The folder that was saved to.
    """
    from nacre.space import verify as problems_in

    problems = problems_in(store)
    if problems:
        sys.exit("\n".join(f"nacre: {problem}" for problem in problems))
    print(f"{store}: every file is as it was written")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print_json(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
