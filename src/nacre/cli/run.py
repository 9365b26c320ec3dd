"""`nacre run`: a method on a scenario."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional

from nacre.cli.options import Asked, Kept, MethodName, Output, ScenarioName
from nacre.cli.output import interruptible, print_json
from nacre.experiments.protocols import Options
from nacre.lowrank import Dtype
from nacre.training.processes import Processes


def run(
    scenario: Positional[ScenarioName] = "digits",
    /,
    *,
    method: MethodName = "cacl",
    sparsity: float | None = None,
    share: float | None = None,
    dtype: Dtype | None = None,
    options: Asked = Options(),  # noqa: B008 - frozen
    output: Kept = Output(),  # noqa: B008
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
        dtype: What factors and heads are stored in: bfloat16 and int8 are smaller than float32. With a share, more of
            the singular values are kept then.
    """
    from nacre.experiments.protocols import Dials, plan
    from nacre.experiments.run import run as run_plan

    chosen = plan(scenario, method, options, Dials(sparsity, share, dtype))
    folder = output.out or Path("runs") / f"{scenario}-{method}"
    with interruptible("the same command with --resume goes on from the last epoch"):
        result = run_plan(chosen, folder, resume=output.resume, track=options.track)
    if not Processes.current().main:
        return
    if output.json:
        print_json(result)
    else:
        from nacre.experiments.table import print_run

        print_run(result)
