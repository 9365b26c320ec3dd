from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from nacre import CACL, NacreError, SharedSpace, Single
from nacre.errors import WrongUsage
from nacre.experiments.grid import Grid
from nacre.experiments.protocols import PUBLISHED, QUICK, Dials, Options, plan, recipe_and_method
from nacre.methods import METHODS
from nacre.networks import conv5
from nacre.scenarios import SCENARIOS, Choices


def drops(epochs: int, rates: list[float]) -> list[int]:
    """The epochs, from 1, before which the rate fell."""
    return [epoch for epoch in range(1, epochs) if rates[epoch] < rates[epoch - 1]]


@pytest.mark.parametrize(
    ("protocol", "scenario", "at"),
    [
        ("paper", "digits", [80, 120, 180]),
        ("published", "digits", [120, 180]),
    ],
)
def test_the_papers_and_the_codes_schedules(protocol: str, scenario: str, at: list[int]) -> None:
    chosen = plan(scenario, "cacl", Options(protocol=protocol))  # type: ignore[arg-type]
    recipe = chosen.recipe
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate, recipe.optimizer) == (200, 64, 1e-3, None)
    assert drops(200, [recipe.rate_at(epoch) for epoch in range(200)]) == at
    assert recipe.rate_at(199) == pytest.approx(0.1 ** len(at))
    assert chosen.protocol == protocol


def test_the_code_trains_miniimagenet_on_another_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCENARIOS, "miniimagenet", SCENARIOS["digits"])  # the schedule depends on the name alone
    recipe, method = recipe_and_method("miniimagenet", "cacl", Options(protocol="published"))
    assert drops(200, [recipe.rate_at(epoch) for epoch in range(200)]) == [150, 180]
    assert replace(recipe, milestones=PUBLISHED.milestones) == PUBLISHED
    assert method == CACL.published()


def test_the_protocols_take_the_methods_presets() -> None:
    assert recipe_and_method("digits", "cacl", Options(protocol="paper"))[1] == CACL.text()
    published = recipe_and_method("digits", "cacl", Options(protocol="published"), Dials(sparsity=0.4))[1]
    assert published == CACL.published(0.4)
    assert (published.energy, published.penalised) == (3e-5, "all")
    quick = QUICK["digits"]
    assert recipe_and_method("digits", "cacl", Options()) == (quick[0], CACL(**quick[1]))


def test_the_paper_trains_vgg16_with_less_sparsity() -> None:
    """Its Appendix A: the same strategy as for the five layers, with the weight of the sparsity loss at 0.01."""
    options = Options(protocol="paper", choices=Choices(network="vgg16_bn"))
    assert recipe_and_method("cifar100", "cacl", options)[1] == CACL.text(0.01)
    assert recipe_and_method("cifar100", "cacl", options, Dials(sparsity=0.4))[1] == CACL.text(0.4)
    assert recipe_and_method("cifar100", "cacl", Options(protocol="paper"))[1] == CACL.text(0.1)


def test_the_code_adds_r_columns_for_each_of_five_data_sets() -> None:
    options = Options(protocol="published")
    assert recipe_and_method("five-datasets", "cacl", options)[1] == replace(CACL.published(), columns="full")
    assert recipe_and_method("cifar100", "cacl", options)[1] == CACL.published()


@pytest.mark.parametrize(
    ("scenario", "features", "classes"),
    [("cifar100", 1024, 5), ("miniimagenet", 16384, 5), ("five-datasets", 1024, 10)],
)
def test_the_quick_share_leaves_room_for_factors_beside_every_scenarios_head(
    scenario: str, features: int, classes: int
) -> None:
    recipe, method = recipe_and_method(scenario, "cacl", Options())
    assert recipe.epochs <= 40
    head = (features + 1) * classes
    left = int(method.share * (390_848 + head)) - head - 5  # by hand: conv5's weights, the head, five ranks
    budget = SharedSpace(conv5()).budget(nn.Linear(features, classes), method.share)
    assert budget == 4 * left
    assert left > 8 * (92 + 641 + 705 + 1281 + 769)  # eight ranks in every layer


