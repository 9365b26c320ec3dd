"""The nacre command: reads what was typed, calls the rooms, prints. One file for each command."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any

try:
    import tyro
except ImportError:
    sys.exit("nacre: the command needs a few more packages: pip install 'nacre[bench]'")

from nacre.cli.compare import compare
from nacre.cli.drop import drop
from nacre.cli.export import export
from nacre.cli.inspect import inspect
from nacre.cli.learn import learn
from nacre.cli.output import say
from nacre.cli.predict import predict
from nacre.cli.report import report
from nacre.cli.run import run
from nacre.cli.verify import verify
from nacre.errors import NacreError, WrongUsage

COMMANDS: dict[str, Callable[..., Any]] = {
    "learn": learn,
    "predict": predict,
    "inspect": inspect,
    "verify": verify,
    "export": export,
    "drop": drop,
    "run": run,
    "compare": compare,
    "report": report,
}

_EXAMPLES = """Teach one PyTorch network task after task: nothing is forgotten, each task costs kilobytes.

Your own pictures:
    nacre learn life.nacre flowers ./flowers              a folder with a sub-folder for every class
    nacre learn life.nacre birds ./birds --budget 200KB   next month, into the same store
    nacre learn leaf.nacre leaves ./leaves --network hf:FOLDER   on a pretrained model of transformers
    nacre predict life.nacre flowers a.jpg ./new          file, class, probability
    nacre inspect life.nacre                              what is in it, where its bytes go

Methods compared:
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
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="nacre", description=_EXAMPLES)
        sys.stdout.flush()
    except WrongUsage as error:  # --epochs 0, --tasks 9: as wrong as --epochs x
        say(f"{_who()}: {error}")
        sys.exit(2)
    except NacreError as error:
        sys.exit(f"{_who()}: {error}")
    except KeyboardInterrupt as interrupt:
        sys.exit(f"nacre: {str(interrupt) or 'interrupted'}")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that flushing it at exit fails no more
        sys.exit(1)
    except OSError as error:  # a disk that is full, a folder that may not be written to
        sys.exit(f"{_who()}: {error}")


def _who() -> str:
    """Who speaks: of several processes that learn together, all but the first with their number."""
    rank = os.environ.get("RANK", "0")
    return "nacre" if rank == "0" else f"nacre (process {rank})"
