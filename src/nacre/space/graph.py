"""Networks that are no row of layers as data: the steps of a torch.fx.GraphModule, each of a kind that is known."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from torch import fx

# what a step may call beside a layer; none of these reads a file, runs code or looks anything up
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "cat": torch.cat,
    "flatten": torch.flatten,
    "relu": F.relu,
    "interpolate": F.interpolate,
    "scaled_dot_product_attention": F.scaled_dot_product_attention,
}
METHODS = ("size", "flatten", "mean", "transpose", "unflatten")
_SAID = {function: name for name, function in FUNCTIONS.items()}


def describe_graph(module: nn.Module, describe: Callable[[nn.Module], Any]) -> dict[str, Any] | None:
    """A GraphModule of known steps as JSON; `describe` describes its layers. None for anything else."""
    if "torch.fx.graph_module" not in sys.modules or not _is_plain_graph(module):
        return None
    graph = cast("fx.GraphModule", module).graph
    numbers: dict[Any, int] = {}
    steps: list[list[Any]] = []
    children: dict[str, Any] = {}
    parameters: dict[str, list[int]] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            if numbers or node.args:
                return None
        elif node.op == "output":
            return _described(children, parameters, steps) if node.args[0] is list(numbers)[-1] else None
        else:
            target = _target(node)
            if target is None:
                return None
            if node.op == "call_module":
                children.setdefault(target, describe(module.get_submodule(target)))
            elif node.op == "get_attr":
                parameters.setdefault(target, list(module.get_parameter(target).shape))
            try:
                steps.append([node.op, target, _said(node.args, numbers), _said(node.kwargs, numbers)])
            except TypeError:
                return None
        numbers[node] = len(numbers)
    return None


def _is_plain_graph(module: nn.Module) -> bool:
    from torch import fx
    from torch.fx.graph import CodeGen

    kinds = type(module).__mro__
    return len(kinds) > 1 and kinds[1] is fx.GraphModule and type(module.graph._codegen) is CodeGen  # type: ignore[union-attr]


def _target(node: fx.Node) -> str | None:
    """What a step calls, by name; None where that is nothing known, or a layer inside of another."""
    if node.op == "call_function":
        return _SAID.get(cast(Callable[..., Any], node.target))
    name = str(node.target)
    if node.op == "call_method":
        return name if name in METHODS else None
    return name if "." not in name else None


def _described(children: dict[str, Any], parameters: dict[str, Any], steps: list[Any]) -> dict[str, Any] | None:
    if any(child is None for child in children.values()):
        return None
    return {
        "class": "Graph",
        "arguments": {},
        "children": [list(item) for item in children.items()],
        "parameters": [list(item) for item in parameters.items()],
        "steps": steps,
    }


def _said(value: Any, numbers: dict[Any, int]) -> Any:
    """An argument of a step as JSON: earlier steps as {"step": number}."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_said(part, numbers) for part in value]
    if isinstance(value, dict):
        return {key: _said(part, numbers) for key, part in value.items()}
    if value in numbers:
        return {"step": numbers[value]}
    raise TypeError(f"{value!r} is no JSON")


def build_graph(described: Any, build: Callable[[Any], nn.Module]) -> nn.Module:
    """The GraphModule that a description says; ValueError where it says anything that is not known."""
    from torch import fx

    graph = fx.Graph()
    parts: dict[str, Any] = {}
    for name, child in described["children"]:
        parts[_name(name)] = build(child)
    for name, shape in described["parameters"]:
        parts[_name(name)] = nn.Parameter(torch.empty(shape))
    if len(parts) < len(described["children"]) + len(described["parameters"]):
        raise ValueError("two parts of a network have one name")
    made = [graph.placeholder("x")]
    for call, target, args, kwargs in described["steps"]:
        given, named = _meant(args, made), {_name(key): _meant(value, made) for key, value in kwargs.items()}
        if call == "call_function":
            made.append(graph.call_function(FUNCTIONS[target], given, named))
        elif call == "call_method" and target in METHODS:
            made.append(graph.call_method(target, given, named))
        elif call == "call_module" and isinstance(parts[target], nn.Module):
            made.append(graph.call_module(target, given, named))
        elif call == "get_attr" and isinstance(parts[target], nn.Parameter):
            made.append(graph.get_attr(target))
        else:
            raise ValueError(f"a step calls {call} {target!r}")
    graph.output(made[-1])
    return fx.GraphModule(parts, graph)


def _meant(value: Any, made: list[Any]) -> Any:
    if isinstance(value, list):
        return tuple(_meant(part, made) for part in value)
    if isinstance(value, dict):
        (number,) = value.values() if list(value) == ["step"] else (None,)
        if type(number) is not int or not 0 <= number < len(made):
            raise ValueError(f"a step takes {value!r}")
        return made[number]
    return value


def _name(name: Any) -> str:
    """Names become a part of generated code: plain ones, and none that a module has itself."""
    from torch import fx

    plain = isinstance(name, str) and name.isidentifier() and name.isascii() and not iskeyword(name)
    if not plain or name.startswith("_") or hasattr(fx.GraphModule(nn.Module(), fx.Graph()), name):
        raise ValueError(f"a part of a network is called {name!r}")
    return str(name)
