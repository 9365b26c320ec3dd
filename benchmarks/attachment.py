"""Three ways to put a low-rank residual on a layer, compared: parametrization, functional_call, a layer class.

    python benchmarks/attachment.py

Step time beside the dense network's, and what else a user does with a network: deepcopy, torch.compile,
torch.export, gradient checkpointing, packed attention weights.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import nacre
from nacre.lowrank import Start, factors, find_layers
from nacre.lowrank.residual import Residual, attach
from speed import BATCH, CLASSES, in_turn, ratio


def backbone() -> nn.Module:
    return nn.Sequential(nacre.networks.conv5(), nn.Linear(1024, CLASSES))


def parametrized(network: nn.Module) -> nn.Module:
    """What nacre does."""
    for layer in find_layers(network, exclude=is_head).values():
        attach(network, layer, *_parts(network.get_parameter(layer.tensors[0])))
    return network


class Functional(nn.Module):
    """The backbone stays as it is; its weights are passed in for each forward."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.residuals = network, nn.ModuleDict()
        for layer in find_layers(network, exclude=is_head).values():
            shared, start = _parts(network.get_parameter(layer.tensors[0]))
            module = network.get_submodule(layer.name)
            del module.weight
            module.register_buffer("weight", shared)
            self.residuals[layer.name.replace(".", "/")] = Residual(layer.name, start)

    def forward(self, x: Tensor) -> Any:
        weights = {}
        for name, residual in self.residuals.items():
            place = f"{name.replace('/', '.')}.weight"
            weights[place] = residual(self.network.get_buffer(place))
        return torch.func.functional_call(self.network, weights, (x,))


class Conv2d(nn.Conv2d):
    """A look-alike of one layer class; each other class would need its own."""

    residual: Residual

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._conv_forward(x, self.residual(self.weight), self.bias)
        return out


def classes(network: nn.Module) -> nn.Module:
    for layer in find_layers(network, exclude=is_head).values():
        module = network.get_submodule(layer.name)
        shared, start = _parts(network.get_parameter(layer.tensors[0]))
        del module.weight
        module.register_buffer("weight", shared)
        module.residual = Residual(layer.name, start)
        module.__class__ = Conv2d
    return network


def is_head(_: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Linear)


def _parts(weight: Tensor) -> tuple[Tensor, Any]:
    return torch.zeros_like(weight), Start().first_factors(weight)


def step_of(network: nn.Module, precision: torch.dtype | None) -> Callable[[], None]:
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(CLASSES, (BATCH,))
    if precision is not None:
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
            out = network(x)
        loss = F.cross_entropy(out.float(), y)
        if factors(network):
            loss = loss + nacre.orthogonality(network) + 0.1 * nacre.hoyer(network)
        loss.backward()
        optimizer.step()

    return step


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "parametrization": parametrized,
    "functional_call": Functional,
    "layer class": classes,
}


def tried(action: Callable[[], object]) -> str:
    begun = time.perf_counter()
    try:
        wrong = action()
    except Exception as error:
        return f"fails: {type(error).__name__}"
    return f"wrong: {wrong}" if wrong else f"works, {time.perf_counter() - begun:.1f} s"


def copies(way: Callable[[nn.Module], nn.Module]) -> object:
    """A copy that is trained leaves the original alone."""
    network = way(backbone()).eval()
    x = torch.randn(2, 3, 32, 32)
    before = network(x)
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(1)
    return None if torch.equal(before, network(x)) and not torch.equal(before, copied(x)) else "shared"


def compiles(way: Callable[[nn.Module], nn.Module]) -> object:
    network = way(backbone()).eval()
    x = torch.randn(2, 3, 32, 32)
    return None if torch.allclose(torch.compile(network)(x), network(x), atol=1e-4) else "differs"


def exports(way: Callable[[nn.Module], nn.Module]) -> object:
    network = way(backbone()).eval()
    x = torch.randn(2, 3, 32, 32)
    return None if torch.allclose(torch.export.export(network, (x,)).module()(x), network(x), atol=1e-4) else "differs"


class Checkpointed(nn.Module):
    """A backbone that computes its activations again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nacre.networks.conv5().eval()
        self.last = nn.Linear(1024, CLASSES)
        self.again = False

    def forward(self, x: Tensor) -> Any:
        features = checkpoint(self.body, x, use_reentrant=False) if self.again else self.body(x)
        return self.last(features)


def recomputes(way: Callable[[nn.Module], nn.Module]) -> object:
    """Gradients with checkpointing are those without."""
    network = way(Checkpointed())
    body = next(module for module in network.modules() if isinstance(module, Checkpointed))
    found = []
    for again in (False, True):
        body.again = again
        network.zero_grad()
        network(torch.ones(2, 3, 32, 32)).square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    return None if torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-5) else "other gradients, without a warning"


def main() -> None:
    compiles(lambda network: network)  # what the first compilation costs once
    print("| | step / dense, float32 | bfloat16 | deepcopy | torch.compile | torch.export | gradient checkpointing |")
    print("|---|---|---|---|---|---|---|")
    ratios: dict[str, list[str]] = {name: [] for name in WAYS}
    for precision in (None, torch.bfloat16):
        torch.manual_seed(0)
        steps = {"dense": step_of(backbone(), precision)}
        steps |= {name: step_of(way(backbone()), precision) for name, way in WAYS.items()}
        times = in_turn(steps, 40)
        for name in WAYS:
            ratios[name].append(f"{ratio(times, name, 'dense'):.3f}")
    for name, way in WAYS.items():
        rest = [tried(partial(check, way)) for check in (copies, compiles, exports, recomputes)]
        print(f"| {name} | {' | '.join([*ratios[name], *rest])} |")


if __name__ == "__main__":
    main()
