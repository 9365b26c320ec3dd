"""Masks: which numbers of a tensor are meant, at one bit each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def pack(mask: Tensor) -> Tensor:
    """Eight to a byte.

    >>> pack(torch.tensor([[True, False], [False, True]]))
    tensor([144], dtype=torch.uint8)
    """
    return torch.from_numpy(np.packbits(mask.detach().to("cpu", torch.bool).numpy()))


def unpack(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask of a shape.

    >>> unpack(torch.tensor([144], dtype=torch.uint8), (2, 2))
    tensor([[ True, False],
            [False,  True]])
    """
    count = int(np.prod(shape))
    if packed.dtype != torch.uint8 or packed.shape != ((count + 7) // 8,):
        raise ValueError(f"a mask of {count} bits is not stored in {packed.dtype} {list(packed.shape)}")
    return torch.from_numpy(np.unpackbits(packed.numpy(), count=count).astype(bool)).view(*shape)
