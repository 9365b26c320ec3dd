"""A run's curves in a real TensorBoard file, read back by TensorBoard's own reader in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from nacre import CACL, NacreError, Recipe
from nacre.experiments.run import Plan, run
from nacre.scenarios import Scenario, ScenarioTask

EPOCHS = 2
READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1])
found.Reload()
curves = {tag: [[event.step, event.value] for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
print(json.dumps(curves))
"""


def tiny() -> Plan:
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    tasks = tuple(
        ScenarioTask(name, (x, (x[:, axis] > 0).long()), (x, (x[:, axis] > 0).long()), ("low", "high"))
        for axis, name in enumerate(("a", "b"))
    )
    scenario = Scenario("tiny", tasks, lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU()))
    return Plan(scenario, CACL(), Recipe(epochs=EPOCHS, batch_size=20, precision="float32"))


def curves_of(out: Path) -> dict[str, list[list[float]]]:
    folder = str(out / "seed-0" / "tensorboard")
    told = subprocess.run([sys.executable, "-c", READER, folder], capture_output=True, text=True, check=True)
    curves: dict[str, list[list[float]]] = json.loads(told.stdout)
    return curves


def test_tensorboard_has_every_epoch_and_every_task(tmp_path: Path) -> None:
    result = run(tiny(), tmp_path / "run", progress=False, track="tensorboard")
    curves = curves_of(tmp_path / "run")
    epochs = [json.loads(line) for line in (tmp_path / "run/seed-0/epochs.jsonl").read_text().splitlines()]
    for tag, expected in {
        "loss": [epoch["loss"] for epoch in epochs],
        "accuracy in training": [epoch["accuracy"] for epoch in epochs],
        "rank": [epoch["measures"]["rank"] for epoch in epochs],
        "orthogonality": [epoch["measures"]["orthogonality"] for epoch in epochs],
    }.items():
        assert [step for step, _ in curves[tag]] == [1, 2, 3, 4]
        assert [value for _, value in curves[tag]] == pytest.approx(expected, rel=1e-6)
    first, second = result["tasks"]
    matrix = result["accuracy_matrix"]
    assert curves[f"accuracy/{first}"] == [[2, pytest.approx(matrix[0][0])], [4, pytest.approx(matrix[1][0])]]
    assert curves[f"accuracy/{second}"] == [[4, pytest.approx(matrix[1][1])]]
    assert curves["ACC"][-1] == [4, pytest.approx(result["acc"])]
    assert curves["MB"][-1] == [4, pytest.approx(result["megabytes"])]


def test_a_run_killed_before_it_measured_a_task_goes_on_at_the_same_step(tmp_path: Path) -> None:
    """The store has both tasks, the accuracies only those after the first: no epoch is left to be learnt."""
    out = tmp_path / "run"
    result = run(tiny(), out, progress=False)
    (out / "result.json").unlink()
    (out / "seed-0" / "result.json").unlink()
    (out / "seed-0" / "accuracy.json").write_text(json.dumps([result["accuracy_matrix"][0][:1]]))
    run(tiny(), out, resume=True, progress=False, track="tensorboard")
    assert curves_of(out)["ACC"] == [[2 * EPOCHS, pytest.approx(result["acc"])]]


def test_a_run_without_a_tracker_has_no_curves(tmp_path: Path) -> None:
    run(tiny(), tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "seed-0" / "tensorboard").exists()


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named_before_anything_is_learnt(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)  # as if nothing were installed
    with pytest.raises(NacreError, match=f"--track {name} needs a package .* pip install {name}"):
        run(tiny(), tmp_path / "run", track=name)
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_named(tmp_path: Path) -> None:
    with pytest.raises(NacreError, match="no tracker is called 'paper'; the trackers are tensorboard, wandb, mlflow"):
        run(tiny(), tmp_path / "run", track="paper")
