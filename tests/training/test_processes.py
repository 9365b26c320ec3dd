"""Two processes learn as one does. One torchrun learns everything below; the tests read what it wrote."""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from nacre import CACL, Learner, NacreError, Recipe
from nacre.training import Epoch
from nacre.training.processes import Processes

DEADLINE_S = 300
TESTS = torch.randn(10, 6, generator=torch.Generator().manual_seed(9))


class Rows(Dataset[Any]):
    def __init__(self, data: tuple[Tensor, Tensor]) -> None:
        self.x, self.y = data

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


def problem(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


def sgd(parameters: list[nn.Parameter]) -> Optimizer:
    """Not Adam, whose first steps depend on the signs of gradients that are almost 0."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


RECIPE = Recipe(epochs=4, batch_size=8, optimizer=sgd, precision="float32")


def learner(seed: int = 0) -> Learner:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU())
    return Learner(net, CACL(sparsity=0.2, orthogonality=1.0, energy=1e-6), device="cpu", progress=False)


def with_tensors(life: Learner, folder: Path) -> None:
    """37 examples: the last batch has five, so two and three a process. The second task stands on the first."""
    life.learn("first", problem(37), recipe=RECIPE)
    life.learn("second", problem(37, 1), recipe=RECIPE)


def with_dataset(life: Learner, folder: Path) -> None:
    life.learn("first", Rows(problem(37)), recipe=RECIPE)


def with_loader(life: Learner, folder: Path) -> None:
    """33 examples: the last batch is one example, which only one of the processes gets."""
    loader = DataLoader(Rows(problem(33)), batch_size=8, shuffle=True, generator=torch.Generator())
    life.learn("first", loader, recipe=RECIPE)


def with_validation(life: Learner, folder: Path) -> None:
    scores = iter([1.0, 4.0, 3.0, 2.0, 9.0, 9.0])  # what the other process would say does not count
    recipe = Recipe(epochs=6, batch_size=8, optimizer=sgd, patience=2, precision="float32")
    sign = 1 if life._processes.main else -1
    life.learn("first", problem(37), val=problem(8, 1), metric=lambda *_: sign * next(scores), recipe=recipe)


def with_checkpoint(life: Learner, folder: Path) -> None:
    """Interrupted after two of four epochs, then learnt again from the checkpoint."""

    def interrupt(epoch: Epoch, _: nn.Module) -> None:
        if epoch.epoch == 3:
            raise KeyboardInterrupt

    given: dict[str, Any] = {"train": problem(37), "recipe": RECIPE, "checkpoint": folder / "checkpoints"}
    with pytest.raises(KeyboardInterrupt):
        life.learn("first", callbacks=[interrupt], **given)
    epochs: list[int] = []
    life.learn("first", callbacks=[lambda epoch, _: epochs.append(epoch.epoch)], **given)
    assert epochs == [3, 4]


def with_one_batch_of_one(life: Learner, folder: Path) -> None:
    x, y = problem(1)
    life.learn("first", (x, y), recipe=RECIPE, classes=("no", "yes"))


WAYS: dict[str, Callable[[Learner, Path], None]] = {
    "tensors": with_tensors,
    "dataset": with_dataset,
    "loader": with_loader,
    "validation": with_validation,
    "checkpoint": with_checkpoint,
    "one": with_one_batch_of_one,
}


def outcome(life: Learner, histories: list[Epoch]) -> dict[str, Tensor]:
    """Everything learnt, as tensors: weights (ranks and signs of factors aside), logits, losses."""
    found: dict[str, Tensor] = {}
    for task in life.tasks:
        found |= {f"{task}/{name}": tensor for name, tensor in life.network(task).state_dict().items()}
        found[f"{task}/logits"] = life.predict(TESTS, task=task)
        found[f"{task}/ranks"] = torch.tensor(list(life.knowledge.ranks(task).values()))
    found["loss"] = torch.tensor([epoch.loss for epoch in histories], dtype=torch.float64)
    found["accuracy"] = torch.tensor([epoch.accuracy or 0.0 for epoch in histories], dtype=torch.float64)
    found["images"] = torch.tensor([epoch.images for epoch in histories])
    return found


def learn(way: str, folder: Path, seed: int = 0) -> tuple[Learner, dict[str, Tensor]]:
    life = learner(seed)
    histories: list[Epoch] = []
    plain = life.learn

    def keep(*args: Any, **more: Any) -> Any:
        result = plain(*args, **more)
        histories.extend(result.history)
        return result

    life.learn = keep  # type: ignore[method-assign]
    WAYS[way](life, folder)
    return life, outcome(life, histories)


def threads() -> list[str]:
    """The names of all threads of this process, Python's or not; on Linux."""
    return [path.joinpath("comm").read_text().strip() for path in Path("/proc/self/task").glob("*")]


def worker(folder: Path) -> None:
    """One of the processes that torchrun starts. Its own weights are drawn from its own seed."""
    rank = int(os.environ["RANK"])
    written: list[str] = []

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike) and args[2] & (os.O_WRONLY | os.O_RDWR):
            written.append(os.fsdecode(args[0]))

    sys.addaudithook(watch)
    atexit.register(lambda: folder.joinpath(f"threads-{rank}.txt").write_text("\n".join(threads())))  # runs last
    for way in WAYS:
        life, found = learn(way, folder / way, seed=rank)
        life.save(folder / way / "life")
        safetensors.torch.save_file(found, folder / f"{way}-{rank}.safetensors")
    ours = [path for path in written if str(folder) in path and not path.endswith(f"-{rank}.safetensors")]
    report = {"rank": life._processes.rank, "count": life._processes.count, "written": ours}
    folder.joinpath(f"report-{rank}.json").write_text(json.dumps(report))


