"""Randomness that depends on names only: an epoch draws the same numbers whether or not the run was interrupted."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def derive(*parts: object) -> int:
    """A seed from whatever names the draw.

    >>> derive(0, "animals", 1) == derive(0, "animals", 1) != derive(0, "animals", 2)
    True
    """
    digest = hashlib.sha256("\x1f".join(map(repr, parts)).encode()).digest()
    return int.from_bytes(digest[:7], "little")


@contextlib.contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Runs a block with torch, numpy and random seeded, and puts their states back afterwards."""
    seed = derive(*parts)
    drawn, numpy_drawn = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(_started_accelerators()):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(drawn)
            np.random.set_state(numpy_drawn)


def _started_accelerators() -> list[int]:
    """The devices whose generators may have been used. To ask the others would start them, which a process that reads
    data must not."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or (accelerator.type == "cuda" and not torch.cuda.is_initialized()):
        return []
    return list(range(torch.accelerator.device_count()))


def generator(*parts: object) -> torch.Generator:
    return torch.Generator().manual_seed(derive(*parts))
