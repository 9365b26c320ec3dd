"""The front door as the design words it: learn, ask, save, load, and the same bits for ever."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nacre
from nacre import CACL, CACLST, CACLFixed, Learner, Recipe, Single

QUICK = Recipe(epochs=2, batch_size=16, precision="float32")
CLASSES = {"animals": 2, "birds": 5, "cars": 3, "dogs": 2, "eels": 4, "figs": 3}


def backbone() -> nn.Module:
    """Made of torch's own layers, so that it is saved with what was learnt."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 9))


def problem(task: str, count: int = 40) -> tuple[Tensor, Tensor]:
    """Points around one centre for each class; where they lie depends on the task's name."""
    draw = torch.Generator().manual_seed(len(task) + 7 * ord(task[0]))
    y = torch.arange(count) % CLASSES[task]
    centres = 2 * torch.randn(CLASSES[task], 6, generator=draw, dtype=torch.float32)
    noise = torch.randn(count, 6, generator=draw, dtype=torch.float32)
    return centres[y] + 0.3 * noise + ord(task[0]) % 5, y


def asked(learner: Learner) -> dict[str, Tensor]:
    """What every task answers to its own examples."""
    return {task: learner.predict(problem(task)[0], task=task) for task in learner.tasks}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[task], other[task]) for task in one)


class Life:
    """A learner that learnt all the tasks, with its answers after each, and the folder it was saved to."""

    def __init__(self, folder: Path) -> None:
        self.learner = Learner(backbone(), seed=3, device="cpu", progress=False)
        self.results = {}
        self.answers: list[dict[str, Tensor]] = []
        for task in CLASSES:
            self.results[task] = self.learner.learn(task, problem(task), test=problem(task), recipe=QUICK)
            self.answers.append(asked(self.learner))
        self.folder = folder / "life.nacre"
        self.learner.save(self.folder)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return Life(tmp_path_factory.mktemp("life"))


# the public surface, word for word


def test_the_whole_job_as_the_design_words_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = torch.Generator().manual_seed(0)
    x, xt = torch.randn(8, 3, 24, 24, generator=draw), torch.randn(6, 3, 24, 24, generator=draw)
    y, yt = torch.arange(8) % 2, torch.arange(6) % 2

    learner = nacre.Learner(
        nacre.networks.conv5(), nacre.CACL(sparsity=0.1, orthogonality=1.0, energy=1e-5), seed=0, device="auto"
    )
    result = learner.learn("animals", train=(x, y), test=(xt, yt), recipe=nacre.Recipe(epochs=1))
    assert list(result.ranks) == ["conv1", "conv2", "conv3", "conv4", "conv5"]
    assert all(0 <= result.ranks[name] <= full for name, full in learner.knowledge.full_ranks.items())  # type: ignore[attr-defined]
    assert learner.tasks == ("animals",)
    logits = learner.predict(x, task="animals")
    assert (logits.dtype, logits.shape) == (torch.float32, (8, 2))
    answers = learner.predict(xt, task="animals").argmax(1).cpu()
    assert result.accuracy == pytest.approx(100 * np.mean(answers.numpy() == yt.numpy()))
    assert result.accuracy == learner.evaluate((xt, yt), task="animals")
    network = learner.network("animals")
    assert isinstance(network, nn.Module)
    assert not network.training
    learner.save("life.nacre")
    learner = nacre.Learner.load("life.nacre")
    assert torch.equal(learner.predict(x, task="animals"), logits)


def test_a_result_says_what_learning_came_to(lived: Life) -> None:
    for task, result in lived.results.items():
        x, y = problem(task)
        right = lived.learner.predict(x, task=task).argmax(1) == y
        assert result.task == task
        assert result.accuracy == pytest.approx(100 * float(right.double().mean()))
        assert result.ranks == lived.learner.knowledge.ranks(task)
        assert [(epoch.task, epoch.epoch, epoch.epochs) for epoch in result.history] == [(task, 1, 2), (task, 2, 2)]
        numbers = result.ranks["0"] * (12 + 6 + 1) + result.ranks["4"] * (9 + 12 + 1)
        numbers += 10 * CLASSES[task] + 2 + (12 + 9) + 4 * 12  # head, ranks, biases, norm
        assert result.megabytes == pytest.approx(4e-6 * numbers)
        assert result.seconds > 0


def test_without_test_data_there_is_no_accuracy() -> None:
    learner = Learner(backbone(), device="cpu", progress=False)
    assert learner.learn("animals", problem("animals"), recipe=QUICK).accuracy is None


# the same bits for ever


def test_later_tasks_change_no_answer_of_earlier_ones(lived: Life) -> None:
    last = lived.answers[-1]
    assert list(last) == list(CLASSES) == list(lived.learner.tasks)
    for learnt, answers in enumerate(lived.answers, start=1):
        assert same(answers, dict(list(last.items())[:learnt]))


