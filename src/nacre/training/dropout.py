"""Dropout on a CPU in a fraction of the time: torch draws one number at a time there, this sixteen bits an element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_LEVELS = 1 << 16


def quick_dropout(device: torch.device) -> AbstractContextManager[object]:
    """In this block `F.dropout` (that of `nn.Dropout` too) draws quickly; devices but the CPU are quick already.

    The two dropouts of conv5 take a tenth of its bfloat16 step the usual way (docs/results.md).
    """
    return _QuickDropout() if device.type == "cpu" else nullcontext()


class _QuickDropout(TorchFunctionMode):
    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is F.dropout:
            return _dropout(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    dropped = round(p * _LEVELS)
    if not training or inplace or not 0 < dropped < _LEVELS:
        return F.dropout(input, p, training, inplace)
    drawn = torch.empty((input.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = drawn[: input.numel()] >= dropped - _LEVELS // 2
    mask = kept.to(input.dtype).mul_(_LEVELS / (_LEVELS - dropped))  # by the share really kept: the mean stays exact
    return input * _laid_out(mask, input)


def _laid_out(flat: Tensor, like: Tensor) -> Tensor:
    """As many numbers in the order of a tensor's memory, so that multiplying runs straight through both."""
    if like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
        count, channels, height, width = like.shape
        return flat.view(count, height, width, channels).permute(0, 3, 1, 2)
    return flat.view(like.shape)
