"""CACL is Algorithm 1: equation 2 is what it descends, the energy rule is what it keeps. Both worked in numpy here."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from nacre import CACL, Learner, Recipe, SharedSpace, Start, compress, hoyer, orthogonality
from nacre.space import Network
from nacre.training import Epoch, Task, fit
from nacre.training.batches import as_batches
from nacre.training.processes import Processes
from nacre.training.seeding import seeded

Array = NDArray[np.float64]
Values = dict[str, Array]  # every number of a network, by layer and part

ONE = Processes(torch.device("cpu"))
LAYERS = ("0", "2")  # of matrices 16 x 6 and 12 x 16, r = 4 and 6
RATE = 1e-3


def module(seed: int, *layers: tuple[int, int]) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(*[part for shape in layers for part in (nn.Linear(*shape), nn.Tanh())])


def backbone() -> nn.Sequential:
    return module(0, (6, 16), (16, 12))


def head() -> nn.Linear:
    return cast(nn.Linear, module(1, (12, 3))[0])


def problem(seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, seed] > 0).long() + (x[:, seed + 1] > 0.5).long()


def recipe(epochs: int = 4, **more: Any) -> Recipe:
    return Recipe(epochs=epochs, **{"batch_size": 16, "learning_rate": 0.01, "precision": "float32", **more})


def learner_of(method: CACL, net: nn.Module | None = None) -> Learner:
    return Learner(net or backbone(), method, device="cpu", progress=False)


def space_of(learner: Learner) -> SharedSpace:
    assert isinstance(learner.knowledge, SharedSpace)
    return learner.knowledge


def array(tensor: Tensor) -> Array:
    return tensor.detach().to(torch.float64).numpy()


def factors_of(network: nn.Module) -> dict[str, tuple[Array, Array, Array]]:
    assert isinstance(network, Network)
    return {name: (array(f.U), array(f.s), array(f.V)) for name, f in network.factors().items()}


# Algorithm 1


@pytest.mark.parametrize(
    "method", [CACL(sparsity=0.3, orthogonality=0.7, energy=0.02), CACL.text(0.3)], ids=["ours", "text"]
)
def test_a_learner_does_the_four_lines_of_algorithm_1_and_no_more(method: CACL) -> None:
    learner, space = learner_of(method), SharedSpace(backbone())
    for number, name in enumerate(("a", "b", "c")):
        learner.learn(name, problem(number), head=head(), recipe=recipe())
        with seeded(0, name, "begin"):
            task = Task(name, head(), as_batches(problem(number), recipe(), ONE), F.cross_entropy, recipe(), ONE)
            network = space.expand(task.head, start=method.start)
            weight, sparsity = method.orthogonality, method.sparsity
            fit(
                network,
                task,
                penalty=lambda: weight * orthogonality(network, squared=method.squared) + sparsity * hoyer(network),
            )
            compress(network, energy=method.energy, exact=method.exact)
            space.append(name, network)
        assert learner.knowledge.ranks(name) == space.ranks(name)
        by_hand = space.network(name).state_dict()
        for key, tensor in learner.network(name).state_dict().items():
            assert torch.equal(tensor, by_hand[key]), (name, key)


@pytest.mark.parametrize("energy", [0.0, 0.01, 0.2, 1.0])
@pytest.mark.parametrize("exact", [True, False])
def test_every_layer_keeps_the_fewest_singular_values_that_hold_the_energy(exact: bool, energy: float) -> None:
    learner = learner_of(CACL(energy=energy, exact=exact))
    learner.learn("a", problem(0), recipe=recipe())
    trained: dict[str, tuple[Array, Array, Array]] = {}
    result = learner.learn(
        "b", problem(1), recipe=recipe(), callbacks=[lambda _, network: trained.update(factors_of(network))]
    )
    kept = space_of(learner).record("b").factors
    assert tuple(trained) == LAYERS
    for name, (U, s, V) in trained.items():
        if exact:
            left, values, right = np.linalg.svd((U * s) @ V.T, full_matrices=False)
            parts = [np.outer(left[:, i], right[i]) * values[i] for i in range(len(s))]
        else:
            order = np.argsort(-np.abs(s))
            values = np.abs(s)[order]
            parts = [np.outer(U[:, i], V[:, i]) * s[i] for i in order]
        squares = values[: len(s)] ** 2
        count = next(k for k in range(len(s) + 1) if squares[:k].sum() >= (1 - energy) * squares.sum() * (1 - 1e-12))
        assert result.ranks[name] == kept[name].rank == count
        best = sum(parts[:count], np.zeros((len(U), len(V))))
        np.testing.assert_allclose(array(kept[name].weight()), best, atol=1e-6)
        assert (kept[name].s >= 0).all()


def test_a_later_task_stands_on_the_sum_of_all_earlier_ones_bit_for_bit() -> None:
    learner = learner_of(CACL(energy=0.05))
    for number in range(2):
        learner.learn(str(number), problem(number), recipe=recipe())
    learnt = learner.network("1")
    seen: dict[str, Tensor] = {}

    def look(_: Epoch, network: nn.Module) -> None:
        for name in LAYERS:
            seen[name] = network.get_buffer(f"backbone.{name}.parametrizations.weight.original")

    learner.learn("2", problem(2), recipe=recipe(), callbacks=[look])
    for name in LAYERS:
        assert torch.equal(seen[name], learnt.get_parameter(f"backbone.{name}.weight")), name


# equation 2


def logits(v: Values, x: Array) -> Array:
    for name in LAYERS:
        weight = v[f"{name}.frozen"] + (v[f"{name}.U"] * v[f"{name}.s"]) @ v[f"{name}.V"].T
        x = np.tanh(x @ weight.T + v[f"{name}.bias"])
    return x @ v["head.weight"].T + v["head.bias"]


def off(part: Array, squared: bool, smaller: bool) -> float:
    gram = part @ part.T if smaller and part.shape[0] < part.shape[1] else part.T @ part
    norm = np.linalg.norm(gram - np.eye(len(gram)))
    return float(norm**2 if squared else norm) / len(gram) ** 2


def penalties(v: Values, method: CACL, earlier: Values) -> float:
    """The part of equation 2 beside the task's own loss; with "all" the frozen columns stand beside the new."""
    total, every = 0.0, method.penalised == "all"
    for name in LAYERS:
        U, s, V = (
            np.concatenate([earlier[f"{name}.{part}"], v[f"{name}.{part}"]], -1) if every else v[f"{name}.{part}"]
            for part in ("U", "s", "V")
        )
        total += method.orthogonality * (off(U, method.squared, every) + off(V, method.squared, every))
        total += method.sparsity * float(np.abs(s).sum() / np.sqrt((s**2).sum()))
    return total


