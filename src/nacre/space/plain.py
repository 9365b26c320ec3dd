"""A backbone and a head as one plain torch module: nothing of nacre's inside."""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.trees import Tree

if TYPE_CHECKING:
    from torch import fx

Features = str | int | Callable[[Any], Tensor] | None
Inputs = dict[str, Any] | None  # {"shape", "dtype"} | {"keys": {name: Inputs}} | {"items": [Inputs]}


def pick(features: Features, output: Any) -> Any:
    """What `features=` names in a backbone's output: a key, a position, or what a function makes of it."""
    if features is None:
        return output
    try:
        if isinstance(features, str) and isinstance(output, Tensor):
            raise TypeError("a tensor has no keys")
        return output[features] if isinstance(features, str | int) else features(output)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise NacreError(f"features={features!r} picks nothing from the backbone's {type(output).__name__}") from error


def check_choice(features: Features) -> None:
    """Refuses a `features=` that would not fit into a plain network: one that learns, or cannot be written down."""
    if features is not None and not isinstance(features, str | int) and not callable(features):
        raise NacreError(f"features= is a key, a position or a function; got {features!r:.80}")
    if isinstance(features, nn.Module):
        if features.state_dict():
            raise NacreError(
                f"features={type(features).__name__} has tensors of its own, which no task would keep: "
                "make it a part of the backbone"
            )
    elif callable(features):
        from torch import fx

        try:
            _trace(features, fx.Graph().placeholder("output"))
        except Exception as error:  # whatever a user's function raises
            raise NacreError(
                f"features={features!r} cannot be written into a plain network ({error}): give an nn.Module instead"
            ) from error


def describe_inputs(tree: Tree) -> Inputs:
    """The shape of one example, as JSON.

    >>> import torch
    >>> describe_inputs(torch.zeros(8, 3, 32, 32))
    {'shape': [3, 32, 32], 'dtype': 'float32'}
    """
    if isinstance(tree, Tensor):
        return {"shape": list(tree.shape[1:]), "dtype": str(tree.dtype).removeprefix("torch.")}
    if isinstance(tree, Mapping):
        return {"keys": {name: describe_inputs(value) for name, value in tree.items()}}
    return {"items": [describe_inputs(value) for value in tree]}


def example_inputs(inputs: Inputs, batch: int) -> Tree:
    """A batch of such inputs: numbers from -1 to 1, ones where they are whole.

    >>> example_inputs({"shape": [3], "dtype": "int64"}, 2)
    tensor([[1, 1, 1],
            [1, 1, 1]])
    """
    if inputs is None:
        raise NacreError("nobody knows what the inputs of this network look like: it has never seen any")
    if "keys" in inputs:
        return {name: example_inputs(part, batch) for name, part in inputs["keys"].items()}
    if "items" in inputs:
        return [example_inputs(part, batch) for part in inputs["items"]]
    shape, dtype = (batch, *inputs["shape"]), getattr(torch, inputs["dtype"])
    if not dtype.is_floating_point:
        return torch.ones(shape, dtype=dtype)
    return torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=dtype).view(shape)


def check_inputs(inputs: Any) -> None:
    """Refuses what `describe_inputs` cannot have given. Keys become arguments in generated code: names, no more."""
    if inputs is None:
        return
    if "keys" in inputs:
        for name in inputs["keys"]:
            if not name.isidentifier() or iskeyword(name):
                raise ValueError(f"an input is called {name!r}, which no argument can be")
    elif not isinstance(inputs["items"] if "items" in inputs else inputs["shape"], list):
        raise ValueError(f"the inputs are described as {inputs!r}")


def compose(
    backbone: nn.Module, features: Features, head: nn.Module, inputs: Inputs, beside: nn.Module | None = None
) -> nn.Module:
    """head(features(backbone(inputs))) in eval mode: a Sequential, or where a call is more than that a GraphModule.

    beside: reads the same inputs; the head reads its features after the backbone's.
    """
    if features is None and beside is None and (inputs is None or "shape" in inputs):
        return nn.Sequential(OrderedDict(backbone=backbone, head=head)).eval()
    return _graph(backbone, features, head, inputs, beside).eval()


def _graph(
    backbone: nn.Module, features: Features, head: nn.Module, inputs: Inputs, beside: nn.Module | None
) -> nn.Module:
    from torch import fx  # slow to import, and few networks need it

    graph = fx.Graph()
    given = graph.placeholder("inputs")
    args: tuple[Any, ...] = (given,)
    kwargs: dict[str, Any] = {}
    if inputs and "keys" in inputs:
        args, kwargs = (), {name: graph.call_function(operator.getitem, (given, name)) for name in inputs["keys"]}
    elif inputs and "items" in inputs:
        args = tuple(graph.call_function(operator.getitem, (given, i)) for i in range(len(inputs["items"])))
    parts = {"backbone": backbone, "head": head}
    output = graph.call_module("backbone", args, kwargs)
    if isinstance(features, str | int):
        output = graph.call_function(operator.getitem, (output, features))
    elif isinstance(features, nn.Module):
        parts["features"] = copy.deepcopy(features)
        output = graph.call_module("features", (output,))
    elif features is not None:
        output = _trace(features, output)
    if beside is not None:
        parts["beside"] = beside
        output = graph.call_function(torch.cat, ((output, graph.call_module("beside", args, kwargs)), 1))
    graph.output(graph.call_module("head", (output,)))
    return fx.GraphModule(parts, graph)


def _trace(features: Callable[[Any], Any], output: fx.Node) -> fx.Node:
    """Writes down what a function does with the output, so that the function itself is not needed any more."""
    from torch import fx

    traced = features(fx.Proxy(output, fx.proxy.GraphAppendingTracer(output.graph)))
    if not isinstance(traced, fx.Proxy):
        raise NacreError(f"features={features!r} must give a tensor made from the backbone's output, got {traced!r}")
    return traced.node
