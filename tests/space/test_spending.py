"""Where the bytes of a store go: every byte of every file is counted once, and what is suggested is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nacre import Factors, SharedSpace
from nacre.lowrank import Dtype
from nacre.space import describe
from nacre.space.spending import suggestions

DTYPES: tuple[Dtype, ...] = ("float32", "int8")


def saved(
    tmp_path: Path, values: list[float], tasks: int = 1, classes: int = 2, dtype: Dtype = "float32"
) -> dict[str, Any]:
    """A store whose tasks have these singular values in one layer, and rank 0 in the other."""
    space = SharedSpace(nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 10)))
    draw = torch.Generator().manual_seed(0)
    for number in range(tasks):
        network = space.expand(nn.Linear(10, classes), rank=0)
        U, V = (torch.linalg.qr(torch.randn(size, len(values), generator=draw))[0] for size in (30, 20))
        network.load_factors({"0": Factors(U, torch.tensor(values), V)})
        space.append(f"task {number}", network, dtype=dtype, head_dtype=dtype)
    space.save(tmp_path / "life.nacre")
    return describe(tmp_path / "life.nacre")


def test_parts_and_names_make_up_the_file_and_layers_the_factors(tmp_path: Path) -> None:
    described = saved(tmp_path, [2.0, 1.0, 0.5])
    (task,) = described["tasks"]
    assert sum(task["parts"].values()) == task["bytes_on_disk"]
    assert task["parts"]["factors"] == 4 * 3 * (30 + 1 + 20)
    assert task["parts"]["head"] == 4 * (10 * 2 + 2)
    assert task["parts"]["private"] == 4 * (30 + 4 * 30 + 10)
    assert task["layers"] == {"0": 4 * 3 * (30 + 1 + 20), "2": 0}
    assert list(task["layers"]) == list(task["ranks"])


@pytest.mark.parametrize(("energy", "key"), [(1e-3, "0.001"), (1e-2, "0.01")])
def test_a_deeper_cut_is_counted_as_the_singular_values_say(energy: float, key: str, tmp_path: Path) -> None:
    values = [3.0, 0.2, 0.15, 0.05, 0.04]
    (task,) = saved(tmp_path, values)["tasks"]
    squares = np.square(np.array(values))
    kept = next(k for k in range(1, 6) if squares[:k].sum() >= (1 - energy) * squares.sum())
    assert task["cut"][key] == 4 * kept * (30 + 1 + 20)


def test_what_would_save_a_tenth_is_suggested_of_the_last_task_and_summed_of_the_others(tmp_path: Path) -> None:
    described = saved(tmp_path, [3.0, 0.02, 0.015, 0.01], tasks=3)
    less = described["tasks"][2]["parts"]["factors"] - described["tasks"][2]["cut"]["0.001"]
    last, others, _ = described["suggestions"]
    assert last.startswith(f"task 2: 0.1 % of its squared singular values take {less:,} of its ")
    assert "most of its factors are in 0" in last
    assert "--budget 1KB" in last  # 204 bytes are left
    assert others.startswith(f"task 0 and 1 more: a deeper cut would have saved {2 * less:,} bytes. What was learnt")


def test_nothing_is_suggested_where_nothing_would_help(tmp_path: Path) -> None:
    assert saved(tmp_path, [1.0, 1.0, 1.0], dtype="int8")["suggestions"] == []
    assert suggestions([]) == []


def test_what_int8_would_save_of_the_last_task_is_what_it_saves(tmp_path: Path) -> None:
    plain, small = (saved(tmp_path / dtype, [1.0, 1.0, 1.0], tasks=2, dtype=dtype) for dtype in DTYPES)
    (said,) = plain["suggestions"]
    less = round(1e6 * (plain["tasks"][1]["megabytes"] - small["tasks"][1]["megabytes"]))
    assert said.startswith(f"task 1: its factors and head as int8 would save {less:,} of its ")
    assert said.endswith("learn it again with --dtype int8, and see what that costs in accuracy")
    assert [task["int8"] for task in small["tasks"]] == [0, 0]


def test_a_head_that_is_most_of_a_task_is_named(tmp_path: Path) -> None:
    described = saved(tmp_path, [1.0], classes=400)
    assert [line for line in described["suggestions"] if "are its head" in line and "17,600" in line]