def equation_2(v: Values, method: CACL, earlier: Values, x: Array, y: NDArray[np.int64]) -> float:
    out = logits(v, x)
    own = np.log(np.exp(out).sum(1)) - out[np.arange(len(y)), y]
    return float(own.mean()) + penalties(v, method, earlier)


def values_of(network: nn.Module) -> Values:
    found: Values = {}
    for name, (U, s, V) in factors_of(network).items():
        buffer = network.get_buffer(f"backbone.{name}.parametrizations.weight.original")
        found |= {f"{name}.U": U, f"{name}.s": s, f"{name}.V": V, f"{name}.frozen": array(buffer)}
        found[f"{name}.bias"] = array(network.get_parameter(f"backbone.{name}.bias"))
    return found | {f"head.{part}": array(network.get_parameter(f"head.{part}")) for part in ("weight", "bias")}


def slope(v: Values, name: str, *rest: Any) -> Array:
    """The gradient of equation 2 with respect to one tensor, by central differences."""
    found = np.zeros_like(v[name])
    for at in np.ndindex(found.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = v[name].copy()
            moved[at] += step
            ends.append(equation_2({**v, name: moved}, *rest))
        found[at] = (ends[0] - ends[1]) / 2e-6
    return found


EQUATIONS = {
    "ours": CACL(sparsity=0.3, orthogonality=0.7, energy=0),
    "text": CACL(sparsity=0.3, orthogonality=0.7, energy=0, squared=False, exact=False, start=Start("random")),
    "all": CACL(sparsity=0.3, orthogonality=0.7, energy=0, penalised="all"),
    "task alone": CACL(sparsity=0, orthogonality=0, energy=0),
}


@pytest.mark.parametrize("method", EQUATIONS.values(), ids=EQUATIONS)
def test_one_step_of_training_is_one_step_down_equation_2(method: CACL) -> None:
    """Of a second task: the first keeps all of its rank, so that "all" has more columns than V has rows."""
    learner = learner_of(method)
    learner.learn("a", problem(0), head=head(), recipe=recipe())
    after: list[Values] = []

    def descent(parameters: list[nn.Parameter]) -> Optimizer:
        return torch.optim.SGD(parameters, lr=RATE)

    whole = recipe(1, batch_size=48, optimizer=descent)
    x, y = problem(1)
    task = Task("b", head(), as_batches((x, y), whole, ONE), F.cross_entropy, whole, ONE)
    with seeded(0, "b", "begin"):
        old = values_of(method.expand(space_of(learner), task))  # what learn begins with, as the test above shows
    first = space_of(learner).record("a").factors
    earlier = {f"{name}.{part}": array(getattr(first[name], part)) for name in LAYERS for part in ("U", "s", "V")}
    learner.learn(
        "b", (x, y), head=head(), recipe=whole, callbacks=[lambda _, network: after.append(values_of(network))]
    )
    assert earlier["0.V"].shape[1] + old["0.V"].shape[1] > len(old["0.V"])
    rest = (method, earlier, array(x), y.numpy())
    for name, value in old.items():
        if name.endswith("frozen"):
            np.testing.assert_array_equal(after[0][name], value)
        else:
            np.testing.assert_allclose(
                (value - after[0][name]) / RATE, slope(old, name, *rest), atol=3e-4, err_msg=name
            )


@pytest.mark.parametrize("method", EQUATIONS.values(), ids=EQUATIONS)
def test_the_penalty_is_that_of_equation_2_for_every_task(method: CACL) -> None:
    learner = learner_of(method)
    space = space_of(learner)
    for number in range(3):
        task = Task(str(number), head(), as_batches(problem(), recipe(), ONE), F.cross_entropy, recipe(), ONE)
        network = method.expand(space, task)
        old = space.factors()
        earlier = {f"{name}.{part}": array(getattr(old[name], part)) for name in LAYERS for part in ("U", "s", "V")}
        found = float(method.penalty_on(network, space, task)().detach())
        assert found == pytest.approx(penalties(values_of(network), method, earlier), rel=1e-5, abs=1e-6)
        learner.learn(str(number), problem(number), recipe=recipe(1))


def test_only_new_factors_head_and_private_tensors_get_gradients() -> None:
    class Tokens(nn.Module):
        """A token that is frozen after the first task, and a norm that is each task's own."""

        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.ones(6))
            self.layer, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16)

        def forward(self, x: Tensor) -> Tensor:
            features: Tensor = self.norm(self.layer(x + self.token))
            return features

    moving = {f"backbone.layer.parametrizations.weight.0.{part}" for part in "UsV"}
    moving |= {"backbone.layer.bias", "backbone.norm.weight", "backbone.norm.bias", "head.weight", "head.bias"}
    learner = learner_of(CACL.published(), Tokens())
    for name, expected in (("a", moving | {"backbone.token"}), ("b", moving), ("c", moving)):
        found: set[str] = set()

        def look(_: Epoch, network: nn.Module, found: set[str] = found) -> None:
            found |= {key for key, tensor in network.named_parameters() if tensor.grad is not None}

        learner.learn(name, problem(), recipe=recipe(1), callbacks=[look])
        assert found == expected, name


