"""Sizes worked by hand: every number that a task needs to predict, by what it is for, and the bytes on disk beside."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import nn

from nacre import SharedSpace
from nacre.space import Size, describe

# fc1 is a matrix 8 x 6, so a rank costs 8 + 6 + 1 numbers; fc2 one of 5 x 8: 14
BIAS_AND_NORM = 8 + 4 * 8
WORDS = 7 * 3
ADDED = {
    "one": Size(factors=2 * 15 + 1 * 14, heads=5 * 3 + 3, private=BIAS_AND_NORM, frozen=WORDS, identifiers=2),
    "two": Size(factors=3 * 15, heads=5 * 4, private=BIAS_AND_NORM, identifiers=2),
    "alone": Size(factors=15 + 14, heads=5 * 2 + 2, private=BIAS_AND_NORM + WORDS, identifiers=2),
    "dense": Size(heads=5 * 1 + 1, private=BIAS_AND_NORM + WORDS + 8 * 6 + 5 * 8),
}


def learnt(base: Literal["zero", "backbone"]) -> SharedSpace:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts: dict[str, nn.Module] = {"words": nn.Embedding(7, 3), "flat": nn.Flatten(), "fc1": nn.Linear(6, 8)}
        parts |= {"norm": nn.BatchNorm1d(8), "act": nn.ReLU(), "fc2": nn.Linear(8, 5, bias=False)}
        space = SharedSpace(nn.Sequential(OrderedDict(parts)), base=base)
        space.append("one", space.expand(nn.Linear(5, 3), rank={"fc1": 2, "fc2": 1}))
        space.append("two", space.expand(nn.Linear(5, 4, bias=False), rank={"fc1": 3, "fc2": 0}))
        space.append("alone", space.expand(nn.Linear(5, 2), rank=1, sharing=False))
        space.append("dense", space.expand(nn.Linear(5, 1), dense=True))
    return space


@pytest.mark.parametrize("base", ["zero", "backbone"])
def test_every_number_is_counted_once_and_the_disk_is_what_lies_there(
    base: Literal["zero", "backbone"], tmp_path: Path
) -> None:
    space = learnt(base)
    assert {task: space.size(task) for task in space.tasks} == ADDED
    numbers = 44 + 18 + 40 + 21 + 2 + 45 + 20 + 40 + 2 + 29 + 12 + 61 + 2 + 6 + 149 + (88 if base == "backbone" else 0)
    assert space.size().numbers == numbers
    assert space.size().base == numbers - sum(size.numbers for size in ADDED.values())
    assert space.size().megabytes == numbers * 4 / 1e6

    space.save(tmp_path / "life.nacre")
    files = {path.name: path.stat().st_size for path in (tmp_path / "life.nacre").rglob("*.*") if path.name != ".lock"}
    assert len(files) == 1 + 4 + (base == "backbone")
    for number, task in enumerate(space.tasks):
        assert space.size(task) == replace(ADDED[task], disk=files[f"{number:03d}-{task}.safetensors"])
    assert space.size().disk == sum(files.values())
    assert SharedSpace.load(tmp_path / "life.nacre").size() == space.size()

    described = describe(tmp_path / "life.nacre")
    assert described["megabytes"] == pytest.approx(space.size().megabytes, rel=1e-12)
    assert described["bytes_on_disk"] == space.size().disk
