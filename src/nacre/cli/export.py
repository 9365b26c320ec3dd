"""`nacre export`: a task as a file that needs no nacre."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from nacre.cli.options import Flag, Store, TaskName, shown
from nacre.errors import WrongUsage


def export(
    store: Store,
    task: TaskName,
    /,
    *,
    to: Literal["onnx", "torch", "peft"],
    out: Annotated[Path | None, shown("PATH")] = None,
    optimize: Annotated[Literal["counted", "measured"] | None, shown("{counted,measured}")] = None,
    with_preprocessing: Flag = False,
) -> None:
    """Write a task as a file that needs no nacre: ONNX, a .pt2 of torch.export, or a LoRA adapter for PEFT.

    Classes, inputs and preprocessing are written beside it as JSON.

    Args:
        store: The folder that was saved to.
        task: The task to export.
        to: onnx; torch (.pt2 and safetensors, no pickle); peft (a folder; only over a pretrained base).
        out: The file, or for peft the folder; TASK with the kind's ending by default.
        optimize: Run layers of low rank as two smaller ones, where that takes fewer multiplications (counted) or was
            timed here and found faster (measured). By default every layer is one.
        with_preprocessing: Put scaling and normalisation into the ONNX graph, which then takes pixels of any height
            and width, uint8.
    """
    from nacre.export import to_onnx, to_peft, to_torch
    from nacre.space import SharedSpace
    from nacre.space.store import task_file

    if (to == "peft" and optimize) or (to != "onnx" and with_preprocessing):
        raise WrongUsage(f"--to {to} takes no {'--with-preprocessing' if with_preprocessing else '--optimize'}")
    space = SharedSpace.load(store)
    named = Path(task_file(0, task)).stem.partition("-")[2] or "task"
    if to == "onnx":
        path = out or Path(f"{named}.onnx")
        print(to_onnx(space, task, path, optimize=optimize, with_preprocessing=with_preprocessing))
    elif to == "torch":
        print(to_torch(space, task, out or Path(f"{named}.pt2"), optimize=optimize))
    else:
        print(to_peft(space, task, out or Path(f"{named}-adapter")))
