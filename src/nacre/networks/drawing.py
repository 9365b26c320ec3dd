"""Networks whose layers stand in no simple row, drawn step by step as a torch.fx.GraphModule of torch's own layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from torch import fx


class Drawing:
    """Collects layers and the steps between them; what comes out holds no class of nacre's."""

    def __init__(self) -> None:
        from torch import fx  # slow to import, and conv5 does without

        self._graph = fx.Graph()
        self._parts: dict[str, Any] = {}
        self.input = self._graph.placeholder("x")

    def layer(self, name: str, module: nn.Module, x: fx.Node) -> fx.Node:
        """A layer applied to the result of a step."""
        self._parts[name] = module
        return self._graph.call_module(name, (x,))

    def parameter(self, name: str, parameter: nn.Parameter) -> fx.Node:
        """A tensor that is learnt and belongs to no layer."""
        self._parts[name] = parameter
        return self._graph.get_attr(name)

    def function(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        return self._graph.call_function(function, args, kwargs)

    def method(self, name: str, x: fx.Node, *args: Any) -> fx.Node:
        return self._graph.call_method(name, (x, *args))

    def finish(self, output: fx.Node) -> fx.GraphModule:
        from torch import fx

        self._graph.output(output)
        return fx.GraphModule(self._parts, self._graph)