def test_a_loaded_learner_answers_in_the_same_bits(lived: Life) -> None:
    assert same(asked(Learner.load(lived.folder, device="cpu")), lived.answers[-1])


def other_process(folder: Path, out: Path) -> None:
    """Runs in a process of its own: loads the life and asks every task; lives it again from the start, too."""
    torch.set_num_threads(1)
    torch.manual_seed(999)  # whatever this process has drawn before
    for name, learner in (("loaded", Learner.load(folder, device="cpu")), ("lived", Life(out).learner)):
        for task, answer in asked(learner).items():
            np.save(out / f"{name} {task}.npy", answer.numpy())


def test_another_process_answers_and_learns_in_the_same_bits(lived: Life, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, str(Path(sys.argv[1]).parent));"
        "import test_learner; test_learner.other_process(*map(Path, sys.argv[2:]))"
    )
    arguments = [sys.executable, "-c", program, __file__, str(lived.folder), str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for task, answer in lived.answers[-1].items():
        for name in ("loaded", "lived"):
            assert np.array_equal(np.load(tmp_path / f"{name} {task}.npy"), answer.numpy()), (name, task)


@pytest.mark.parametrize("method", [CACL(), CACL.published(), CACLST(), CACLFixed(), Single()], ids=repr)
def test_learning_goes_on_after_loading_as_if_nothing_had_happened(method: Any, tmp_path: Path) -> None:
    learner = Learner(backbone(), method, seed=5, device="cpu", progress=False)
    again = Learner(backbone(), method, seed=5, device="cpu", progress=False)
    for task in ("animals", "birds"):
        learner.learn(task, problem(task), recipe=QUICK)
        again.learn(task, problem(task), recipe=QUICK)
        again.save(tmp_path / "life.nacre")
        again = Learner.load(tmp_path / "life.nacre", device="cpu", progress=False)
    assert (again.method, again.seed) == (method, 5)
    assert same(asked(again), asked(learner))


def test_a_seed_decides_what_is_learnt_and_nothing_else_does() -> None:
    answers = []
    for seed, drawn in ((3, 0), (3, 1), (4, 0)):
        torch.manual_seed(drawn)
        random.seed(drawn)
        learner = Learner(backbone(), seed=seed, device="cpu", progress=False)
        learner.learn("birds", problem("birds"), recipe=QUICK)
        answers.append(asked(learner))
    assert same(answers[0], answers[1])
    assert not same(answers[0], answers[2])


@contextlib.contextmanager
def default_type(kind: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "another default type": lambda: default_type(torch.float64),
}


@pytest.mark.parametrize("surrounding", SURROUNDINGS)
def test_what_surrounds_a_question_changes_no_bit_then_or_later(lived: Life, surrounding: str) -> None:
    """Sums are worked out and files are read when they are first needed: here inside of what surrounds."""
    with SURROUNDINGS[surrounding]():
        learner = Learner.load(lived.folder, device="cpu", progress=False)
        networks = {task: learner.network(task) for task in CLASSES}
        assert same(asked(learner), lived.answers[-1])
    with torch.no_grad():
        assert same({task: networks[task](problem(task)[0]) for task in CLASSES}, lived.answers[-1])
    untouched = Learner.load(lived.folder, device="cpu", progress=False)
    for goes_on in (learner, untouched):
        goes_on.learn("later", problem("birds"), recipe=QUICK)
    x = problem("birds")[0]
    assert torch.equal(learner.predict(x, task="later"), untouched.predict(x, task="later"))


def test_answers_have_no_gradients_and_no_memory_layout(lived: Life) -> None:
    x, expected = problem("birds")[0], lived.answers[-1]["birds"]
    assert torch.equal(lived.learner.predict(x.T.contiguous().T, task="birds"), expected)
    assert not lived.learner.predict(x.clone().requires_grad_(), task="birds").requires_grad


def test_images_have_the_same_answers_in_any_memory_layout() -> None:
    """Convolutions of images laid channels last are other sums."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        ]
        learner = Learner(nn.Sequential(*layers), device="cpu", progress=False)
        x, y = torch.randn(32, 3, 16, 16), torch.arange(32) % 2
    learner.learn("animals", (x, y), recipe=QUICK)
    expected = learner.predict(x, task="animals")
    for same in (x.to(memory_format=torch.channels_last), x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)):
        assert torch.equal(learner.predict(same, task="animals"), expected)


def test_many_examples_are_asked_in_parts_of_a_fixed_size(lived: Life) -> None:
    x = torch.randn(1100, 6, generator=torch.Generator().manual_seed(0))
    whole = lived.learner.predict(x, task="cars")
    parts = [lived.learner.predict(part, task="cars") for part in x.split(512)]
    assert whole.shape == (1100, 3)
    assert torch.equal(whole, torch.cat(parts))


def test_asking_and_saving_draw_no_random_numbers_of_the_users(lived: Life, tmp_path: Path) -> None:
    states = (torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate())
    learner = Learner.load(lived.folder, device="cpu")
    learner.network("birds")
    asked(learner)
    learner.evaluate(problem("birds"), task="birds")
    learner.save(tmp_path / "copy.nacre")
    Learner(backbone(), device="cpu")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert repr(np.random.get_state(legacy=False)) == repr(states[1])
    assert random.getstate() == states[2]


# plain networks


def test_a_network_gives_the_logits_and_is_the_learners_no_longer(lived: Life) -> None:
    x = problem("birds")[0]
    network, another = lived.learner.network("birds"), lived.learner.network("birds")
    with torch.no_grad():
        assert torch.equal(network(x), lived.answers[-1]["birds"])
        for tensor in network.state_dict().values():
            tensor.fill_(7)
        assert torch.equal(another(x), lived.answers[-1]["birds"])
    assert torch.equal(lived.learner.predict(x, task="birds"), lived.answers[-1]["birds"])


@pytest.mark.parametrize("inputs", ["tensor", "dict"])
def test_a_network_is_unpickled_and_runs_where_there_is_no_nacre(inputs: str, tmp_path: Path) -> None:
    """No class and no function of nacre's is anywhere inside: the process that runs it cannot import nacre."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(12) % 3
    if inputs == "tensor":
        x: Any = torch.randn(12, 6, generator=draw)
        learner = Learner(backbone(), device="cpu", progress=False)
        learner.learn("t", (x, y), recipe=QUICK)
    else:
        x = {name: torch.randn(12, 4, 8, generator=draw) for name in ("query", "key", "value")}
        attention = nn.MultiheadAttention(8, 2, batch_first=True)
        learner = Learner(attention, features=0, device="cpu", progress=False)
        learner.learn("t", (x, y), head=nn.Sequential(nn.Flatten(), nn.Linear(32, 3)), recipe=QUICK)
    torch.save(learner.network("t"), tmp_path / "network.pt")
    torch.save((x, learner.predict(x, task="t")), tmp_path / "asked.pt")
    program = (
        "import sys; sys.modules['nacre'] = None; import torch; torch.set_num_threads(1);"
        "network = torch.load('network.pt', weights_only=False); x, said = torch.load('asked.pt');"
        "assert not network.training; assert torch.equal(network(x), said)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"nacre" not in (tmp_path / "network.pt").read_bytes()


def test_every_task_has_a_head_of_its_own_size(lived: Life) -> None:
    for task, classes in CLASSES.items():
        assert lived.answers[-1][task].shape == (40, classes)
        assert lived.learner.network(task).get_parameter("head.weight").shape == (classes, 9)


def test_every_task_keeps_the_norm_statistics_of_its_own_data(tmp_path: Path) -> None:
    """A norm that sees the data themselves, two epochs of one batch: its averages are worked out in numpy."""
    norm_first = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 9))
    learner = Learner(norm_first, device="cpu", progress=False)
    mean, variance = np.zeros(6), np.ones(6)
    expected = {}
    for task in CLASSES:
        x = problem(task)[0].double().numpy()
        for _ in range(2):
            mean, variance = 0.9 * mean + 0.1 * x.mean(0), 0.9 * variance + 0.1 * x.var(0, ddof=1)
        expected[task] = mean, variance
        learner.learn(task, problem(task), recipe=Recipe(epochs=2, batch_size=40, precision="float32"))
    learner.save(tmp_path / "life.nacre")
    for known in (learner, Learner.load(tmp_path / "life.nacre", device="cpu")):
        for task, (mean, variance) in expected.items():
            network = known.network(task)
            np.testing.assert_allclose(network.get_buffer("backbone.0.running_mean").numpy(), mean, rtol=1e-5)
            np.testing.assert_allclose(network.get_buffer("backbone.0.running_var").numpy(), variance, rtol=1e-5)


# threads


@pytest.mark.parametrize("where", ["memory", "files"])
def test_eight_threads_ask_different_tasks_at_once(lived: Life, where: str) -> None:
    learner = lived.learner if where == "memory" else Learner.load(lived.folder, device="cpu")
    tasks, expected = list(CLASSES), lived.answers[-1]
    together, wrong, drawn = threading.Barrier(8), [], torch.get_rng_state()

    def ask(number: int) -> None:
        together.wait()
        for turn in range(12):
            task = tasks[(number + turn) % len(tasks)]
            x = problem(task)[0]
            said = learner.predict(x, task=task) if turn % 2 else learner.network(task)(x).detach()
            score = learner.evaluate(problem(task), task=task)
            if not torch.equal(said, expected[task]) or score != lived.results[task].accuracy:
                wrong.append((number, turn, task))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert torch.equal(torch.get_rng_state(), drawn)
