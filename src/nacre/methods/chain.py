"""A chain of layers: which weights stand between which units, for methods that give units to tasks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from nacre.errors import NacreError

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYERS = (nn.Linear, *CONVOLUTIONS)
NORMS = (_BatchNorm, _InstanceNorm)
# what leaves every unit's numbers to themselves, and so may stand between two layers
_EACH_ALONE = (
    *NORMS, nn.Flatten, nn.Identity,
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid,
)  # fmt: skip


class Link(NamedTuple):
    """A layer of a chain: its weight goes from the units of the layer before to its own."""

    weight: str  # the weight's name
    units: int  # rows of the weight
    before: str | None  # the weight of the layer before; None: this one reads the inputs
    each: int = 1  # columns that read one unit of the layer before: its places, where these were flattened

    def columns(self, units: Tensor, dimensions: int) -> Tensor:
        """Numbers of the units before, one a column of this layer's weight. [1, columns, 1, ...]"""
        return units.repeat_interleave(self.each).view(1, -1, *[1] * (dimensions - 2))


def chain(backbone: nn.Module) -> tuple[Link, ...]:
    """The layers of a backbone in order; refused where it is no chain.

    >>> chain(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5)))
    (Link(weight='0.weight', units=8, before=None, each=1), Link(weight='3.weight', units=5, before='0.weight', each=9))
    """
    links: list[Link] = []
    last: nn.Module | None = None
    flat = True
    for name, module in _parts(backbone):
        convolves = isinstance(module, CONVOLUTIONS) and module.groups == 1 and not isinstance(last, nn.Linear)
        if (isinstance(module, nn.Linear) and flat) or (convolves and (last is None or not flat)):
            links.append(_link(f"{name}.weight".lstrip("."), module, links[-1] if links else None, last))
            last, flat = module, not convolves
        elif isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1:
            flat = True
        elif isinstance(module, nn.Flatten) or not isinstance(module, _EACH_ALONE):
            raise _no_chain(f"{name or 'it'} is {module}")
    return tuple(links)


def _link(weight: str, module: Any, before: Link | None, last: nn.Module | None) -> Link:
    """before, last: the layer before."""
    units, columns = module.weight.shape[:2]
    if before is None:
        return Link(weight, units, None)
    each, rest = divmod(columns, before.units)
    flattened = isinstance(last, CONVOLUTIONS) and isinstance(module, nn.Linear)
    if rest or (each > 1 and not flattened):
        raise _no_chain(f"{weight} has {columns} columns for the {before.units} units before")
    return Link(weight, units, before.weight, each)


def head_link(backbone: nn.Module, head: nn.Module) -> Link:
    """The layer of a head that reads the features, as one more of the chain."""
    last = [module for _, module in _parts(backbone) if isinstance(module, LAYERS)][-1]
    name, module = first_linear(head)
    return _link(f"{name}.weight".lstrip("."), module, chain(backbone)[-1], last)


def _no_chain(why: str) -> NacreError:
    return NacreError(
        "this method gives units to tasks, so it needs a chain: an nn.Sequential of Linear layers and convolutions "
        "without groups, with what treats each unit alone between them (activations, pools, dropout, batch norm, "
        f"Flatten); {why}"
    )


def _parts(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """What a Sequential is made of, those inside of it too."""
    if not isinstance(module, nn.Sequential):
        yield name, module
        return
    for key, part in module._modules.items():  # named_children() leaves out what stands there twice
        assert part is not None
        yield from _parts(part, f"{name}.{key}".lstrip("."))


def check_chain(backbone: nn.Module, trained: Sequence[str], features: Any) -> None:
    """Refuses what is no chain, or trains other weights than its layers'."""
    names = [link.weight for link in chain(backbone)]
    if sorted(names) != sorted(trained):
        raise _no_chain(f"its layers have the weights {', '.join(names)}, trained are {', '.join(trained)}")
    if features is not None:
        raise _no_chain(f"features={features!r} may mix them")


def first_linear(head: nn.Module) -> tuple[str, nn.Linear]:
    """The layer of a head that reads the features, and its name; refused where another part comes before it."""
    for name, module in _parts(head):
        if isinstance(module, nn.Linear):
            return name, module
        if not isinstance(module, nn.Identity | nn.Flatten | nn.Dropout):
            break
    raise NacreError(f"this method needs a head that begins with a Linear layer; got {head}")


def narrowed(backbone: nn.Module, units: Sequence[int]) -> nn.Sequential:
    """A chain like a backbone's, freshly drawn, with so many units in its layers.

    >>> narrowed(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)), [2, 3])
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
      (1): ReLU()
      (2): Linear(in_features=2, out_features=3, bias=True)
    )
    """
    left = iter(zip(chain(backbone), units, strict=True))
    old, new = 1, 1  # units of the last layer
    parts: list[nn.Module] = []
    for _, module in _parts(backbone):
        if isinstance(module, LAYERS):
            link, wanted = next(left)
            columns = module.weight.shape[1] // old * new
            parts.append(_layer(module, columns, wanted))
            old, new = link.units, wanted
        elif isinstance(module, NORMS):
            parts.append(_norm(module, module.num_features // old * new))
        else:
            parts.append(copy.deepcopy(module))
    return nn.Sequential(*parts)


def _layer(like: Any, columns: int, units: int) -> nn.Module:
    bias = like.bias is not None
    if isinstance(like, nn.Linear):
        return nn.Linear(columns, units, bias)
    places = (like.kernel_size, like.stride, like.padding, like.dilation)
    made: nn.Module = type(like)(columns, units, *places, 1, bias, like.padding_mode)
    return made


def _norm(like: Any, units: int) -> nn.Module:
    made: nn.Module = type(like)(units, like.eps, like.momentum, like.affine, like.track_running_stats)
    return made