@dataclass
class Together:
    folder: Path
    status: int
    log: str

    def found(self, way: str, rank: int = 0) -> dict[str, Tensor]:
        return safetensors.torch.load_file(self.folder / f"{way}-{rank}.safetensors")

    def report(self, rank: int) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.folder.joinpath(f"report-{rank}.json").read_text())
        return read


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Together:
    """The pipes are read to their end, so a process that did not end would be noticed at the deadline."""
    folder = tmp_path_factory.mktemp("together")
    for way in WAYS:
        (folder / way).mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    ended = subprocess.run(
        [*command, __file__, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return Together(folder, ended.returncode, ended.stderr)


def test_both_processes_end_well(together: Together) -> None:
    assert together.status == 0, together.log
    assert [(together.report(rank)["rank"], together.report(rank)["count"]) for rank in (0, 1)] == [(0, 2), (1, 2)]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have names to be read on Linux only")
def test_no_thread_of_the_group_is_left_when_a_process_ends(together: Together) -> None:
    for rank in (0, 1):
        left = together.folder.joinpath(f"threads-{rank}.txt").read_text().split("\n")
        assert not [name for name in left if "gloo" in name], left


@pytest.mark.parametrize("way", WAYS)
def test_both_processes_have_learnt_the_same_bits(way: str, together: Together) -> None:
    one, two = together.found(way, 0), together.found(way, 1)
    assert list(one) == list(two)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("way", WAYS)
def test_they_learn_what_one_process_learns(way: str, together: Together, tmp_path: Path) -> None:
    _, alone = learn(way, tmp_path)
    found = together.found(way)
    assert set(found) == set(alone)
    for name, expected in alone.items():
        assert torch.allclose(found[name], expected, rtol=1e-4, atol=2e-5), name
    assert float((alone["first/logits"] - alone["first/logits"].mean()).abs().max()) > 0.01


def test_the_penalties_are_part_of_it(together: Together, tmp_path: Path) -> None:
    """Without them the result is another one, so the comparison above would see them missing."""
    life = learner()
    life.method = CACL(sparsity=0.0, orthogonality=0.0, energy=1e-6)
    life.learn("first", problem(37), recipe=RECIPE)
    assert not torch.allclose(together.found("tensors")["first/logits"], life.predict(TESTS, task="first"), atol=1e-3)


def test_validation_of_the_first_process_decides(together: Together) -> None:
    assert len(together.found("validation")["loss"]) == 4  # two epochs without improvement after the second


def test_only_the_first_process_writes(together: Together) -> None:
    assert together.report(1)["written"] == []
    stores = {Path(path).parent.parent.parent.name for path in together.report(0)["written"] if "000-first" in path}
    assert stores == set(WAYS)


def test_the_store_is_that_of_the_first_process(together: Together) -> None:
    for way in WAYS:
        life = Learner.load(together.folder / way / "life", device="cpu")
        assert torch.equal(life.predict(TESTS, task="first"), together.found(way)["first/logits"])


def test_checkpoints_are_removed_once_saved(together: Together) -> None:
    assert (together.folder / "checkpoint" / "checkpoints").is_dir()
    assert not list((together.folder / "checkpoint" / "checkpoints").iterdir())


# one process


def test_one_process_is_the_case_of_one() -> None:
    alone = Processes.current("cpu")
    assert (alone.count, alone.rank, alone.main, alone.device) == (1, 0, True, torch.device("cpu"))
    assert alone.agree({"any": "thing"}) == {"any": "thing"}
    assert float(alone.add(torch.ones(()))) == 1
    alone.wait()


def test_gradients_are_left_alone_by_one_process() -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    Processes(torch.device("cpu")).average_gradients([parameter, nn.Parameter(torch.ones(1))])
    assert parameter.grad.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("device", ["banana", "meta", "cpu:x", "xpu:99"])
def test_a_device_that_cannot_be_used_is_named(device: str) -> None:
    with pytest.raises(NacreError, match=f"device '{re.escape(device)}'"):
        Processes.current(device)


def test_auto_is_the_accelerator_or_the_cpu() -> None:
    expected = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    assert Processes.current("auto").device.type == expected.type


if __name__ == "__main__":
    worker(Path(sys.argv[1]))
