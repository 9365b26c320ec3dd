"""The folder of a run: what is in it, that a run killed at any moment ends in the same, that it is never a mix.

Run as a script it learns: `test_run.py kills FOLDER MOMENTS...` is the parent of the runs that are killed, so that
torch is imported once and the tests' own process never forks; torchrun starts `test_run.py together FOLDER`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nacre import CACL, Learner, NacreError, Recipe, Single
from nacre.experiments.folder import locked
from nacre.experiments.metrics import acc, bwt, forgetting
from nacre.experiments.run import Plan, run
from nacre.lowrank.truncation import exact_svd
from nacre.scenarios import Scenario, ScenarioTask
from nacre.space import verify

DEADLINE_S = 240
EPOCHS, ENERGY = 3, 0.2


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Not Adam, whose first steps depend on the signs of gradients that are almost 0."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


sgd.__module__ = "test_run"  # in the script as well: the name is part of the plan


def task(name: str, axis: int) -> ScenarioTask:
    draw = torch.Generator().manual_seed(axis)
    train, test = (torch.randn(count, 6, generator=draw) for count in (44, 30))
    return ScenarioTask(name, labelled(train, axis), labelled(test, axis), ("low", "high"))


def labelled(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    return x, (x[:, axis] > 0).long()


def backbone() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU())


def tiny(method: Any = None, seeds: tuple[int, ...] = (0,)) -> Plan:
    tasks = (task("a", 0), task("b/../b", 1), task("c", 2))
    scenario = Scenario("tiny", tasks, backbone, facts={"network": "two layers", "rows": 44})
    recipe = Recipe(epochs=EPOCHS, batch_size=8, optimizer=sgd, precision="float32")
    return Plan(scenario, method or CACL(sparsity=0.2, energy=ENERGY), recipe, seeds)


def learn(folder: Path, *, resume: bool = True) -> dict[str, Any]:
    return run(tiny(), folder, resume=resume, progress=False)


# as a script


def kills(folder: Path, moments: list[int]) -> None:
    """For each moment a run that is killed at that of its file operations, then one that goes on to the end."""
    learn(folder / "warm")  # so that no child waits for torch to import what it needs
    for moment in moments:
        out = folder / f"killed-{moment}"
        status = forked(out, moment)
        print(moment, "killed" if os.WIFSIGNALED(status) else "ended", flush=True)
        status = forked(out, None)
        assert os.WIFEXITED(status), "the run that goes on was killed"
        assert os.WEXITSTATUS(status) == 0, f"after a kill at file operation {moment} the run cannot go on"


def forked(out: Path, moment: int | None) -> int:
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    try:
        if moment is not None:
            kill_at(moment, out)
        learn(out)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def kill_at(moment: int, out: Path) -> None:
    """SIGKILL just before a file operation below the folder: opening for writing, renaming, removing, making."""
    counted = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal counted
        writes = event in ("os.rename", "os.remove", "os.mkdir") or (
            event == "open" and arguments[1] not in (None, "r", "rb")
        )
        if writes and str(out) in str(arguments[0]):
            counted += 1
            if counted == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def together(folder: Path) -> None:
    """One of the processes that torchrun starts; both are given the same folder."""
    result = learn(folder / "two", resume=False)
    rank = os.environ["RANK"]
    folder.joinpath(f"told-{rank}.json").write_text(json.dumps(result))
    try:
        learn(folder / "two", resume=False)
    except NacreError as error:
        folder.joinpath(f"refused-{rank}.txt").write_text(str(error))
    again = learn(folder / "two")
    folder.joinpath(f"again-{rank}.json").write_text(json.dumps(again))


def script(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


# reading a folder


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "seed-0" / "epochs.jsonl").read_text().splitlines()]


def without_times(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != "seconds"}


def everything(out: Path) -> dict[str, Any]:
    """What a run has come to, times aside."""
    seed = out / "seed-0"
    return {
        "result": without_times(read(out / "result.json")),
        "of the seed": without_times(read(seed / "result.json")),
        "plan": read(out / "run.json"),
        "accuracies": read(seed / "accuracy.json"),
        "spectra": read(seed / "spectra.json"),
        "epochs": [without_times(line) for line in lines(out)],
        "store": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (seed / "life.nacre/tasks").iterdir()
        },
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    learn(out, resume=False)
    return out


# what is in it


def test_the_plan_is_kept_whole(whole: Path) -> None:
    plan = read(whole / "run.json")
    assert (plan["scenario"], plan["tasks"], plan["seeds"]) == ("tiny", ["a", "b/../b", "c"], [0])
    assert (plan["network"], plan["facts"]["rows"], plan["protocol"]) == ("two layers", 44, None)
    assert plan["method"]["name"] == "cacl"
    assert plan["method"]["settings"]["sparsity"] == 0.2
    assert (plan["recipe"]["epochs"], plan["recipe"]["batch_size"]) == (EPOCHS, 8)
    assert plan["recipe"]["optimizer"].endswith(".sgd")


def test_the_result_follows_from_the_accuracies_and_the_store(whole: Path) -> None:
    result, matrix = read(whole / "result.json"), read(whole / "seed-0" / "accuracy.json")
    life = Learner.load(whole / "seed-0" / "life.nacre")
    assert [len(row) for row in matrix] == [1, 2, 3]
    assert (result["acc"], result["bwt"], result["forgetting"]) == (acc(matrix), bwt(matrix), forgetting(matrix))
    assert result["bwt"] == 0.0
    assert result["accuracy_matrix"] == [[*row, *[None] * (3 - len(row))] for row in matrix]
    assert tuple(result["tasks"]) == life.tasks
    assert {each.name for each in tiny().scenario.ordered(0).tasks} == set(life.tasks)
    assert result["ranks"] == {name: life.knowledge.ranks(name) for name in life.tasks}
    assert result["megabytes"] == life.knowledge.size().megabytes
    files = (whole / "seed-0" / "life.nacre").rglob("*")
    assert result["bytes_on_disk"] == sum(path.stat().st_size for path in files if path.is_file())
    for name, measured in zip(life.tasks, matrix[-1], strict=True):
        assert life.evaluate(next(each.test for each in tiny().scenario.tasks if each.name == name), name) == measured


def test_every_epoch_is_a_line(whole: Path) -> None:
    found = lines(whole)
    tasks = read(whole / "result.json")["tasks"]
    assert [(line["task"], line["epoch"]) for line in found] == [(name, at) for name in tasks for at in (1, 2, 3)]
    assert {(line["phase"], line["epochs"], line["images"]) for line in found} == {("train", 3, 44)}
    assert all(set(line["measures"]) == {"orthogonality", "rank"} for line in found)
    assert read(whole / "result.json")["seconds"] == pytest.approx(sum(line["seconds"] for line in found))


def test_the_singular_values_before_the_cut_are_those_that_the_cut_kept_and_more(whole: Path) -> None:
    """The largest of them are the store's; what is beyond holds less than the energy that the cut gives up."""
    spectra, life = read(whole / "seed-0" / "spectra.json"), Learner.load(whole / "seed-0" / "life.nacre")
    assert list(spectra) == list(life.tasks)
    for name, layers in spectra.items():
        stored = life.knowledge.record(name).factors  # type: ignore[attr-defined]
        assert set(layers) == set(stored) == {"0", "2"}
        for layer, values in layers.items():
            kept = stored[layer].s.tolist()
            assert values == sorted(values, reverse=True)
            assert values[: len(kept)] == kept
            lost = sum(value**2 for value in values[len(kept) :])
            assert lost <= ENERGY * sum(value**2 for value in values) + 1e-6
    cut = [(life.knowledge.ranks(name)[layer], len(spectra[name][layer])) for name in spectra for layer in ("0", "2")]
    assert any(rank < before for rank, before in cut)


