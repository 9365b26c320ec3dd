"""Holding numbers of a network still while others of the same tensor are trained."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.training.step import Hook

Masks = Mapping[str, Tensor]


def hold(parameters: Mapping[str, nn.Parameter], where: Masks) -> Hook:
    """An `after_step` for `fit`: the numbers that a mask names stay, bit for bit, what they are now.

    They are put back after the step, and not only kept without gradient: weight decay and momentum move numbers that
    have none.
    """
    held = [(parameter, where[name].to(parameter.device), parameter.detach().clone())
            for name, parameter in parameters.items() if name in where]  # fmt: skip

    @torch.no_grad()
    def put_back() -> None:
        for parameter, still, value in held:
            parameter.copy_(torch.where(still, value, parameter))

    return put_back


def largest(values: Tensor, among: Tensor, count: int) -> Tensor:
    """The mask of the `count` numbers of largest magnitude among those that a mask names; the first ones of equals.

    >>> largest(torch.tensor([3.0, -4.0, 1.0, 9.0]), torch.tensor([True, True, True, False]), 2)
    tensor([ True,  True, False, False])
    """
    if not 0 <= count <= int(among.sum()):
        raise NacreError(f"{count} numbers are to be chosen among {int(among.sum())}")
    magnitude = torch.where(among, values.detach().abs(), -1.0).flatten()
    chosen = torch.zeros_like(among).flatten()
    chosen[magnitude.argsort(descending=True, stable=True)[:count]] = True
    return chosen.view_as(among)


@torch.no_grad()
def prune(parameters: Mapping[str, nn.Parameter], taken: Masks, share: float) -> dict[str, Tensor]:
    """Sets a share of every parameter's numbers that are not taken to 0, the smallest of them; which others are kept.

    >>> weight = nn.Parameter(torch.tensor([3.0, -4.0, 1.0, 9.0]))
    >>> prune({"w": weight}, {"w": torch.tensor([False, False, False, True])}, 2 / 3)
    {'w': tensor([False,  True, False, False])}
    >>> weight.tolist()
    [0.0, -4.0, 0.0, 9.0]
    """
    kept = {}
    for name, weight in parameters.items():
        free = ~taken[name].to(weight.device)
        count = int(free.sum())
        mask = largest(weight, free, count - round(share * count))
        weight[free & ~mask] = 0.0
        kept[name] = mask.cpu()
    return kept