# what the weights of the penalties do, and what is told of it


def test_more_sparsity_gives_smaller_tasks() -> None:
    sizes, ranks = [], []
    for sparsity in (0.0, 0.1, 1.0):
        learner = learner_of(CACL(sparsity=sparsity, energy=0.05))
        results = [learner.learn(str(number), problem(number), recipe=recipe(20)) for number in range(2)]
        sizes.append(sum(result.megabytes for result in results))
        ranks.append([sum(result.ranks.values()) for result in results])
    assert sizes[0] > sizes[1] > sizes[2]
    assert all(more >= some >= few for more, some, few in zip(*ranks, strict=True))


@pytest.mark.parametrize("method", [CACL(energy=0.02), CACL(energy=0.1, exact=False, squared=False)])
def test_the_report_is_how_far_from_orthogonal_and_the_rank_that_the_cut_leaves(method: CACL) -> None:
    trained: dict[str, tuple[Array, Array, Array]] = {}
    result = learner_of(method).learn(
        "a", problem(), recipe=recipe(), callbacks=[lambda _, network: trained.update(factors_of(network))]
    )
    told = result.history[-1].measures
    assert told["rank"] == sum(result.ranks.values())
    expected = sum(off(part, method.squared, False) for U, _, V in trained.values() for part in (U, V))
    assert told["orthogonality"] == pytest.approx(expected, rel=1e-4)
