"""Graphs as data: known steps are rebuilt to compute the same; anything else is refused and runs nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from nacre import NacreError, SharedSpace
from nacre.space.description import build, describe
from nacre.space.layout import install, tensors

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Residual(nn.Module):
    """A network of somebody's own, which torch.fx can trace."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.scale = nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = torch.cat([x + self.second(x) * self.scale, x], 1)
        large = F.interpolate(x, size=(x.size(2) * 2, 6), mode="nearest")
        return torch.flatten(large, 1)


def traced() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return fx.symbolic_trace(Residual()).eval()


def described() -> dict[str, Any]:
    found = describe(traced())
    assert found is not None
    return found


def test_a_network_that_fx_traced_is_described_and_computes_the_same(tmp_path: Path) -> None:
    network = traced()
    rebuilt = build(described())
    install(rebuilt, tensors(network))
    with torch.no_grad():
        assert torch.equal(rebuilt.eval()(X), network(X))

    space = SharedSpace(network)
    trained = space.expand(nn.Linear(768, 2), rank=2).eval()
    trained(X)
    space.append("one", trained)
    space.save(tmp_path / "s")
    with torch.no_grad():
        assert torch.equal(SharedSpace.load(tmp_path / "s").network("one")(X), space.network("one")(X))


def test_describing_again_says_the_same() -> None:
    assert describe(build(described())) == described()
    assert describe(copy.deepcopy(traced())) == described()
    assert describe(nn.Sequential(traced(), nn.Flatten())) is not None


class Unknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.special.expit(x)
        return found


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(3, 4, 3))

    def forward(self, x: Tensor) -> Any:
        return self.inner[0](x)


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Several(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x + 1, x


@pytest.mark.parametrize("kind", [Unknown, Inner, Two, Several])
def test_steps_that_are_not_known_are_not_described(kind: type[nn.Module]) -> None:
    assert describe(fx.symbolic_trace(kind())) is None


def test_a_graph_with_hooks_or_a_class_of_its_own_is_not_described() -> None:
    hooked = traced()
    hooked.register_forward_hook(lambda *_: None)
    assert describe(hooked) is None

    class Own(fx.GraphModule):
        pass

    assert describe(Own(traced(), traced().graph)) is None


def rename(name: Any) -> Any:
    def change(described: dict[str, Any]) -> None:
        for child in described["children"]:
            if child[0] == "first":
                child[0] = name
        for step in described["steps"]:
            if step[1] == "first":
                step[1] = name

    return change


def step(*parts: Any) -> Any:
    return lambda described: described["steps"].append(list(parts))


FORGED = {
    **{f"a part called {name!r}": rename(name) for name in ("", "a.b", "a b", "class", "_x", "x\ny", "é", 3, None)},
    **{f"a part in place of {name}": rename(name) for name in ("forward", "graph", "code", "training", "eval")},
    "a name twice": lambda described: described["parameters"].append(["first", [1]]),
    "a function of Python": step("call_function", "eval", ["1"], {}),
    "a function by its path": step("call_function", "os.system", ["true"], {}),
    "a method that is not known": step("call_method", "numpy", [{"step": 0}], {}),
    "a dunder": step("call_method", "__class__", [{"step": 0}], {}),
    "a layer that is not there": step("call_module", "third", [{"step": 0}], {}),
    "a parameter as a layer": step("call_module", "scale", [{"step": 0}], {}),
    "a layer as a parameter": step("get_attr", "first", [], {}),
    "another call": step("placeholder", "y", [], {}),
    "a later result": step("call_function", "relu", [{"step": 99}], {}),
    "a result before the first": step("call_function", "relu", [{"step": -1}], {}),
    "a truth for a number": step("call_function", "relu", [{"step": True}], {}),
    "an argument that is code": step("call_function", "flatten", [{"step": 0}], {"x=print(1), y": 1}),
    "an object that is no step": step("call_function", "relu", [{"code": "1"}], {}),
    "too few parts": step("call_function", "relu"),
    "no steps": lambda described: described.update(steps=None),
    "a shape below zero": lambda described: described["parameters"].append(["p", [-1]]),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_graph_is_refused(what: str) -> None:
    forged = described()
    FORGED[what](forged)
    with pytest.raises(NacreError, match="a network is described that cannot be built"):
        build(forged)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from(["x", "call_module", "first", "add", "step"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["step", "a"]), inner, max_size=2),
    max_leaves=6,
)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(["children", "parameters", "steps"]), st.integers(0, 3), json_values)
def test_anything_in_any_place_is_built_or_refused(part: str, place: int, value: Any) -> None:
    forged = described()
    forged[part].insert(place, value)
    try:
        built = build(forged)
    except NacreError:
        return
    assert isinstance(built, nn.Module)
