"""The table of what is kept beside: real runs of rivals, numbers worked out by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from nacre import Recipe
from nacre.experiments.report import write_report
from nacre.experiments.run import Plan, run
from nacre.methods import ER, EWC, Joint, PackNet
from nacre.scenarios import Scenario, ScenarioTask
from tests.methods.problems import layers, points


def ran(method: Any, out: Path) -> Path:
    tasks = [ScenarioTask(name, points(axis), points(axis, 20), ("low", "high")) for axis, name in enumerate("ab")]
    recipe = Recipe(epochs=2, batch_size=8, precision="float32")
    run(Plan(Scenario("tiny", tasks, layers), method, recipe, (0, 1)), out, progress=False)
    return out


def test_masks_examples_and_what_is_kept_to_learn_have_columns_of_their_own(tmp_path: Path) -> None:
    methods = (PackNet(), ER(memory=10), EWC(), Joint())
    folders = [ran(method, tmp_path / method.name) for method in methods]
    page = write_report(folders, tmp_path / "report.html")
    (table,) = tmp_path.rglob("*-kept.csv")
    with table.open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"PackNet", "ER", "EWC", "joint"}
    bare = 4 * (288 + 2 * (28 + 26)) / 1e6  # weights 6 x 16 and 16 x 12, biases and heads of two tasks
    for row in rows.values():
        assert float(row["without masks (MB)"].split("(")[0]) == pytest.approx(bare)
    assert float(rows["PackNet"]["size (MB)"].split("(")[0]) == pytest.approx(bare + 2 * 288 / 8 / 1e6)
    assert float(rows["ER"]["examples kept"].split("(")[0]) == 10
    assert float(rows["ER"]["examples (MB)"].split("(")[0]) == pytest.approx(10 * (6 * 4 + 8) / 1e6)
    assert float(rows["EWC"]["kept to learn (MB)"].split("(")[0]) == pytest.approx(4 * 2 * 288 / 1e6)
    # two tasks of 48 examples, two epochs; joint goes over the first one again
    seen = {name: float(row["images trained on"].split("(")[0]) for name, row in rows.items()}
    assert seen == {"PackNet": 192, "ER": 192, "EWC": 192, "joint": 288}
    text = page.read_text()
    assert "PackNet" in text
    assert "examples kept" in text
