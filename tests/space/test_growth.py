"""A training step is the same work in the same memory, however many tasks came before."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from nacre import SharedSpace, compress, hoyer, orthogonality
from nacre.space import Network

TASKS = 12


class Operations(TorchDispatchMode):
    """Every operation that torch runs, with the shapes that come out of it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: list[tuple[str, tuple[torch.Size, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        tensors = made if isinstance(made, tuple | list) else [made]
        self.ran.append((str(func), tuple(part.shape for part in tensors if isinstance(part, Tensor))))
        return made


def step(network: Network) -> tuple[list[tuple[str, tuple[torch.Size, ...]]], int, int]:
    """One step: what ran, the bytes kept for the backward pass, the bytes of the network."""
    x, y = torch.randn(8, 3, 8, 8), torch.arange(8) % 3
    optimizer = torch.optim.Adam(network.parameters())
    kept = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    with Operations() as operations:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = F.cross_entropy(network(x), y) + orthogonality(network) + 0.1 * hoyer(network)
        loss.backward()
        optimizer.step()
    own = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    return operations.ran, kept, own


def test_a_training_step_does_the_same_in_the_same_memory_after_any_number_of_tasks() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.Flatten()]
        space = SharedSpace(nn.Sequential(*parts, nn.Linear(128, 6)))
        steps = []
        for task in range(TASKS):
            network = space.expand(nn.Linear(6, 3))
            steps.append(step(network))
            compress(network, rank=1 + task % 3)
            space.append(f"task {task}", network)
    ran, kept, own = steps[1]
    assert len(ran) > 50
    assert kept > 0
    assert own > 0
    assert all(later == steps[1] for later in steps[2:])
