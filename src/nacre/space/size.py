"""How large what has been learnt is: every number needed at inference, at 4 bytes or what it is stored in."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from torch import nn

from nacre.errors import NacreError
from nacre.lowrank import Dtype
from nacre.space.encodings import saved
from nacre.space.layout import Kinds, Layout, kind_of, stored_tensors

BYTES_A_NUMBER = 4


@dataclass(frozen=True)
class Size:
    """Counts of numbers, by what they are for, and the bytes they take in files.

    >>> Size(factors=250_000).megabytes, Size(weights=250_000, mask_bits=8_000_000).megabytes
    (1.0, 2.0)
    """

    factors: int = 0
    heads: int = 0
    private: int = 0  # norm tensors, biases
    frozen: int = 0  # tensors shared by all tasks
    extra: int = 0
    identifiers: int = 0  # one rank a layer and task
    base: int = 0  # a dense base, if there is one
    saved: int = 0  # bytes by which factors and heads in fewer bits take less than 4 a number
    weights: int = 0  # dense weights that the tasks have in common
    mask_bits: int = 0  # which weights are a task's, one bit a weight
    # what is kept to learn the next task, and no answer needs
    learning: int = 0  # numbers: Fisher diagonals, scores
    images: int = 0  # examples of earlier tasks
    image_bytes: int = 0
    disk: int | None = None  # bytes; None where nothing has been saved

    @property
    def numbers(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self) if part.name not in _NO_NUMBERS)

    @property
    def megabytes(self) -> float:
        return self.megabytes_without_masks + self.mask_bits / 8 / 1e6

    @property
    def megabytes_without_masks(self) -> float:
        """As papers count that take masks to cost nothing."""
        return self.bytes / 1e6

    @property
    def megabytes_at_4_bytes(self) -> float:
        """As papers count: 4 bytes a number, in however few bits it is stored."""
        return self.megabytes + self.saved / 1e6

    @property
    def bytes(self) -> int:
        """4 a number, less what storing some in fewer bits saves."""
        return self.numbers * BYTES_A_NUMBER - self.saved

    def kept(self) -> dict[str, float]:
        """What stands beside the megabytes in a record: sizes that count otherwise, or count something else."""
        return {
            "megabytes_without_masks": self.megabytes_without_masks,
            "megabytes_at_4_bytes": self.megabytes_at_4_bytes,
            "learning_megabytes": self.learning * BYTES_A_NUMBER / 1e6,
            "images_kept": self.images,
            "image_megabytes": self.image_bytes / 1e6,
        }


_NO_NUMBERS = ("saved", "mask_bits", "learning", "images", "image_bytes", "disk")


def budget_in_share(layout: Layout, head: nn.Module, share: float, head_dtype: Dtype = "float32") -> int:
    """Bytes that a task's factors may take so that all it adds is at most a share of a dense network with this head.

    The dense network counts at 4 bytes a number, the task's own head at what it is stored in.
    """
    tensors = {f"head/{name}": tensor for name, tensor in stored_tensors(head).items()}
    own = _count({name: kind_of(tensor) for name, tensor in tensors.items()}) + _count(layout.private)
    dense = own + _count(layout.weights | layout.frozen | layout.constant)
    less = saved(tensors, {"head": head_dtype}).get("head", 0)
    allowed = BYTES_A_NUMBER * int(share * dense)
    beside = BYTES_A_NUMBER * (own + len(layout.layers)) - less  # an identifier is a number for each layer
    if allowed < beside:
        raise NacreError(
            f"a share of {share:g} of a dense network is {allowed:,} bytes, but a task's head, norm tensors, biases "
            f"and identifier alone are {beside:,}: allow a larger share"
        )
    return allowed - beside


def _count(kinds: Kinds) -> int:
    return sum(math.prod(shape) for _, shape in kinds.values())
