"""The processes that learn together, and the device of this one. A single process is the case of one."""

from __future__ import annotations

import atexit
import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nacre.errors import NacreError


@dataclass(frozen=True)
class Processes:
    """Who learns: `count` processes, of which this is number `rank`, on `device`.

    Gradients are averaged after the backward pass instead of wrapping the network: a method may then run several
    passes a step, mask or project what is averaged, and use penalties outside the forward pass.
    """

    device: torch.device
    count: int = 1
    rank: int = 0

    @staticmethod
    def current(device: str | torch.device = "auto") -> Processes:
        """As torchrun or accelerate started them; one process otherwise."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not (dist.is_available() and dist.is_initialized()):
            return Processes(_device(device))
        from accelerate import PartialState  # slow to import, and one process does not need it

        if not dist.is_initialized():
            # its functions take the group there is as their default when it is imported, as optimisers do later:
            # imported now they hold none, and the group ends when it is left
            importlib.import_module("torch.distributed.nn.functional")
            atexit.register(_leave)
        state = PartialState(cpu=str(device) == "cpu" or not torch.cuda.is_available())
        chosen = state.device if str(device) == "auto" else _device(device)
        return Processes(chosen, state.num_processes, state.process_index)

    @property
    def main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        self.average(parameter.grad for parameter in parameters if parameter.grad is not None)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Makes each tensor its mean over the processes, in place; all must have the same ones."""
        tensors = list(tensors)
        if self.count > 1 and tensors:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            dist.all_reduce(flat)
            flat /= self.count
            parts = flat.split([tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def add(self, totals: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.count > 1:
            dist.all_reduce(totals)
        return totals

    def align(self, module: nn.Module) -> None:
        """Gives every process the tensors of the first."""
        if self.count > 1:
            with torch.no_grad():
                for tensor in (*module.parameters(), *module.buffers()):
                    if tensor.numel():
                        same = tensor.detach().contiguous()
                        dist.broadcast(same, 0)
                        tensor.copy_(same)

    def agree(self, value: Any) -> Any:
        """The value that the first process has."""
        if self.count == 1:
            return value
        said = [value]
        dist.broadcast_object_list(said, 0, device=self.device)
        return said[0]

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()


def _leave() -> None:
    """Ends the group that this process has joined. Its threads drop tensors that Python holds; one that does so while
    the interpreter ends would abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _device(device: str | torch.device) -> torch.device:
    if str(device) != "auto":
        try:
            found = torch.empty(0, device=device).device
        except (RuntimeError, AssertionError, TypeError) as error:
            raise NacreError(f"device {str(device)!r} cannot be used here: {error}") from error
        if found.type == "meta":
            raise NacreError("device 'meta' holds no numbers: nothing can be learnt there")
        return found
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
