"""A layer run as two smaller ones: where its weight is of low rank, that takes fewer multiplications."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nacre.lowrank.factors import Factors, matrix_shape
from nacre.lowrank.truncation import prepare

_CONVOLUTIONS: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED: tuple[type[nn.Module], ...] = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NEGLIGIBLE = 1e-6  # of the largest singular value: what float32 does not tell from 0


def splits(module: nn.Module) -> bool:
    """Whether a layer is of a kind that can be run as two; a subclass may use its weight in ways of its own."""
    return type(module) in (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)


def pays(module: nn.Module, rank: int, share: float = 1.0) -> bool:
    """Whether two layers take less than this share of one's multiplications, at every place that they are applied to.

    >>> pays(nn.Conv2d(64, 64, 3), 57), pays(nn.Conv2d(64, 64, 3), 58)
    (True, False)
    """
    out, rest = matrix_shape(_weight(module).shape)
    groups = getattr(module, "groups", 1)
    return rank > 0 and rank * (out + groups * rest) < share * out * rest


def least(factors: Factors) -> Factors:
    """The same matrix in the fewest columns that float32 needs: tasks side by side may span less than they add up to.

    >>> one = Factors(torch.ones(3, 2), torch.ones(2), torch.ones(4, 2))
    >>> least(one).rank
    1
    """
    exact = prepare(factors)
    rank = int((exact.s > _NEGLIGIBLE * exact.s[:1]).sum()) if exact.rank else 0
    return Factors(exact.U[:, :rank], exact.s[:rank], exact.V[:, :rank])


def split(module: nn.Module, factors: Factors) -> nn.Sequential:
    """Two layers that compute what `module` does with the weight U diag(s) V^T.

    A convolution becomes one of its own size with as many outputs as the rank, and one of size 1 x 1; a transposed
    one the other way round; a linear layer two linear layers.
    """
    if isinstance(module, nn.Linear):
        first, second = _linear(factors.V.T), _linear(factors.U * factors.s)
    elif isinstance(module, _TRANSPOSED):
        first, second = _transposed(module, factors)
    else:
        first, second = _convolution(module, factors)
    if isinstance(module.bias, Tensor):
        second.bias = _parameter(module.bias)
    return nn.Sequential(first, second).train(module.training)


def _linear(weight: Tensor) -> nn.Module:
    return _with(nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta"), weight)


def _convolution(module: Any, factors: Factors) -> tuple[nn.Module, nn.Module]:
    groups, rank, ones = module.groups, factors.rank, [1] * len(module.kernel_size)
    kind: type[Any] = type(module)
    first = kind(
        module.in_channels,
        groups * rank,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        groups,
        bias=False,
        padding_mode=module.padding_mode,
        device="meta",
    )
    second = kind(groups * rank, module.out_channels, 1, groups=groups, bias=False, device="meta")
    columns = factors.V.T.reshape(rank, *module.weight.shape[1:])
    # every group sees its own channels through the same columns
    return _with(first, columns.repeat(groups, *(1 for _ in columns.shape[1:]))), _with(
        second, (factors.U * factors.s).view(module.out_channels, rank, *ones)
    )


def _transposed(module: Any, factors: Factors) -> tuple[nn.Module, nn.Module]:
    groups, rank, ones = module.groups, factors.rank, [1] * len(module.kernel_size)
    plain: type[Any] = _CONVOLUTIONS[_TRANSPOSED.index(type(module))]
    first = plain(module.in_channels, groups * rank, 1, groups=groups, bias=False, device="meta")
    second = type(module)(
        groups * rank,
        module.out_channels,
        module.kernel_size,
        module.stride,
        module.padding,
        module.output_padding,
        groups,
        bias=False,
        dilation=module.dilation,
        padding_mode=module.padding_mode,
        device="meta",
    )
    rows = (factors.U * factors.s).view(groups, -1, rank).transpose(1, 2)  # [groups, rank, in / groups]
    columns = factors.V.T.reshape(rank, *module.weight.shape[1:])
    return _with(first, rows.reshape(groups * rank, -1, *ones)), _with(
        second, columns.repeat(groups, *(1 for _ in columns.shape[1:]))
    )


def _with(layer: nn.Module, weight: Tensor) -> nn.Module:
    layer.weight = _parameter(weight)
    return layer


def _parameter(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone(memory_format=torch.contiguous_format))


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight
