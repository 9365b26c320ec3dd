"""What two details of the training loop are worth on a CPU: quick dropout, and freed memory that stays.

python benchmarks/details.py [--append docs/results.md]
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F

from nacre.training.dropout import quick_dropout
from nacre.training.memory import freed_memory_kept
from speed import BATCH, CLASSES, SIDE, dense, in_turn, ratio

CPU = torch.device("cpu")


def step(dropout: AbstractContextManager[object] | None = None) -> Callable[[], None]:
    """A bfloat16 step of the dense network, in the layout that is faster there; with torch's own dropout or another."""
    network = dense().train()
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
    x = torch.randn(BATCH, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last)
    y = torch.randint(CLASSES, (BATCH,))

    def run() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), dropout or nullcontext():
            out = network(x)
        F.cross_entropy(out.float(), y).backward()
        optimizer.step()

    return run


def dropouts(rounds: int) -> str:
    with freed_memory_kept(CPU):
        times = in_turn({"quick": step(quick_dropout(CPU)), "torch": step(), "again": step()}, rounds)
    return (
        f"| step with torch's dropout / with nacre's | {ratio(times, 'torch', 'quick'):.3f} "
        f"| torch / torch {ratio(times, 'again', 'torch'):.3f} |"
    )


def memory(rounds: int) -> str:
    """In turn, some steps with freed memory kept and some without."""
    run = step(quick_dropout(CPU))
    quotients, faults = [], []
    for _ in range(rounds):
        with freed_memory_kept(CPU):
            kept = statistics.median(in_turn({"step": run}, 10)["step"])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        times = in_turn({"step": run}, 10)["step"]
        faults.append((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 15)  # 5 steps to warm up
        quotients.append(statistics.median(times) / kept)
    return (
        f"| step with freed memory given back / kept | {statistics.median(quotients):.3f} "
        f"| {statistics.median(faults):.0f} page faults a step where it is given back |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--append", type=Path, help="a Markdown file to add the table to")
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    lines = [
        f"### {date.today()}: details of the loop, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "",
        "| what | measured | beside it |",
        "|---|---|---|",
        dropouts(given.rounds),
        memory(given.rounds // 4),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if given.append is not None:
        with given.append.open("a") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
