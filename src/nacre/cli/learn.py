"""`nacre learn`: a task from pictures of one's own, into a store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from nacre.cli.options import AsJson, Flag, Store, TaskName, shown
from nacre.cli.output import interruptible, print_json
from nacre.errors import NacreError, WrongUsage
from nacre.lowrank import Dtype
from nacre.training.processes import Processes

if TYPE_CHECKING:
    from nacre.images import Learnt, Wanted

_WIDE = 100  # characters of a line
_UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def learn(
    store: Store,
    task: TaskName,
    pictures: Annotated[Positional[str], arg(metavar="PICTURES")],
    /,
    *,
    network: Annotated[str | None, shown("NAME")] = None,
    base: Annotated[Literal["store", "external"] | None, shown("{store,external}")] = None,
    size: Annotated[int | None, shown("PIXELS")] = None,
    epochs: Annotated[int | None, shown("N")] = None,
    budget: Annotated[str | None, shown("BYTES")] = None,
    dtype: Annotated[Dtype | None, shown("{float32,bfloat16,int8}")] = None,
    test_share: float = 0.2,
    flip: Flag = False,
    label: Annotated[str | None, shown("COLUMN")] = None,
    seed: Annotated[int | None, shown("N")] = None,
    json: AsJson = False,
) -> None:
    """Learn a task from pictures; the first one makes the store, every other is added to it.

    Pictures are scaled to the store's size, whatever theirs is; broken ones are named and skipped. At the end it says
    how many of the test pictures are told right, what the task costs, and that the tasks before it give the same bits.
    Stop it when you like: the store is then as it was, and the same command goes on from the last epoch.

    By default about 2,000 steps in 20 to 100 epochs, in batches of 64 (of 16 below 1,000 pictures), Adam at 0.001
    falling as a cosine; pictures are moved by up to an eighth of their side.

    Args:
        store: The folder of what has been learnt, life.nacre.
        task: The new task's name.
        pictures: A folder with a sub-folder for every class, or train/ and test/ with such folders in them; a .csv of
            path and label; a .parquet file or a folder of them; or a data set of the Hugging Face hub, OWNER/NAME.
        network: Of a new store: conv5 (the default), vgg16_bn, resnet18, resnet50 or vit_tiny, from scratch; or
            hf:NAME or hf:FOLDER, an image model of Hugging Face transformers with the weights it comes with. Every
            task then stands on these, which are kept once.
        base: Of a new store of a pretrained network: its weights are kept in the "store" (the default), which needs
            nothing else then; or "external", not kept: the store knows where they came from and their hash, and
            every command opens them there.
        size: Of a new store: the side of its pictures in pixels. 32 by default, 64 if most of them are larger; of a
            pretrained network what its image processor says.
        epochs: How often all pictures are gone through; 20 to 100 by default, the fewer the more pictures there are.
        budget: The most that the task's factors may take, 200KB. Learns the task without it too, and says what it costs
            in accuracy.
        dtype: What this task's factors and head are stored in: bfloat16 takes half of the bytes of float32, which is
            the default, int8 a quarter. Later tasks build on what is stored, so that nothing drifts.
        test_share: The share of every class that is not trained on but tested on, where no test pictures are given.
        flip: Mirror pictures at random while learning: right for flowers, wrong for letters.
        label: The column of the class in a CSV or in parquet, if it is called in a way that nacre does not know.
        seed: Of a new store: draws its first weights, and which pictures are tested on; 0 by default.
        json: Print the result as JSON.
    """
    from nacre.images import Wanted
    from nacre.images import learn as learn_pictures

    try:
        wanted = Wanted(network, size, seed, epochs, _bytes(budget), test_share, flip, label, base, dtype)
    except NacreError as error:
        raise WrongUsage(str(error)) from error
    with interruptible(f"{store} is as it was, and the same command goes on"):
        learnt = learn_pictures(store, task, pictures, wanted)
    if not Processes.current().main:
        return
    if json:
        print_json(asdict(learnt))
    else:
        _print(store, learnt, wanted)


def _bytes(text: str | None) -> int | None:
    """A number of bytes as people write it.

    >>> _bytes("200KB"), _bytes("1.5 MB"), _bytes("4096")
    (200000, 1500000, 4096)
    """
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if found is None or found[2].upper() not in _UNITS:
        raise NacreError(f"--budget is a number of bytes, as 200KB or 1.5MB; got {text!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _print(store: Path, learnt: Learnt, wanted: Wanted) -> None:
    from nacre.tables import print_line

    share = f"{learnt.accuracy:.1f} % of " if learnt.accuracy is not None else "not tested, "
    lines = [
        f"{learnt.task}: {len(learnt.classes)} classes, learnt from {learnt.trained_on:,} pictures",
        f"  accuracy   {share}{learnt.tested_on:,} test pictures",
        f"  ranks      {_ranks(learnt.ranks)}",
        f"  added      {learnt.megabytes:.3f} MB, {learnt.factor_bytes:,} bytes of it factors",
        *([f"  budget     {_cost(learnt, wanted.budget)}"] if wanted.budget is not None else []),
        *([f"  base       {_base(learnt)}"] if learnt.base is not None else []),
        f"  before it  {_unchanged(learnt)}",
        f"  store      {store}",
    ]
    for line in lines:
        print_line(line)


def _ranks(ranks: Mapping[str, int]) -> str:
    named = ", ".join(f"{layer} {rank}" for layer, rank in ranks.items())
    if len(named) <= _WIDE:
        return named
    least, most = min(ranks.values()), max(ranks.values())
    return f"{least} to {most} in {len(ranks)} layers, {sum(ranks.values()):,} in all; nacre inspect has each"


def _base(learnt: Learnt) -> str:
    where = "kept once, in the store" if learnt.base == "store" else "not in the store, which knows its hash"
    return f"{learnt.network}, {learnt.base_megabytes:.3f} MB, {where}"


def _cost(learnt: Learnt, budget: int) -> str:
    if learnt.accuracy is None or learnt.accuracy_without_budget is None:
        return f"{budget:,} bytes; without test pictures nobody can say what it cost"
    less = learnt.accuracy_without_budget - learnt.accuracy
    gained = f" ({-less:.1f} points more)" if less < 0 else ""
    said = f"cost {less:.1f} points" if less > 0 else f"cost nothing{gained}"
    return f"{budget:,} bytes {said}: {learnt.accuracy_without_budget:.1f} % without one, on the same pictures"


def _unchanged(learnt: Learnt) -> str:
    if not learnt.unchanged:
        return "nothing: this is the first task"
    tasks = f"{len(learnt.unchanged)} tasks give" if len(learnt.unchanged) > 1 else f"{learnt.unchanged[0]} gives"
    return f"{tasks} the same bits as before, on {learnt.looked_at} of these pictures"
