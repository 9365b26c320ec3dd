"""The presets, what they are made of, and methods as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nacre import CACL, CACLST, CACLFixed, Learner, NacreError, Recipe, SharedSpace, Single, Start
from nacre.lowrank import factors
from nacre.methods import (
    ACL,
    AGEM,
    CPG,
    ER,
    EWC,
    HAT,
    METHODS,
    PAE,
    PNN,
    UCB,
    Finetune,
    Joint,
    PackNet,
    Piggyback,
    method_from_json,
)
from nacre.methods.cacl import freed_columns
from nacre.methods.method import settings


def space_with(*tasks: dict[str, int] | None, sharing: bool = True) -> SharedSpace:
    """A space of layers "0" (r = 9) and "1" (r = 7) whose tasks have these ranks; None is a task learnt dense."""
    space = SharedSpace(nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 12)))
    assert space.full_ranks == {"0": 400 // 41, "1": 240 // 33} == {"0": 9, "1": 7}
    for number, ranks in enumerate(tasks):
        network = space.expand(nn.Linear(12, 2), rank=ranks, dense=ranks is None, sharing=sharing)
        space.append(str(number), network)
        assert space.ranks(str(number)) == (ranks or {})
    return space


def problem(seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, seed] > 0).long()


def learner_of(method: Any) -> Learner:
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12))
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(number))
    return Learner(net, method, device="cpu", progress=False)


# presets


def differences(method: CACL) -> dict[str, Any]:
    """The settings in which a method is not the default one."""
    ours = asdict(CACL())
    return {name: value for name, value in asdict(method).items() if value != ours[name]}


def test_the_papers_text_differs_from_ours_as_the_design_says() -> None:
    start = asdict(Start("random"))
    assert differences(CACL.text()) == {"start": start, "squared": False, "exact": False}
    assert differences(CACL.text(0.4)) == {"sparsity": 0.4, "start": start, "squared": False, "exact": False}
    assert (CACL.text().energy, CACL.text().orthogonality) == (1e-5, 1.0)  # Appendix A


def test_the_published_code_differs_from_ours_as_the_notes_say() -> None:
    expected = {
        "energy": 3e-5,
        "start": asdict(Start("random")),
        "exact": False,
        "penalised": "all",
        "columns": "freed",
    }
    assert differences(CACL.published()) == expected  # it squares the norm as ours does
    assert differences(CACL.published(0.4)) == {"sparsity": 0.4, **expected}


def ranks_while_training(method: Any, tasks: int = 3) -> tuple[Learner, list[dict[str, int]]]:
    """The rank of every layer of every task before the cut."""
    learner, seen = learner_of(method), []
    for number in range(tasks):
        ranks: dict[str, int] = {}

        def look(_: Any, network: nn.Module, ranks: dict[str, int] = ranks) -> None:
            ranks.update({name: layer.rank for name, layer in factors(network).items()})

        recipe = Recipe(epochs=6, batch_size=16, learning_rate=0.01)
        learner.learn(str(number), problem(number), recipe=recipe, callbacks=[look])
        seen.append(ranks)
    return learner, seen


@pytest.mark.parametrize("method", [CACL(energy=0.1), CACL.text(0.5)], ids=["ours", "text"])
def test_every_task_of_the_paper_gets_its_r_columns(method: CACL) -> None:
    learner, seen = ranks_while_training(method)
    assert seen == [{"0": 4, "2": 6}] * 3
    assert method.ranks(learner.knowledge) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [CACL, CACLST])
def test_half_of_the_columns(kind: type[CACL]) -> None:
    _, seen = ranks_while_training(kind(energy=0.1, columns="half"))
    assert seen == [{"0": 2, "2": 3}] * 3
    assert kind(columns="half").ranks(space_with()) == {"0": 5, "1": 4}  # of 9 and 7


def test_a_task_that_shares_nothing_finds_nothing_freed() -> None:
    _, seen = ranks_while_training(CACLST(energy=0.2, columns="freed"))
    assert seen == [{"0": 4, "2": 6}] * 3


def test_a_later_task_of_the_published_code_gets_the_freed_columns() -> None:
    learner, seen = ranks_while_training(CACL(energy=0.2, columns="freed"), tasks=2)
    first = learner.knowledge.ranks("0")
    assert seen[0] == {"0": 4, "2": 6}
    assert 0 < sum(first.values()) < 10
    assert seen[1] == {"0": 4 - first["0"], "2": 6 - first["2"]}


# the published code's growth, r = 9 and 7


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        pytest.param([], (9, 7), id="the first task gets r"),
        pytest.param([(5, 7)], (4, 0), id="the second what the first one freed"),
        pytest.param([(0, 1)], (9, 6), id="a layer that needed nothing frees all"),
        # identifiers (5, 6): of layer 0 one column is left, of layer 1 none
        pytest.param([(5, 6), (3, 1)], (5, 6), id="then at least the mean of the identifiers"),
        # identifiers (2, 1): five and five are left, more than the means
        pytest.param([(2, 1), (2, 1)], (5, 5), id="but what is left where that is more"),
        # identifiers 5, 8 and 6, 7: 5 - 2 = 3 are left < 6.5; 6 - 1 = 5 < 6.5
        pytest.param([(5, 6), (3, 1), (2, 1)], (6, 6), id="a mean is rounded down"),
        # identifiers 5, 8, 10 have the mean 7.67; those of layer 1, 6, 7, 8, have 7, which is r
        pytest.param([(5, 6), (3, 1), (2, 1), (6, 2)], (7, 7), id="all of the columns used again"),
        # identifiers 5, 8, 10, 16 have the mean 9.75; 6, 7, 8, 10 have 7.75
        pytest.param([(5, 6), (3, 1), (2, 1), (6, 2), (7, 3)], (9, 7), id="never more than r"),
        # 9 - 3 = 6 are left; then 6 - 5 = 1 < 3, so 3; 3 - 1 = 2 < (3 + 8) / 2, so 5. Layer 1 stands still at r - 0
        pytest.param([(3, 0), (5, 0), (1, 0)], (5, 7), id="a layer without rank keeps its r columns"),
        # equal to the mean is enough: 9 - 4 = 5, 5 - 1 = 4, not fewer than 4
        pytest.param([(4, 3), (1, 1)], (4, 3), id="as many as the mean are enough"),
    ],
)
def test_columns_worked_out_by_hand(tasks: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    space = space_with(*({"0": a, "1": b} for a, b in tasks))
    assert freed_columns(space) == {"0": expected[0], "1": expected[1]}
    assert CACL.published().ranks(space) == freed_columns(space)


def test_a_task_learnt_dense_uses_no_columns() -> None:
    assert freed_columns(space_with(None)) == {"0": 9, "1": 7}
    assert freed_columns(space_with({"0": 5, "1": 7}, None)) == {"0": 5, "1": 7}  # fewer than the mean, 5 and 7


# methods as JSON

EVERY = [
    CACL(0.3, 0.5, 1e-3, Start("random", 0.1), squared=False, exact=False, penalised="all", columns="freed"),
    CACL.published(),
    CACLST(sparsity=0.2, start=Start(later=0.0)),
    CACLFixed(energy=0.01),
    Single(),
    Finetune(),
    Joint(),
    EWC(strength=10.0, samples=7),
    ER(memory=9, batch=3),
    AGEM(memory=9, batch=3),
    PackNet(prune=0.5, retrain=0.25),
    Piggyback(threshold=0.0, score=0.1, rate=1.0),
    HAT(steepest=50.0, strength=0.1, rate=5.0),
    UCB(noise=0.1, strength=1.0, share=0.5, wide=2.0, narrow=0.1, rate=2.0),
    ACL(adversary=0.1, difference=0.2, width=0.5, memory=9, batch=3),
    PNN(scale=0.5),
    CPG(goal=0.25, tolerance=-1.0, growth=1.0, widest=3.0, pruning=0.2, rounds=2, most=0.5, rate=1.0, score_rate=0.1),
    PAE(goal=0.0, widest=1.0),
]


def test_every_method_is_tried_here() -> None:
    assert [*METHODS][:4] == ["cacl", "cacl-st", "cacl-fixed", "single"]
    assert {type(method) for method in EVERY} == set(METHODS.values())
    assert all(kind.name == name for name, kind in METHODS.items())


@pytest.mark.parametrize("method", EVERY, ids=repr)
def test_a_method_comes_back_from_json_as_it_was(method: Any) -> None:
    back = method_from_json(json.loads(json.dumps(settings(method))))
    assert type(back) is type(method)
    assert back == method


@pytest.mark.parametrize("method", EVERY, ids=repr)
def test_a_loaded_learner_goes_on_with_the_method_it_was_saved_with(method: Any, tmp_path: Path) -> None:
    learner = Learner(nn.Sequential(nn.Linear(6, 8)), method, seed=5, device="cpu", progress=False)
    learner.learn("a", problem(), recipe=Recipe(epochs=1))
    learner.save(tmp_path / "s")
    loaded = Learner.load(tmp_path / "s", device="cpu")
    assert (type(loaded.method), loaded.method, loaded.seed) == (type(method), method, 5)


def test_a_setting_of_a_later_version_is_left_out() -> None:
    assert method_from_json({"name": "cacl", "settings": {"sparsity": 0.2, "unheard": 1}}) == CACL(0.2)


@pytest.mark.parametrize(
    "data",
    [
        {"name": "eewc", "settings": {}},
        {"name": ["cacl"], "settings": {}},
        {"settings": {}},
        {"name": "cacl"},
        {"name": "cacl", "settings": None},
        {"name": "cacl", "settings": {"start": {"kind": "svd", "unheard": 1}}},
        {"name": "cacl", "settings": {"start": "svd"}},
        None,
        "cacl",
        [],
    ],
    ids=repr,
)
def test_what_names_no_method_is_refused_and_the_methods_are_named(data: Any) -> None:
    with pytest.raises(NacreError, match=r"^no method is .*; the methods are cacl, cacl-st, cacl-fixed, single, "):
        method_from_json(data)


def test_a_bad_setting_in_json_is_refused_by_its_name() -> None:
    with pytest.raises(NacreError, match=r"CACLFixed.energy is a number from 0 to 1; got 2"):
        method_from_json({"name": "cacl-fixed", "settings": {"energy": 2}})
    with pytest.raises(NacreError, match="Start takes kind 'svd' or 'random'"):
        method_from_json({"name": "cacl", "settings": {"start": {"kind": "dct", "later": 1}}})


# settings


@pytest.mark.parametrize("kind", [CACL, CACLST, CACLFixed])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"sparsity": -0.1}, r"sparsity is a number from 0; got -0\.1"),
        ({"sparsity": float("inf")}, "sparsity is a number from 0; got inf"),
        ({"sparsity": "0.1"}, r"sparsity is a number from 0; got '0\.1'"),
        ({"sparsity": None}, "sparsity is a number from 0; got None"),
        ({"orthogonality": -1}, "orthogonality is a number from 0; got -1"),
        ({"orthogonality": float("nan")}, "orthogonality is a number from 0; got nan"),
        ({"energy": 1.5}, r"energy is a number from 0 to 1; got 1\.5"),
        ({"energy": -1e-9}, "energy is a number from 0 to 1; got -1e-09"),
        ({"energy": torch.zeros(())}, r"energy is a number from 0 to 1; got tensor\(0\.\)"),
        ({"penalised": "old"}, "penalised is 'new' or 'all'; got 'old'"),
        ({"columns": 3}, "columns is 'full', 'half' or 'freed'; got 3"),
    ],
)
def test_a_bad_setting_is_refused_when_the_method_is_made(
    kind: type[CACL], setting: dict[str, Any], message: str
) -> None:
    with pytest.raises(NacreError, match=f"^{kind.__name__}.{message}$"):
        kind(**setting)
