"""What every method must do, whatever it learns: a new one is tested here as soon as it stands in METHODS.

Run as a script it loads what folders hold and says the bits of every network; torchrun starts it to learn together.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from nacre import Learner, NacreError, Recipe
from nacre.experiments.report.runs import read_runs
from nacre.experiments.run import Plan, run
from nacre.methods import METHODS, method_from_json
from nacre.methods.method import settings
from nacre.networks import NETWORKS
from nacre.scenarios import Scenario, ScenarioTask
from nacre.space import describe, verify
from nacre.training import Epoch

sys.path.insert(0, str(Path(__file__).parents[2]))  # as a script
from tests.methods.problems import layers, learner_of, normed, pictures, points, short

FORGETFUL = {"finetune", "joint", "ewc", "er", "agem", "ucb", "acl"}  # later tasks may change what earlier ones answer

# settings of a method whose own are too large for problems as small as these, or meant for lower learning rates
QUICK: dict[str, dict[str, Any]] = {
    "hat": {"rate": 5.0},
    "cpg": {"goal": 0.25},  # four epochs have a goal too
    "pae": {"goal": 0.25},
}

every_method = pytest.mark.parametrize("name", METHODS)
TASKS = ("a", "b/../b")


def method_of(name: str) -> Any:
    return METHODS[name](**QUICK.get(name, {}))


def bits(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def known(learner: Learner) -> dict[str, str]:
    return {task: bits(learner.network(task)) for task in learner.tasks}


def learnt(name: str, *, tasks: tuple[str, ...] = TASKS, pictured: bool = False, **options: Any) -> Learner:
    """A learner that has learnt two tasks with a method's own settings."""
    learner = learner_of(method_of(name), normed() if pictured else layers())
    for axis, task in enumerate(tasks):
        learner.learn(task, (pictures if pictured else points)(axis), recipe=short(), **options)
    return learner


@every_method
def test_a_method_is_a_frozen_dataclass_with_names_that_comes_back_from_json(name: str) -> None:
    kind = METHODS[name]
    assert (kind.name, bool(kind.title), bool(kind.__doc__)) == (name, True, True)
    method = kind()
    assert method_from_json(json.loads(json.dumps(settings(method)))) == method
    with pytest.raises(AttributeError):
        method.name = "other"


@every_method
@pytest.mark.parametrize("pictured", [False, True], ids=["layers", "norm layers"])
def test_a_tasks_network_is_plain_and_independent_and_answers_as_predict_does(name: str, pictured: bool) -> None:
    learner = learnt(name, pictured=pictured)
    x, _ = (pictures if pictured else points)(5)
    for task in TASKS:
        network = learner.network(task)
        assert not any(type(part).__module__.startswith("nacre") for part in network.modules())
        assert not any(part.training for part in network.modules())
        answers = learner.predict(x, task=task)
        assert answers.shape == (len(x), 2)
        assert torch.equal(network(x).detach(), answers)
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.data.zero_()
        assert torch.equal(learner.network(task)(x).detach(), answers)


@every_method
def test_what_was_learnt_is_better_than_guessing(name: str) -> None:
    learner = learner_of(method_of(name))
    result = learner.learn("a", points(0, 200), test=points(0, 200), recipe=short(12))
    assert result.accuracy is not None
    assert result.accuracy > 80
    second = learner.learn("b", points(1, 200), test=points(1, 200), recipe=short(12))
    assert second.accuracy is not None
    assert second.accuracy > 80


@every_method
@pytest.mark.parametrize("pictured", [False, True], ids=["layers", "norm layers"])
def test_old_tasks_answer_with_the_same_bits_unless_the_method_may_forget(name: str, pictured: bool) -> None:
    learner = learnt(name, tasks=("a",), pictured=pictured)
    x, _ = (pictures if pictured else points)(5)
    before, answers = known(learner), learner.predict(x, task="a")
    for axis, task in ((1, "b"), (2, "c")):
        learner.learn(task, (pictures if pictured else points)(axis), recipe=short())
    after = learner.predict(x, task="a")
    assert torch.equal(after, learner.network("a")(x).detach())  # nothing out of date is kept to answer with
    if name not in FORGETFUL:
        assert known(learner)["a"] == before["a"]
        assert torch.equal(after, answers)
    elif name != "joint":  # which may come back to where it was
        assert known(learner)["a"] != before["a"]