def test_the_singular_values_are_those_before_the_cut_halfway_where_there_is_one(tmp_path: Path) -> None:
    seen: dict[str, dict[str, list[float]]] = {}

    class Looking(CACL):
        """Notes what it is about to cut."""

        def train(self, network: Any, task: Any, penalty: Any, phase: str, epochs: range) -> None:
            super().train(network, task, penalty, phase, epochs)
            if phase == "train":
                seen[task.name] = {name: exact_svd(layer).s.tolist() for name, layer in network.factors().items()}

    run(tiny(Looking(sparsity=0.2, energy=0, budget=600)), tmp_path / "run", progress=False)
    seed = tmp_path / "run" / "seed-0"
    assert read(seed / "spectra.json") == seen
    ranks = read(seed / "result.json")["ranks"]
    assert all(sum(ranks[name].values()) < sum(map(len, layers.values())) for name, layers in seen.items())
    assert [(line["phase"], line["last"]) for line in lines(tmp_path / "run")][:3] == [
        *(("train", False), ("train", True), ("refine", True))
    ]


def test_where_the_cut_is_the_papers_own_the_values_are_those_that_it_sorts(tmp_path: Path) -> None:
    run(tiny(replace(CACL.text(), energy=ENERGY)), tmp_path / "run", progress=False)
    seed = tmp_path / "run" / "seed-0"
    spectra, life = read(seed / "spectra.json"), Learner.load(seed / "life.nacre")
    for name, layers in spectra.items():
        for layer, factors in life.knowledge.record(name).factors.items():  # type: ignore[attr-defined]
            assert layers[layer][: factors.rank] == factors.s.tolist()
            assert layers[layer] == sorted(layers[layer], reverse=True)


