"""The nacre command: reads what was typed, calls the rooms, prints. Results on standard output, the rest on error."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

try:
    import tyro
    from tyro.conf import Positional, arg
except ImportError:
    sys.exit("nacre: the command needs a few more packages: pip install 'nacre[bench]'")

from nacre.errors import NacreError

MethodName = Literal["cacl", "cacl-st", "cacl-fixed", "single"]


def main() -> None:
    """The entry point: exit status 0, 1 for what failed, 2 for wrong usage."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of tasks and folders may be any text
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"run": run, "inspect": inspect, "verify": verify},
            prog="nacre",
            description="Teach one PyTorch network task after task: nothing is forgotten, each task costs kilobytes.",
        )
        sys.stdout.flush()
    except NacreError as error:
        sys.exit(f"nacre: {error}")
    except KeyboardInterrupt:
        sys.exit("nacre: interrupted; the same command with --resume goes on from the last epoch")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that flushing it at exit fails no more
        sys.exit(1)
    except OSError as error:  # a disk that is full, a folder that may not be written to
        sys.exit(f"nacre: {error}")


def run(
    scenario: Positional[Literal["digits"]] = "digits",
    /,
    *,
    method: MethodName = "cacl",
    sparsity: float | None = None,
    epochs: int | None = None,
    tasks: int | None = None,
    seeds: tuple[int, ...] = (0,),
    protocol: Literal["quick", "paper"] = "quick",
    out: Path | None = None,
    resume: bool = False,
    json: Annotated[bool, arg(name="json")] = False,
) -> None:
    """Run a method on a scenario: learn its tasks one after another, measure all of them after each.

    Without arguments: CACL on scikit-learn's digits, about a minute on two cores. Everything is kept in the
    folder --out; stop it whenever you like and go on with --resume.

    Args:
        scenario: The stream of tasks.
        method: cacl; cacl-st (no sharing); cacl-fixed (in the memory of the first task); single (dense networks).
        sparsity: Weight of the penalty on singular values; more makes smaller tasks. The method's own by default.
        epochs: Epochs a task; the schedule scales with them. The protocol's own by default.
        tasks: Only the first so many tasks.
        seeds: One run for each; a seed draws the initial weights and the order of the tasks.
        protocol: quick is ours, the best trade of time, size and accuracy; paper is the text's (200 epochs).
        out: The folder of the run; runs/SCENARIO-METHOD by default.
        resume: Go on with the run in the folder; starts it if there is none.
        json: Print the result as JSON on standard output.
    """
    from nacre.experiments.protocols import plan
    from nacre.experiments.run import run as run_plan

    try:
        chosen = plan(scenario, method, protocol, sparsity=sparsity, epochs=epochs, tasks=tasks, seeds=seeds)
    except NacreError as error:  # --epochs 0, --tasks 9: as wrong as --epochs x
        print(f"nacre: {error}", file=sys.stderr)
        sys.exit(2)
    result = run_plan(chosen, out or Path("runs") / f"{scenario}-{method}", resume=resume)
    if json:
        _print_json(result)
    else:
        from nacre.experiments.table import print_run

        print_run(result)


def inspect(store: Positional[Path], /, *, json: Annotated[bool, arg(name="json")] = False) -> None:
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


def _print_json(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
