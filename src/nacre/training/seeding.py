"""Randomness that depends on names only: an epoch draws the same numbers whether or not the run was interrupted."""

from __future__ import annotations

import contextlib
import hashlib
import operator
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from nacre.errors import NacreError


def checked_seed(seed: Any) -> int:
    try:
        return int(operator.index(seed))  # numpy's too: a number is the same seed whatever its type
    except TypeError as error:
        raise NacreError(f"seed is a whole number; got {seed!r:.80}") from error


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
    with torch.random.fork_rng(**_started_accelerators()):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(drawn)
            np.random.set_state(numpy_drawn)


def _started_accelerators() -> dict[str, Any]:
    """The devices whose generators may have been used. To ask the others would start them, which a process that reads
    data must not."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or (accelerator.type == "cuda" and not torch.cuda.is_initialized()):
        return {"devices": []}
    # earlier versions of torch take any device for a CUDA one unless told
    return {"devices": list(range(torch.accelerator.device_count())), "device_type": accelerator.type}


def generator(*parts: object) -> torch.Generator:
    return torch.Generator().manual_seed(derive(*parts))