@every_method
@pytest.mark.parametrize("pictured", [False, True], ids=["layers", "norm layers"])
def test_learning_goes_on_after_loading_as_if_nothing_had_been_saved(name: str, pictured: bool, tmp_path: Path) -> None:
    learner = learnt(name, pictured=pictured)
    learner.save(tmp_path / "s")
    loaded = Learner.load(tmp_path / "s", device="cpu", progress=False)
    assert (loaded.method, loaded.tasks, known(loaded)) == (learner.method, learner.tasks, known(learner))
    sizes = [each.knowledge.size() for each in (learner, loaded)]
    assert sizes[0] == sizes[1]
    for each in (learner, loaded):
        each.learn("c", (pictures if pictured else points)(2), recipe=short())
        each.save(tmp_path / "s" if each is loaded else tmp_path / "other")
    assert known(loaded) == known(learner)
    assert known(Learner.load(tmp_path / "s", device="cpu")) == known(learner)


class Halt(Exception):
    """Stands for a Ctrl-C."""


@every_method
@pytest.mark.parametrize("last", [1, 3, 4])
def test_an_interrupted_task_goes_on_to_the_same_bits(name: str, last: int, tmp_path: Path) -> None:
    whole, halted = learner_of(method_of(name), normed()), learner_of(method_of(name), normed())
    for learner in (whole, halted):
        learner.learn("a", pictures(0), recipe=short(4))
    seen: list[Epoch] = []

    def halt(epoch: Epoch, _: nn.Module) -> None:
        seen.append(epoch)
        if len(seen) == last:
            raise Halt

    before = known(halted)
    with pytest.raises(Halt):
        halted.learn("b", pictures(1), recipe=short(4), checkpoint=tmp_path / "c", callbacks=[halt])
    assert (halted.tasks, known(halted)) == (("a",), before)
    halted.save(tmp_path / "s")
    resumed = Learner.load(tmp_path / "s", device="cpu", progress=False)
    result = resumed.learn("b", pictures(1), recipe=short(4), checkpoint=tmp_path / "c")
    expected = whole.learn("b", pictures(1), recipe=short(4))
    assert known(resumed) == known(whole)
    done = [[(epoch.phase, epoch.epoch, epoch.loss) for epoch in each.history] for each in (result, expected)]
    assert done[0] == done[1]
    for each in (resumed, whole):  # also what is kept to learn the next one
        each.learn("c", pictures(2), recipe=short(2))
    assert known(resumed) == known(whole)


@every_method
def test_the_same_examples_in_any_form_give_the_same_bits(name: str) -> None:
    found = []
    for form in (lambda x, y: (x, y), TensorDataset, lambda x, y: [*zip(x, y.tolist(), strict=True)]):
        learner = learner_of(method_of(name))
        for axis, task in enumerate(TASKS):
            learner.learn(task, form(*points(axis)), recipe=short(2))
        found.append(known(learner))
    assert found[0] == found[1] == found[2]


@every_method
def test_a_loader_is_learnt_from(name: str) -> None:
    learner = learner_of(method_of(name))
    for axis, task in enumerate(TASKS):
        learner.learn(task, DataLoader(TensorDataset(*points(axis)), batch_size=7, shuffle=True), recipe=short(2))
    assert learner.tasks == TASKS


@every_method
def test_its_size_is_counted_and_what_is_on_disk_is_not_less(name: str, tmp_path: Path) -> None:
    learner = learnt(name, pictured=True)
    learner.save(tmp_path / "s")
    size = learner.knowledge.size()
    dense = sum(tensor.numel() for tensor in learner.network("a").parameters())
    assert size.megabytes >= size.megabytes_without_masks > 0
    if size.factors == 0:  # at least one network's weights are there, whatever else is
        assert size.numbers >= dense
    assert size.disk is not None
    kept = size.megabytes * 1e6 + 4 * size.learning + size.image_bytes
    assert size.disk >= kept - 4 * size.identifiers
    assert size.disk < 1.2 * kept + 40_000  # the rest is names and shapes
    assert all(learner.knowledge.size(task).megabytes > 0 for task in TASKS)


@every_method
def test_a_task_that_fails_leaves_everything_as_it_was(name: str) -> None:
    learner = learnt(name)
    before, size = known(learner), learner.knowledge.size()
    x, y = points(2)
    x[3] = torch.nan
    with pytest.raises(NacreError, match="the loss of task 'c' became nan"):
        learner.learn("c", (x, y), recipe=short())
    assert (learner.tasks, known(learner), learner.knowledge.size()) == (TASKS, before, size)
    learner.learn("c", points(2), recipe=short())