def test_a_method_without_factors_has_no_singular_values(tmp_path: Path) -> None:
    result = run(tiny(Single()), tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "seed-0" / "spectra.json").exists()
    assert result["ranks"] == {name: {} for name in result["tasks"]}


def test_several_seeds_are_means_deviations_and_the_runs(whole: Path, tmp_path: Path) -> None:
    result = run(tiny(seeds=(0, 3)), tmp_path / "run", progress=False)
    assert read(tmp_path / "run" / "result.json") == result
    assert [each["seed"] for each in result["runs"]] == [0, 3]
    assert result["acc"] == (result["runs"][0]["acc"] + result["runs"][1]["acc"]) / 2
    assert set(result["std"]) == {"acc", "bwt", "forgetting", "megabytes"}
    assert result["runs"][0]["ranks"] == read(whole / "result.json")["ranks"]  # a seed does not depend on others
    assert result["runs"][1]["ranks"] != result["runs"][0]["ranks"]


def test_the_environment_is_this_one(whole: Path) -> None:
    environment = read(whole / "environment.json")
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["versions"]["python"] == platform.python_version()
    assert environment["machine"]["cores"] == os.cpu_count()
    assert environment["machine"]["memory_gib"] > 0
    checkout = Path(__file__).parents[2]
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=False)
    if told.returncode == 0:
        assert environment["git"]["commit"] == told.stdout.strip()
    assert len(environment["sessions"]) == 1


def test_outside_a_checkout_there_is_no_git_state(tmp_path: Path) -> None:
    """Nor in one that does not track nacre, such as a project with a virtual environment in it."""
    package = tmp_path / "site" / "nacre"
    shutil.copytree(Path(__file__).parents[2] / "src" / "nacre", package)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    code = "import json; from nacre.experiments import environment as e; print(json.dumps(e.describe_session()['git']))"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(told.stdout) is None