@pytest.mark.parametrize("protocol", ["quick", "paper", "published"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_under_every_protocol(name: str, protocol: str) -> None:
    chosen = recipe_and_method("digits", name, Options(protocol=protocol))[1]  # type: ignore[arg-type]
    assert type(chosen) is METHODS[name]
    if not isinstance(chosen, CACL):  # a protocol's settings are CACL's; any other method has its own
        assert chosen == METHODS[name]()


def test_what_is_asked_for_goes_into_the_plan() -> None:
    chosen = plan("digits", "cacl", Options(epochs=3, tasks=2, seeds=(4, 7)), Dials(sparsity=0.9))
    assert [task.name for task in chosen.scenario.tasks] == ["0-1", "2-3"]
    assert (chosen.recipe.epochs, chosen.seeds, chosen.method.sparsity) == (3, (4, 7), 0.9)
    recorded = chosen.to_json()
    assert recorded["protocol"] == "quick"
    assert recorded["network"] == "conv5"
    assert recorded["method"]["settings"]["sparsity"] == 0.9
    assert recorded["recipe"]["epochs"] == 3
    assert recorded["seeds"] == [4, 7]


def test_the_record_says_which_classes_each_seed_has_drawn() -> None:
    options = Options(tasks=2, seeds=(0, 3), choices=Choices(class_order="random"))
    recorded = plan("digits", "cacl", options).to_json()["facts"]["classes"]
    for seed in (0, 3):
        order = torch.randperm(10, generator=torch.Generator().manual_seed(seed)).tolist()
        pairs = [[str(digit) for digit in order[at : at + 2]] for at in (0, 2)]
        assert recorded[f"seed {seed}"] == {"random-0": pairs[0], "random-1": pairs[1]}
    assert plan("digits", "cacl", Options(tasks=2)).to_json()["facts"]["classes"] == {
        "0-1": ["0", "1"],
        "2-3": ["2", "3"],
    }


@pytest.mark.parametrize(
    ("method", "options", "dials", "message"),
    [
        ("single", Options(), Dials(sparsity=0.1), "single has no --sparsity"),
        ("single", Options(), Dials(share=0.1), "single has no --share"),
        ("single", Options(), Dials(dtype="int8"), "single has no --dtype"),
        ("cacl", Options(), Dials(dtype="int4"), "dtype is 'float32', 'bfloat16', 'int8'; got 'int4'"),  # type: ignore[arg-type]
        ("cacl", Options(), Dials(share=1.5), "share is a number above 0, at most 1"),
        ("cacl", Options(seeds=(1, 1)), None, r"--seeds takes different numbers, at least one; got \[1, 1\]"),
        ("cacl", Options(seeds=()), None, "--seeds"),
        ("cacl", Options(epochs=0), None, "epochs is a whole number from 1; got 0"),
        ("cacl", Options(tasks=9), None, "digits has 5 tasks; got --tasks 9"),
        ("cacl", Options(), Dials(sparsity=-1.0), "sparsity is a number from 0"),
        ("eewc", Options(), None, "no method is called 'eewc'; the methods are cacl"),
        ("cacl", Options(protocol="fast"), None, "no protocol is called 'fast'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_usage_is_named(method: str, options: Options, dials: Dials | None, message: str) -> None:
    with pytest.raises(WrongUsage, match=message):
        plan("digits", method, options, dials)


def test_an_unknown_scenario_and_an_unknown_network_are_named() -> None:
    with pytest.raises(WrongUsage, match=r"no scenario is called 'digitz'; the scenarios are .*digits"):
        plan("digitz", "cacl")
    with pytest.raises(NacreError, match="'conv6'"):
        plan("digits", "cacl", Options(choices=Choices(network="conv6")))


def test_a_grid_has_every_method_with_every_sparsity_and_seed_and_a_dense_one_once() -> None:
    grid = Grid("digits", ("cacl", "single"), (0.1, 0.4), Options(seeds=(0, 1)))
    assert [(cell.name, cell.seed) for cell in grid.cells()] == [
        *(("cacl-0.1", 0), ("cacl-0.1", 1), ("cacl-0.4", 0), ("cacl-0.4", 1), ("single", 0), ("single", 1))
    ]
    assert {name: plan.method for name, plan in grid.plans().items()} == {
        "cacl-0.1": CACL(**{**QUICK["digits"][1], "sparsity": 0.1}),
        "cacl-0.4": CACL(**{**QUICK["digits"][1], "sparsity": 0.4}),
        "single": Single(),
    }
    assert [cell.name for cell in Grid("digits", ("cacl",)).cells()] == ["cacl"]


def test_a_grid_has_every_share_with_every_sparsity() -> None:
    grid = Grid("digits", ("single", "cacl"), (0.1,), shares=(0.125, 1 / 16))
    assert [cell.name for cell in grid.cells()] == ["single", "cacl-0.1-share-0.125", "cacl-0.1-share-0.0625"]
    assert [plan.method.share for plan in grid.plans().values() if plan.method.name == "cacl"] == [0.125, 0.0625]
    assert [cell.name for cell in Grid("digits", ("cacl",), shares=(0.5,)).cells()] == ["cacl-share-0.5"]


def test_a_grid_has_every_dtype_for_factors_and_heads_alike() -> None:
    grid = Grid("digits", ("single", "cacl"), shares=(0.125,), dtypes=("float32", "int8"))
    named = ["single", "cacl-share-0.125-float32", "cacl-share-0.125-int8"]
    assert [cell.name for cell in grid.cells()] == named
    stored = [(plan.method.dtype, plan.method.head_dtype) for name, plan in grid.plans().items() if name != "single"]
    assert stored == [("float32", "float32"), ("int8", "int8")]


@pytest.mark.parametrize(
    ("methods", "sparsities", "shares", "message"),
    [
        ((), (), (), "at least one method"),
        (("cacl", "cacl"), (), (), "--methods takes different ones; got cacl cacl"),
        (("cacl",), (0.1, 0.1), (), "--sparsities takes different ones"),
        (("single",), (0.1,), (), "none of the methods single has a sparsity"),
        (("cacl",), (-0.1,), (), "sparsity is a number from 0"),
        (("cacl",), (), (0.5, 0.5), "--shares takes different ones"),
        (("single",), (), (0.5,), "none of the methods single has a share"),
        (("cacl",), (), (0.0,), "share is a number above 0"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(
    methods: tuple[str, ...], sparsities: tuple[float, ...], shares: tuple[float, ...], message: str
) -> None:
    with pytest.raises(WrongUsage, match=message):
        Grid("digits", methods, sparsities, shares=shares)