@every_method
def test_validation_and_early_stopping_work_with_it(name: str) -> None:
    learner = learner_of(method_of(name))
    for axis, task in enumerate(TASKS):
        recipe = short(6, patience=1)
        result = learner.learn(task, points(axis), val=points(axis, 20), recipe=recipe)
        assert all(epoch.val is not None for epoch in result.history)


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("network", NETWORKS)
def test_it_learns_with_the_networks_of_the_scenarios(name: str, network: str) -> None:
    made = NETWORKS[network]
    learner = learner_of(method_of(name), made.build(3))
    for axis, task in enumerate(TASKS):
        x, y = pictures(axis, 8)
        head = made.head(made.features(3, 32), 2) if made.head is not None else None
        learner.learn(task, (F.interpolate(x, size=(32, 32)), y), head=head, recipe=short(2, batch_size=4))
        if axis == 0:
            before = bits(learner.network(task))
    for task in TASKS:
        answers = learner.predict(F.interpolate(x, size=(32, 32)), task=task)
        assert answers.isfinite().all()
        assert not torch.equal(answers[0], answers[1])  # something comes through
    assert name in FORGETFUL or bits(learner.network(TASKS[0])) == before


# in a run


def tiny(name: str) -> Plan:
    tasks = [ScenarioTask(task, points(axis), points(axis, 30), ("low", "high")) for axis, task in enumerate(TASKS)]
    recipe = Recipe(epochs=2, batch_size=8, precision="float32")
    return Plan(Scenario("tiny", tasks, layers, facts={"network": "two layers"}), method_of(name), recipe)


@every_method
def test_it_runs_is_resumed_and_reported(name: str, tmp_path: Path) -> None:
    result = run(tiny(name), tmp_path / "r", progress=False)
    assert len(result["accuracy_matrix"]) == 2
    assert result["megabytes"] > 0
    assert {"images_kept", "image_megabytes", "learning_megabytes", "megabytes_without_masks"} <= set(result)
    (tmp_path / "r" / "result.json").unlink()
    (tmp_path / "r" / "seed-0" / "result.json").unlink()
    again = run(tiny(name), tmp_path / "r", resume=True, progress=False)
    assert {**again, "seconds": 0} == {**result, "seconds": 0}
    (found,), _ = read_runs([tmp_path / "r"])
    assert found.problems == ()
    (seed,) = found.seeds
    assert seed.problems == ()
    assert seed.megabytes == pytest.approx(result["megabytes"])
    assert seed.bytes_on_disk == result["bytes_on_disk"]
    store = tmp_path / "r" / "seed-0" / "life.nacre"
    assert verify(store) == []
    described = describe(store)
    assert [task["task"] for task in described["tasks"]] == list(result["tasks"])
    assert described["megabytes"] == pytest.approx(result["megabytes"])


def test_another_process_loads_the_same_bits(tmp_path: Path) -> None:
    expected = {}
    for name in METHODS:
        learner = learnt(name, pictured=True)
        learner.save(tmp_path / name)
        expected[name] = {task: [bits(learner.network(task)), says(learner, task)] for task in TASKS}
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(done.stdout) == expected


def says(learner: Learner, task: str) -> str:
    x: Tensor = torch.linspace(-1, 1, 4 * 3 * 64).view(4, 3, 8, 8)
    return hashlib.sha256(learner.predict(x, task=task).numpy().tobytes()).hexdigest()


def together(out: Path) -> None:
    """One of the processes that torchrun starts: every method, with dropout, with batches that do not come out even."""
    found: dict[str, Any] = {}
    for name in METHODS:
        on_the_way: list[str] = []  # after every epoch: at the end of all the first process's tensors are everybody's
        learner = Learner(nn.Sequential(layers(), nn.Dropout(0.3)), method_of(name), device="cpu", progress=False)
        for axis, task in enumerate(TASKS):
            watch = [lambda _, network, on_the_way=on_the_way: on_the_way.append(bits(network))]
            learner.learn(task, points(axis, 45), recipe=short(2), callbacks=watch)
        found[name] = {"learnt": known(learner), "on the way": on_the_way}
    out.joinpath(f"found-{os.environ['RANK']}.json").write_text(json.dumps(found))


@pytest.mark.slow
def test_two_processes_learn_the_same_bits_by_every_method(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    subprocess.run(
        [*command, __file__, "together", str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        check=True,
        timeout=240,
    )
    first, second = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in (0, 1))
    assert list(first) == list(METHODS)
    assert first == second


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "together":
        together(Path(sys.argv[2]))
    else:
        learners = {path.name: Learner.load(path, device="cpu") for path in sorted(Path(sys.argv[1]).iterdir())}
        for_each = {
            name: {t: [bits(life.network(t)), says(life, t)] for t in life.tasks} for name, life in learners.items()
        }
        print(json.dumps(for_each))