# going on


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param((1, 2, 3, 6, 10, 15, 21, 28, 36, 45, 55, 66), id="some"),
        pytest.param(range(1, 80), id="every", marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_at_any_moment_ends_in_the_same(moments: Sequence[int], whole: Path, tmp_path: Path) -> None:
    """Moments are file operations, so that kills fall within and between all that is written, from the first on."""
    done = script(__file__, "kills", tmp_path, *moments)
    assert done.returncode == 0, done.stderr
    ends = dict(line.split() for line in done.stdout.splitlines())
    assert list(ends) == list(map(str, moments))
    assert list(ends.values()).count("killed") > len(moments) / 2
    expected = everything(whole)
    for moment in moments:
        out = tmp_path / f"killed-{moment}"
        assert everything(out) == expected, moment
        assert verify(out / "seed-0" / "life.nacre") == []
        assert not list((out / "seed-0" / "checkpoints").iterdir())


def test_a_session_that_goes_on_is_added_to_the_environment(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    (out / "result.json").unlink()
    first = read(out / "environment.json")
    assert without_times(learn(out)) == without_times(read(whole / "result.json"))
    both = read(out / "environment.json")
    assert both["sessions"][0] == first["sessions"][0]
    assert len(both["sessions"]) == 2
    assert {**both, "sessions": []} == {**first, "sessions": []}


def test_a_finished_run_is_only_read(whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.is_file() and path.name != ".lock"}
    assert learn(whole) == read(whole / "result.json")
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert read(whole / "environment.json")["sessions"][1:] == []


def test_another_run_in_the_same_folder_is_refused(whole: Path) -> None:
    with pytest.raises(NacreError, match="holds a run already: go on with it with --resume"):
        learn(whole, resume=False)


def test_settings_that_differ_are_named(whole: Path) -> None:
    other = tiny(CACL(sparsity=0.3, energy=ENERGY))
    facts = replace(other, scenario=replace(other.scenario, facts={"network": "two layers", "rows": 45}))
    with pytest.raises(NacreError, match=r"facts\.rows was 44, now 45; method\.settings\.sparsity was 0\.2, now 0\.3"):
        run(facts, whole, resume=True)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    note = tmp_path / "thesis.tex"
    note.write_text("years of work")
    for resume in (True, False):
        with pytest.raises(NacreError, match="holds something that is not a run of nacre's"):
            learn(tmp_path, resume=resume)
        with pytest.raises(NacreError, match="is no folder"):
            learn(note, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", ["run.json", "result.json", "seed-0/result.json", "seed-0/accuracy.json"])
def test_a_damaged_record_is_named(name: str, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    if name != "result.json":
        (out / "result.json").unlink()
    if name == "seed-0/accuracy.json":
        (out / "seed-0/result.json").unlink()
    (out / name).write_text('[["a"')
    with pytest.raises(NacreError, match=f"{name} is damaged"):
        learn(out)


def test_a_seed_that_another_process_learns_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nacre.experiments.folder._PATIENCE_S", 0.1)
    with locked(tmp_path / "seed-0"):
        tmp_path.joinpath("run.json").write_text(json.dumps(tiny().to_json()))
        with pytest.raises(NacreError, match="seed-0 is in use by another nacre process"):
            learn(tmp_path)


# several processes


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("together")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    done = script(*torchrun, __file__, "together", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_two_processes_come_to_what_one_does(whole: Path, two: Path) -> None:
    ours, alone = everything(two / "two"), everything(whole)
    assert ours["accuracies"] == alone["accuracies"]
    assert ours["result"]["ranks"] == alone["result"]["ranks"]
    assert ours["plan"] == alone["plan"]
    for line, expected in zip(ours["epochs"], alone["epochs"], strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        assert (line["task"], line["epoch"], line["images"]) == (
            expected["task"],
            expected["epoch"],
            expected["images"],
        )


def test_both_are_told_the_same_and_only_one_writes(two: Path) -> None:
    told = [read(two / f"told-{rank}.json") for rank in (0, 1)]
    assert told[0] == told[1] == read(two / "two" / "result.json")
    assert len(read(two / "two" / "environment.json")["sessions"]) == 1
    assert [read(two / f"again-{rank}.json") for rank in (0, 1)] == told


def test_what_is_wrong_with_the_folder_is_known_to_both(two: Path) -> None:
    said = [(two / f"refused-{rank}.txt").read_text() for rank in (0, 1)]
    assert said[0] == said[1]
    assert "holds a run already" in said[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "kills":
        kills(Path(sys.argv[2]), [int(moment) for moment in sys.argv[3:]])
    else:
        together(Path(sys.argv[2]))
