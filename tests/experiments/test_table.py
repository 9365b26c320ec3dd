"""Tables of many tasks and long names, on terminals of several widths and into a pipe. No number is ever cut."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from torch import nn

from nacre.experiments import table
from nacre.space import Examples, Memory, Weights, describe

TASKS = [f"beaver-dolphin-otter-seal-whale-{number}" for number in range(20)]
LAYERS = [f"encoder.layers.{number}.attention.output" for number in range(12)]


def result(count: int = 20) -> dict[str, Any]:
    """Every number in it is another one."""
    tasks = TASKS[:count]
    matrix = [[10 + row + column / 100 if column <= row else None for column in range(count)] for row in range(count)]
    ranks = {task: {layer: 1000 * at + place for place, layer in enumerate(LAYERS)} for at, task in enumerate(tasks, 1)}
    sizes = {"acc": 86.194, "bwt": -0.5, "forgetting": 0.25, "megabytes": 8.68049, "bytes_on_disk": 8_712_345}
    about = {"scenario": "cifar100", "method": {"name": "cacl", "settings": {}}, "seed": 0, "tasks": tasks}
    return {**about, **sizes, "accuracy_matrix": matrix, "ranks": ranks}


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, run: dict[str, Any]) -> str:
    monkeypatch.setattr(table, "_console", lambda: Console(width=width, highlight=False))
    table.print_run(run)
    return capsys.readouterr().out


def numbers(run: dict[str, Any]) -> set[str]:
    accuracies = {f"{value:.2f}" for row in run["accuracy_matrix"] for value in row if value is not None}
    return accuracies | {str(rank) for added in run["ranks"].values() for rank in added.values()}


@pytest.mark.parametrize("width", [60, 80, 132, 400])
def test_a_terminal_gets_pieces_that_fit_and_no_number_is_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = result()
    output = shown(monkeypatch, capsys, width, run)
    tables = output[: output.rindex("cacl on cifar100")]
    assert max(map(cell_len, tables.splitlines())) <= width
    assert numbers(run) <= set(re.findall(r"[\d.]+", output))


def test_a_pipe_gets_whole_lines_whatever_the_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    run = result()
    table.print_run(run)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["after", "task", *TASKS]
    last = next(line for line in lines[3:] if line.startswith(TASKS[-1]))
    assert last.split()[1:] == [f"{value:.2f}" for value in run["accuracy_matrix"][-1]]
    assert len([line for line in lines if line.startswith(TASKS[0])]) == 2  # accuracies and ranks, not folded


def test_the_summary_has_means_and_deviations_as_the_paper_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    run = result(2)
    table.print_run(run)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "cacl on cifar100: ACC 86.19 %  BWT -0.50  forgetting 0.25  8.680 MB  (8,712,345 bytes on disk)"
    )
    std = {"acc": 0.3751, "bwt": 0.1, "forgetting": 0.0, "megabytes": 0.01234}
    several = {key: run[key] for key in ("scenario", "method", "acc", "bwt", "forgetting", "megabytes")}
    table.print_run({**several, "std": std, "runs": [run, {**run, "seed": 1}]})
    output = capsys.readouterr().out
    assert "(seed 0)" in output
    assert "(seed 1)" in output
    assert output.splitlines()[-1] == (
        "cacl on cifar100: ACC 86.19(0.38) %  BWT -0.50(0.10)  forgetting 0.25(0.00)  8.680(0.012) MB"
    )


def test_a_method_without_ranks_has_no_table_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    table.print_run({**result(2), "ranks": {task: {} for task in TASKS[:2]}})
    assert "Rank" not in capsys.readouterr().out


def test_names_that_would_move_the_cursor_are_shown_harmlessly(capsys: pytest.CaptureFixture[str]) -> None:
    run = result(1)
    run["tasks"], run["ranks"] = ["a\x1b[2Jb\n[bold]c"], {}
    table.print_run(run)
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "a\\x1b[2Jb\\n[bold]c" in output


def test_a_grid_is_a_row_for_every_method_and_sparsity(capsys: pytest.CaptureFixture[str]) -> None:
    std = {"acc": 0.377, "bwt": 0.0, "megabytes": 0.01}
    cells = [
        {"cell": "cacl-0.1", "seeds": [0, 1], "acc": 86.194, "bwt": 0.0, "megabytes": 8.68, "std": std},
        {"cell": "single", "seeds": [1], "acc": 89.2, "bwt": 0.0, "megabytes": 31.671},
    ]
    table.print_grid({"scenario": "cifar100", "protocol": "paper", "seeds": [0, 1], "cells": cells})
    title, head, _, first, second = capsys.readouterr().out.splitlines()
    assert title == "cifar100, protocol paper"
    assert head.split() == ["method", "seeds", "ACC", "%", "BWT", "MB"]
    assert first.split() == ["cacl-0.1", "2", "of", "2", "86.19(0.38)", "0.00(0.00)", "8.680(0.010)"]
    assert second.split() == ["single", "1", "of", "2", "89.20", "0.00", "31.671"]


def test_a_store_of_weights_says_what_is_kept_to_learn_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = Weights(nn.Sequential(nn.Linear(4, 3)))
    network = weights.expand(nn.Linear(3, 2))
    network(torch.zeros(2, 4))
    memory = Memory({"a": Examples(torch.zeros(7, 4), torch.zeros(7))})
    weights.append("a", network, state={"fisher": torch.zeros(250)}, memory=memory)
    weights.save(tmp_path)
    table.print_space(describe(tmp_path))
    *_, sizes, beside = capsys.readouterr().out.splitlines()
    assert sizes.startswith(f"1 tasks, {4 * (12 + 3 + 8) / 1e6:.3f} MB at 4 bytes a number")
    assert beside == "kept to learn later tasks: 7 examples, 0.000 MB; numbers, 0.001 MB"


def test_a_row_of_a_grid_says_what_is_kept_beside(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"seeds": [0], "acc": 80.0, "bwt": -1.0, "megabytes": 1.5, "sparsity": None}
    cells = [
        {**row, "cell": "er", "image_megabytes": 1.25, "learning_megabytes": 0.5},
        {**row, "cell": "single"},
    ]
    table.print_grid({"scenario": "digits", "protocol": "quick", "seeds": [0], "cells": cells})
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("er")).endswith("1.750")
    assert next(line for line in lines if line.startswith("single")).split()[-1] == "1.500"
    table.print_grid({"scenario": "digits", "protocol": "quick", "seeds": [0], "cells": cells[1:]})
    assert "kept beside" not in capsys.readouterr().out
