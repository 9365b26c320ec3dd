"""A task in its low-rank form against the dense one, as module and as ONNX file: ratios, on an idle machine.

python benchmarks/inference.py [--batches 1 16 64] [--append docs/results.md]

conv5 at 32 x 32 pixels with a single task, at shares of the full rank, and with ten tasks of which the last stands on
all. Each ratio is the median over rounds of the seconds in one round, beside that of the dense network to itself.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn

import nacre
from nacre.export import to_onnx
from nacre.space.optimising import Optimize
from speed import in_turn, ratio

SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
FORMS: tuple[Optimize, ...] = ("counted", "measured")
CLASSES, SIDE = 5, 32
Run = Callable[[Tensor], object]


def spaces() -> dict[str, tuple[nacre.SharedSpace, str]]:
    """Spaces and the task to run, by what is written in the table."""
    found = {f"one task, {share:g} of the full rank": (space_of(1, share), "task 0") for share in SHARES}
    return found | {"the last of ten tasks, 0.1 each": (space_of(10, 0.1), "task 9")}


def space_of(tasks: int, share: float) -> nacre.SharedSpace:
    torch.manual_seed(0)
    space = nacre.SharedSpace(nacre.networks.conv5())
    ranks = {name: max(1, int(share * rank)) for name, rank in space.full_ranks.items()}
    for number in range(tasks):
        network = space.expand(nn.Linear(1024, CLASSES), rank=ranks).eval()
        network(torch.randn(2, 3, SIDE, SIDE))
        space.append(f"task {number}", network)
    return space


def modules(space: nacre.SharedSpace, task: str) -> dict[str, Run]:
    """Every form as a module, by name."""
    networks = {"dense": space.network(task), "dense again": space.network(task)}
    networks |= {form: space.network(task, optimize=form) for form in FORMS}
    return {name: functools.partial(_call, network) for name, network in networks.items()}


def _call(network: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        network(x)


def sessions(space: nacre.SharedSpace, task: str) -> dict[str, Run]:
    """Every form as an ONNX file in onnxruntime, by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()

    def opened(form: Optimize | None) -> Run:
        with tempfile.TemporaryDirectory() as folder:
            path = to_onnx(space, task, Path(folder) / "task.onnx", optimize=form)
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {"input": x.numpy()})

    return {"dense": opened(None), "dense again": opened(None), **{form: opened(form) for form in FORMS}}


def lines(batches: list[int], rounds: int) -> list[str]:
    rows = []
    for what, (space, task) in spaces().items():
        for kind, forms in (("module", modules(space, task)), ("ONNX", sessions(space, task))):
            for batch in batches:
                x = torch.randn(batch, 3, SIDE, SIDE)
                times = in_turn({name: functools.partial(run, x) for name, run in forms.items()}, rounds)
                ratios = [f"{1 / ratio(times, form, 'dense'):.2f}" for form in FORMS]
                noise = f"{ratio(times, 'dense again', 'dense'):.3f}"
                rows.append(f"| {what} | {batch} | {kind} | {' | '.join(ratios)} | {noise} |")
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--append", type=Path, help="a Markdown file to add the table to")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    heading = [
        f"### {date.today()}: {platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, load before {os.getloadavg()[0]:.2f}",
        "",
        "Times faster than dense (at a tenth at least 2; anywhere at least 0.97).",
        "",
        "| what | batch | as | counted | measured | dense / dense |",
        "|---|---|---|---|---|---|",
    ]
    text = "\n".join([*heading, *lines(given.batches, given.rounds)]) + "\n"
    if given.append is not None:
        with given.append.open("a") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
