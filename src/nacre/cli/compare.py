"""`nacre compare`: several methods on a scenario."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from nacre.cli.options import Asked, Kept, MethodName, Output, ScenarioName
from nacre.cli.output import interruptible, print_json, say
from nacre.experiments.protocols import Options
from nacre.lowrank import Dtype


def compare(
    scenario: Positional[ScenarioName],
    /,
    *,
    methods: tuple[MethodName, ...],
    sparsities: Annotated[tuple[float, ...], arg(aliases=["--sparsity"])] = (),
    shares: Annotated[tuple[float, ...], arg(aliases=["--share"])] = (),
    dtypes: Annotated[tuple[Dtype, ...], arg(aliases=["--dtype"])] = (),
    jobs: int | None = None,
    ray: str | None = None,
    options: Asked = Options(),  # noqa: B008
    output: Kept = Output(),  # noqa: B008
) -> None:
    """Compare methods: each with every sparsity, share, dtype and seed, then a table of ACC, BWT and MB.

    Each result is kept as it comes. The same command again learns what is missing: after a failure, Ctrl-C or a crash.
    A cell that fails is reported, and the others go on; the exit status is then 1.

    Args:
        scenario: The stream of tasks.
        methods: cacl, its relatives cacl-st (no sharing) and cacl-fixed (in the memory of the first task), single
            (one dense network a task), and the rivals; docs/methods.md says what each does.
        sparsities: Weights of the penalty on singular values, for the methods that have it.
        shares: What a task may take, of the bytes of a dense network for it, for the methods that have it.
        dtypes: What factors and heads are stored in, float32, bfloat16 or int8, for the methods that have it.
        jobs: How many cells at a time: one for each accelerator by default, one where there are none.
        ray: Address of a Ray cluster that learns the cells ("auto", or HOST:PORT). Every node needs nacre and the data
            (--data at the same path); what was learnt comes back into the folder here.
    """
    from nacre.experiments.grid import Grid
    from nacre.experiments.grid import compare as compare_all

    grid = Grid(scenario, methods, sparsities, options, shares, dtypes)
    folder = output.out or Path("runs") / f"{scenario}-compare"
    with interruptible("the same command learns what is missing"):
        result = compare_all(grid, folder, jobs=jobs, ray=ray, say=say)
    if output.json:
        print_json(result)
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
