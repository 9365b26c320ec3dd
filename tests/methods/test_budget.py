"""A budget: factors are cut to it halfway, the rest of the epochs train what was kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre import CACL, Learner, NacreError, Recipe, SharedSpace, Single, compress, hoyer, orthogonality
from nacre.lowrank import factors
from nacre.training import Epoch, Task, fit
from nacre.training.batches import as_batches
from nacre.training.processes import Processes
from nacre.training.seeding import seeded

ONE = Processes(torch.device("cpu"))
FULL = {"0": 16 * 6 // 23, "2": 12 * 16 // 29}  # r of the layers 16 x 6 and 12 x 16
COSTS = {"0": 4 * 23, "2": 4 * 29}  # bytes of one singular value


def module(seed: int, *layers: nn.Module) -> nn.Sequential:
    for number, parameter in enumerate(nn.Sequential(*layers).parameters()):
        nn.init.uniform_(parameter, -0.5, 0.5, torch.Generator().manual_seed(10 * seed + number))
    return nn.Sequential(*layers)


def backbone() -> nn.Module:
    return module(0, nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh())


def problem() -> tuple[Tensor, Tensor]:
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def recipe(epochs: int = 6, **more: Any) -> Recipe:
    return Recipe(epochs=epochs, **{"batch_size": 16, "learning_rate": 0.01, "precision": "float32", **more})


def learner_of(method: CACL) -> Learner:
    return Learner(backbone(), method, device="cpu", progress=False)


def cost(ranks: dict[str, int]) -> int:
    return sum(rank * COSTS[name] for name, rank in ranks.items())


@pytest.mark.parametrize("budget", [0, 91, 92, 300, 450, 10_000])
def test_a_task_never_takes_more_bytes_than_its_budget(budget: int) -> None:
    learner = learner_of(CACL(energy=0, budget=budget))
    for name in ("a", "b"):
        ranks = learner.learn(name, problem(), recipe=recipe()).ranks
        assert cost(ranks) <= budget
        assert cost(ranks) > budget - max(COSTS.values()) or ranks == FULL
        assert 4 * learner.knowledge.size(name).factors == cost(ranks)


def test_the_cut_comes_halfway_and_what_is_kept_learns_on() -> None:
    seen: list[tuple[str, int, dict[str, int]]] = []

    def look(epoch: Epoch, network: nn.Module) -> None:
        seen.append((epoch.phase, epoch.epoch, {name: layer.rank for name, layer in factors(network).items()}))

    result = learner_of(CACL(energy=0, budget=450, halfway=0.3)).learn(
        "a", problem(), recipe=recipe(), callbacks=[look]
    )
    assert [(phase, number) for phase, number, _ in seen] == [
        ("train", 1),
        ("train", 2),
        *(("refine", number) for number in range(3, 7)),
    ]
    assert [ranks for *_, ranks in seen] == [FULL] * 2 + [result.ranks] * 4
    assert result.ranks != FULL
    assert [epoch.epoch for epoch in result.history] == [*range(1, 7)]


def test_training_with_a_budget_is_two_fits_with_a_cut_between_and_one_schedule() -> None:
    method = CACL(sparsity=0.2, energy=0.01, budget=450, singular_rate=10)
    cosine = recipe(schedule="cosine")
    learner = learner_of(method)
    head = module(1, nn.Linear(12, 3))[0]
    learner.learn("a", problem(), head=head, recipe=cosine)
    space = SharedSpace(backbone())
    with seeded(0, "a", "begin"):
        task = Task("a", head, as_batches(problem(), cosine, ONE), F.cross_entropy, cosine, ONE)
        network = space.expand(head)
        for phase, epochs in (("train", range(3)), ("refine", range(3, 6))):
            rates = {layer.s: 10.0 for layer in network.factors().values()}
            fit(
                network,
                task,
                penalty=lambda: orthogonality(network) + 0.2 * hoyer(network),
                phase=phase,
                epochs=epochs,
                rates=rates,
            )
            compress(network, budget=450)
        compress(network, energy=0.01)
        space.append("a", network)
    by_hand = space.network("a").state_dict()
    for key, tensor in learner.network("a").state_dict().items():
        assert torch.equal(tensor, by_hand[key]), key


def normed() -> nn.Module:
    return module(0, nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 12, bias=False))


# by hand: weights 16 * 6 + 12 * 16 = 288, bias and four norm tensors of 16 each 80, a head of 12 * 3 + 3 = 39
DENSE, BESIDE = 288 + 80 + 39, 80 + 39 + 2  # beside the factors: those, and the rank of two layers


@pytest.mark.parametrize("share", [BESIDE / DENSE, 0.4, 0.6, 1.0])
def test_a_task_takes_at_most_its_share_of_a_dense_network_head_and_all(share: float) -> None:
    learner = Learner(normed(), CACL(energy=0, share=share), device="cpu", progress=False)
    for name in ("a", "b"):
        learner.learn(name, problem(), recipe=recipe())
        size = learner.knowledge.size(name)
        assert size.numbers <= share * DENSE
        assert size.numbers - size.factors == BESIDE
        assert size.numbers > share * DENSE - 29 or share == 1.0  # no rank of either layer is left over
    single = Learner(normed(), Single(), device="cpu", progress=False)
    single.learn("a", problem(), recipe=recipe(1))
    assert single.knowledge.size("a").numbers == DENSE


def test_a_share_holds_more_ranks_where_numbers_are_stored_in_fewer_bits() -> None:
    ranks = {}
    for dtype in ("float32", "int8"):
        method = CACL(energy=0, share=0.4, dtype=dtype, head_dtype=dtype)
        learner = Learner(normed(), method, device="cpu", progress=False)
        ranks[dtype] = learner.learn("a", problem(), recipe=recipe()).ranks
        size = learner.knowledge.size("a")
        dearest = {"float32": 4 * 29, "int8": 12 + 16 + 2 * 2 + 4}[dtype]  # of what a rank may cost
        assert size.bytes <= 4 * int(0.4 * DENSE) < size.bytes + dearest
        assert size.megabytes_at_4_bytes == pytest.approx(4 * size.numbers / 1e6, rel=1e-12)
    assert sum(ranks["int8"].values()) > sum(ranks["float32"].values())
    # by hand: a head of 3 rows of 12, a scale of 2 bytes each, and 3 float32 biases instead of 39 float32 numbers
    beside = 4 * (BESIDE - 39) + 3 * 12 + 3 * 2 + 3 * 4
    space, head = SharedSpace(normed()), nn.Linear(12, 3)
    assert space.budget(head, 0.5, head_dtype="int8") == 4 * int(0.5 * DENSE) - beside
    assert space.budget(head, 0.5) == 4 * int(0.5 * DENSE) - 4 * BESIDE


def test_a_share_that_a_head_alone_exceeds_is_refused_before_training() -> None:
    learner = Learner(normed(), CACL(share=0.25), device="cpu", progress=False)
    with pytest.raises(NacreError, match=r"a share of 0\.25 of a dense network is 404 bytes, but .* alone are 484"):
        learner.learn("a", problem(), recipe=recipe())
    assert learner.tasks == ()


@pytest.mark.parametrize("share", [0, 1.5, -0.1, "half", float("nan")])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(NacreError, match=r"^CACL\.share is a number above 0, at most 1, or None for no limit; got "):
        CACL(share=share)


def test_a_share_and_a_budget_at_once_are_refused() -> None:
    with pytest.raises(NacreError, match="CACL takes share= or budget=, not both"):
        CACL(share=0.5, budget=100)


class Halt(Exception):
    """Stands for a Ctrl-C."""


@pytest.mark.parametrize("last", range(1, 7))
def test_an_interrupted_task_goes_on_from_either_side_of_the_cut(last: int, tmp_path: Path) -> None:
    method = CACL(energy=0.01, budget=450, singular_rate=3)

    def halt(epoch: Epoch, _: nn.Module) -> None:
        if epoch.epoch == last:
            raise Halt

    with pytest.raises(Halt):
        learner_of(method).learn("a", problem(), recipe=recipe(), checkpoint=tmp_path, callbacks=[halt])
    resumed, whole = learner_of(method), learner_of(method)
    resumed.learn("a", problem(), recipe=recipe(), checkpoint=tmp_path)
    whole.learn("a", problem(), recipe=recipe())
    x, _ = problem()
    assert torch.equal(resumed.predict(x, task="a"), whole.predict(x, task="a"))


def test_s_learns_as_much_faster_as_was_said() -> None:
    moved: dict[float, dict[str, Tensor]] = {}
    for rate in (1.0, 10.0):
        found: dict[str, Tensor] = {}

        def look(_: Epoch, network: nn.Module, found: dict[str, Tensor] = found) -> None:
            found.update({name: tensor.detach().clone() for name, tensor in network.named_parameters()})

        start: dict[str, Tensor] = {}
        learner = learner_of(CACL(sparsity=0, energy=0, singular_rate=rate))
        one_step = recipe(1, batch_size=48, schedule="constant")
        learner.learn("a", problem(), recipe=one_step, callbacks=[look])
        with seeded(0, "a", "begin"):
            start = dict(SharedSpace(backbone()).expand(nn.Linear(12, 3)).named_parameters())
        moved[rate] = {name: found[name] - start[name].detach() for name in found if ".s" in name or ".U" in name}
    for name, slow in moved[1.0].items():  # Adam's first step is the rate, whatever the gradient
        torch.testing.assert_close(moved[10.0][name], (10 if name.endswith(".s") else 1) * slow, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("budget", [-1, 2.5, "200KB", True])
def test_a_budget_that_is_no_number_of_bytes_is_refused(budget: Any) -> None:
    with pytest.raises(NacreError, match=r"^CACL\.budget is a number of bytes, or None for no limit; got "):
        CACL(budget=budget)
