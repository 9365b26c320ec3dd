"""Quick dropout against what dropout is: zeros at rate p, the rest scaled so that the mean stays."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nacre.training.dropout import quick_dropout

CPU = torch.device("cpu")


@pytest.mark.parametrize("p", [0.15, 0.5, 0.9])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_share_dropped_is_p_and_the_rest_is_scaled(p: float, channels_last: bool) -> None:
    torch.manual_seed(0)
    x = torch.ones(40, 16, 25, 25)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    with quick_dropout(CPU):
        out = nn.Dropout(p)(x)
    dropped = (out == 0).double().mean().item()
    assert abs(dropped - p) < 5 * (p * (1 - p) / x.numel()) ** 0.5 + 2**-16
    kept = out[out != 0]
    assert kept.unique().numel() == 1
    assert kept[0].item() == pytest.approx(1 / (1 - p), rel=1e-3)
    assert out.stride() == x.stride()


def test_elements_are_dropped_independently_of_their_neighbours() -> None:
    torch.manual_seed(0)
    with quick_dropout(CPU):
        dropped = F.dropout(torch.ones(1 << 20), 0.5) == 0
    for shift in (1, 2, 3, 4, 8):  # four elements share one drawn number
        both = (dropped[:-shift] & dropped[shift:]).double().mean().item()
        assert abs(both - 0.25) < 5 * (0.25 * 0.75 / (1 << 20)) ** 0.5


def test_the_gradient_is_the_mask() -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 9, requires_grad=True)
    with quick_dropout(CPU):
        out = F.dropout(x, 0.3)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal((x * x.grad).detach(), out.detach())


def test_evaluation_and_the_extremes_are_torchs_own() -> None:
    x = torch.randn(5, 5)
    with quick_dropout(CPU):
        assert torch.equal(nn.Dropout(0.5).eval()(x), x)
        assert torch.equal(F.dropout(x, 0.0), x)
        assert torch.equal(F.dropout(x, 1.0), torch.zeros(5, 5))


def test_the_same_seed_drops_the_same_elements() -> None:
    outs = []
    for _ in range(2):
        torch.manual_seed(3)
        with quick_dropout(CPU):
            outs.append(F.dropout(torch.ones(1001), 0.4))
    assert torch.equal(*outs)


def test_outside_the_block_dropout_is_as_before() -> None:
    torch.manual_seed(0)
    before = F.dropout(torch.ones(100), 0.5)
    with quick_dropout(CPU):
        F.dropout(torch.ones(100), 0.5)
    torch.manual_seed(0)
    assert torch.equal(before, F.dropout(torch.ones(100), 0.5))
