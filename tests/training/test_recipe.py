from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from nacre import Learner, NacreError, Recipe, Single
from nacre.training import Epoch

Data = tuple[torch.Tensor, torch.Tensor]


def problem(count: int = 40) -> Data:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, 5, generator=draw)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh())


def head() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Linear(7, 2)


def test_milestones_divide_the_rate_by_ten_at_their_shares_of_the_epochs() -> None:
    paper = Recipe(epochs=200, milestones=(0.4, 0.6, 0.9))
    rates = {epoch: paper.rate_at(epoch) for epoch in (0, 79, 80, 119, 120, 179, 180, 199)}
    by_hand = {0: 1, 79: 1, 80: 0.1, 119: 0.1, 120: 0.01, 179: 0.01, 180: 0.001, 199: 0.001}
    assert rates == pytest.approx(by_hand)


def test_milestones_scale_with_the_epochs() -> None:
    rates = [Recipe(epochs=10, milestones=(0.4, 0.6, 0.9)).rate_at(epoch) for epoch in range(10)]
    assert rates == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.001])


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_first_epoch_has_the_full_rate_however_few_there_are(epochs: int) -> None:
    assert Recipe(epochs=epochs).rate_at(0) == 1


def test_cosine_falls_from_the_full_rate_towards_zero() -> None:
    rates = [Recipe(epochs=4, schedule="cosine").rate_at(epoch) for epoch in range(4)]
    assert rates == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])


def test_constant_keeps_the_rate() -> None:
    assert {Recipe(epochs=9, schedule="constant").rate_at(epoch) for epoch in range(9)} == {1.0}


def test_the_default_optimiser_is_adam_at_the_learning_rate() -> None:
    optimizer = Recipe(learning_rate=0.02).make_optimizer(network().parameters())
    assert type(optimizer) is torch.optim.Adam
    assert [group["lr"] for group in optimizer.param_groups] == [0.02]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0]


def test_one_step_of_the_default_moves_every_number_by_the_learning_rate() -> None:
    """Adam's first step is rate * sign(gradient)."""
    given = head()
    recipe = Recipe(epochs=1, batch_size=40, learning_rate=0.02, precision="float32")
    learner = Learner(network(), Single(), device="cpu", progress=False)
    learner.learn("t", problem(), head=given, recipe=recipe)
    learnt = [*learner.network("t").parameters()][-2]
    assert learnt.shape == given.weight.shape
    moved = (learnt.detach() - given.weight.detach()).abs()  # the head that was given is where it started
    assert torch.allclose(moved, torch.full_like(moved, 0.02), atol=1e-5)


def test_an_optimiser_of_ones_own_is_scheduled_in_every_group() -> None:
    made: list[Optimizer] = []

    def make(parameters: list[nn.Parameter]) -> Optimizer:
        matrices = [parameter for parameter in parameters if parameter.dim() > 1]
        vectors = [parameter for parameter in parameters if parameter.dim() == 1]
        groups = [{"params": matrices, "lr": 0.5, "weight_decay": 0.01}, {"params": vectors, "lr": 0.2}]
        made.append(torch.optim.SGD(groups, momentum=0.9))
        return made[0]

    rates: list[list[float]] = []

    def look(epoch: Epoch, _: nn.Module) -> None:
        rates.append([group["lr"] for group in made[0].param_groups])

    recipe = Recipe(epochs=5, batch_size=40, optimizer=make, milestones=(0.4, 0.8), precision="float32")
    Learner(network(), device="cpu", progress=False).learn("t", problem(), recipe=recipe, callbacks=[look])
    assert len(made) == 1
    by_hand = [[0.5, 0.2], [0.5, 0.2], [0.05, 0.02], [0.05, 0.02], [0.005, 0.002]]
    assert [rate for pair in rates for rate in pair] == pytest.approx([rate for pair in by_hand for rate in pair])


@pytest.mark.parametrize("schedule", ["milestones", "cosine"])
def test_sgd_with_momentum_and_groups_equals_a_loop_written_by_hand(schedule: Any) -> None:
    """Whole batches, so that the order within one does not matter."""

    def make(parameters: list[nn.Parameter]) -> Optimizer:
        groups = [{"params": parameters[:2], "lr": 0.3}, {"params": parameters[2:], "lr": 0.1, "weight_decay": 0.05}]
        return torch.optim.SGD(groups, momentum=0.9)

    x, y = problem()
    recipe = Recipe(epochs=5, batch_size=40, optimizer=make, schedule=schedule, precision="float32")
    learner = Learner(network(), Single(), device="cpu", progress=False)
    learner.learn("t", (x, y), head=head(), recipe=recipe)

    by_hand = nn.Sequential(network(), head())
    optimizer = make(list(by_hand.parameters()))
    factors = {
        "milestones": [1, 1, 0.1, 0.01, 0.001],  # from epochs 2, 3 and 4.5, which is rounded to the even 4
        "cosine": [(1 + math.cos(math.pi * epoch / 5)) / 2 for epoch in range(5)],
    }[schedule]
    for factor in factors:
        for group, rate in zip(optimizer.param_groups, (0.3, 0.1), strict=True):
            group["lr"] = rate * factor
        loss = nn.functional.cross_entropy(by_hand(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        assert torch.allclose(learner.predict(x, task="t"), by_hand(x), atol=1e-5)


def test_what_does_not_train_is_not_given_to_the_optimiser() -> None:
    frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
    empty = nn.Parameter(torch.zeros(3, 0))
    kept = nn.Parameter(torch.zeros(2))
    optimizer = Recipe().make_optimizer([frozen, empty, kept])
    assert [id(parameter) for group in optimizer.param_groups for parameter in group["params"]] == [id(kept)]


def test_nothing_to_train_is_an_error_that_says_so() -> None:
    with pytest.raises(NacreError, match="nothing is left to train"):
        Recipe().make_optimizer([nn.Parameter(torch.zeros(3, 0))])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epochs": 0}, r"Recipe.epochs is a whole number from 1; got 0"),
        ({"epochs": 2.5}, r"Recipe.epochs is a whole number from 1; got 2.5"),
        ({"epochs": True}, r"Recipe.epochs is a whole number from 1; got True"),
        ({"batch_size": 0}, r"Recipe.batch_size is a whole number from 1; got 0"),
        ({"patience": 0}, r"Recipe.patience is a whole number from 1; got 0"),
        ({"workers": -1}, r"Recipe.workers is a whole number from 0; got -1"),
        ({"learning_rate": 0}, r"Recipe.learning_rate is a number above 0; got 0"),
        ({"learning_rate": -0.1}, r"Recipe.learning_rate is a number above 0; got -0.1"),
        ({"learning_rate": float("nan")}, r"Recipe.learning_rate is a number above 0; got nan"),
        ({"learning_rate": float("inf")}, r"Recipe.learning_rate is a number above 0; got inf"),
        ({"learning_rate": "fast"}, r"Recipe.learning_rate is a number above 0; got 'fast'"),
        ({"schedule": "step"}, r"Recipe.schedule is 'milestones', 'cosine' or 'constant'; got 'step'"),
        ({"milestones": (80, 120)}, r"Recipe.milestones are shares of the epochs, from 0 to 1; got \(80, 120\)"),
        ({"precision": "float16"}, r"Recipe.precision is 'auto', 'float32' or 'bfloat16'; got 'float16'"),
        ({"keep": "yes"}, r"Recipe.keep is True, False or 'auto'; got 'yes'"),
    ],
)
def test_a_bad_value_is_refused_when_the_recipe_is_made(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(NacreError, match=message):
        Recipe(**setting)


def test_precision_says_whether_the_forward_pass_is_bfloat16() -> None:
    cpu = torch.device("cpu")
    assert not Recipe(precision="float32").autocasts(cpu)
    assert Recipe(precision="bfloat16").autocasts(cpu)
    assert not Recipe(precision="auto").autocasts(torch.device("meta"))


def test_images_are_laid_channels_last_with_bfloat16_unless_told_otherwise() -> None:
    cpu = torch.device("cpu")
    assert Recipe(precision="bfloat16").lays_channels_last(cpu)
    assert not Recipe(precision="float32").lays_channels_last(cpu)
    assert Recipe(precision="float32", channels_last=True).lays_channels_last(cpu)
    assert not Recipe(precision="bfloat16", channels_last=False).lays_channels_last(cpu)
