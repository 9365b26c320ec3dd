"""Networks as data: a module built from torch's own layers, written as JSON and rebuilt without running a pickle."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from nacre.errors import NacreError
from nacre.networks.pretrained import build as build_pretrained
from nacre.networks.pretrained import describe as describe_pretrained
from nacre.space.container import canonical_json, parse_json
from nacre.space.graph import build_graph, describe_graph
from nacre.space.layout import kind_of, tensors

_CONV = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias")
_TRANSPOSED = (*_CONV, "output_padding", "padding_mode")
_BATCH_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")
_MAX_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_AVG_POOL = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

# every class that may be rebuilt, with the arguments that say all there is to say about it
KNOWN: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features", "bias"),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), (*_CONV, "padding_mode")),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _TRANSPOSED),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _BATCH_NORM),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _BATCH_NORM),
    nn.LayerNorm: ("normalized_shape", "eps", "elementwise_affine", "bias"),
    nn.GroupNorm: ("num_groups", "num_channels", "eps", "affine"),
    nn.RMSNorm: ("normalized_shape", "eps", "elementwise_affine"),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), _MAX_POOL),
    nn.AvgPool1d: ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"),
    **dict.fromkeys((nn.AvgPool2d, nn.AvgPool3d), (*_AVG_POOL, "divisor_override")),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), ("output_size",)),
    **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), ("output_size",)),
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), ("p", "inplace")),
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish, nn.Mish), ("inplace",)),
    nn.ELU: ("alpha", "inplace"),
    nn.LeakyReLU: ("negative_slope", "inplace"),
    nn.GELU: ("approximate",),
    nn.Softplus: ("beta", "threshold"),
    **dict.fromkeys((nn.Tanh, nn.Sigmoid, nn.Identity), ()),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax), ("dim",)),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Upsample: ("size", "scale_factor", "mode", "align_corners"),
    nn.Embedding: ("num_embeddings", "embedding_dim", "padding_idx"),
    nn.Sequential: (),
}
# options that hardly anybody sets: a module where one is on is not described
_UNSAID = ("max_norm", "scale_grad_by_freq", "sparse", "return_indices", "recompute_scale_factor")
_BY_NAME = {kind.__name__: kind for kind in KNOWN}
_DEPTH = 32


def describe(module: nn.Module) -> dict[str, Any] | None:
    """The module as JSON, or None where it holds anything but torch's own plain layers, in Sequentials or graphs.

    A model of transformers is described by its class and configuration.

    >>> describe(nn.Linear(2, 3))
    {'arguments': {'bias': True, 'in_features': 2, 'out_features': 3}, 'class': 'Linear'}
    """
    try:
        described = _describe(module) or describe_pretrained(module)
        if described is None:
            return None
        as_read: dict[str, Any] = parse_json(canonical_json(described).encode())
        rebuilt = tensors(build(as_read))
    except (NacreError, ValueError, TypeError):  # not as JSON, or not again
        return None
    present = tensors(module)
    tied = len({id(tensor) for tensor in present.values()}) < len(present)  # a description cannot say it
    same = {name: kind_of(value) for name, value in present.items()} == {
        name: kind_of(value) for name, value in rebuilt.items()
    }
    return as_read if same and not tied else None


def _describe(module: nn.Module) -> dict[str, Any] | None:
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return None
    arguments = KNOWN.get(type(module))
    if arguments is None:
        return describe_graph(module, _describe)
    if any(getattr(module, option, None) for option in _UNSAID):
        return None
    described: dict[str, Any] = {
        "class": type(module).__name__,
        "arguments": {name: _plain(getattr(module, name)) for name in arguments},
    }
    if "bias" in described["arguments"]:
        described["arguments"]["bias"] = module.bias is not None
    if isinstance(module, nn.Sequential):
        children = [[name, _describe(child)] for name, child in module._modules.items() if child is not None]
        if any(child is None for _, child in children):
            return None
        described["children"] = children
    return described


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def build(described: Any, device: str = "meta") -> nn.Module:
    """The module described, on the meta device: shapes without memory, however large they claim to be."""
    with torch.device(device):
        try:
            return _build(described, _DEPTH).float()  # whatever the process's default type is
        except Exception as error:  # whatever torch's layers raise at arguments that nobody checked
            raise NacreError(f"a network is described that cannot be built: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """What an error says, without the stack that torch adds below."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _build(described: Any, depth: int) -> nn.Module:
    if depth == 0:
        raise ValueError(f"more than {_DEPTH} modules deep")
    if described["class"] == "transformers":
        return build_pretrained(described["arguments"])
    if described["class"] == "Graph":
        return build_graph(described, lambda child: _build(child, depth - 1))
    kind = _BY_NAME.get(described["class"]) if isinstance(described["class"], str) else None
    if kind is None:
        raise ValueError(f"{described['class']!r} is not one of torch's layers that nacre rebuilds")
    if kind is nn.Sequential:
        children = OrderedDict((str(name), _build(child, depth - 1)) for name, child in described["children"])
        return nn.Sequential(children)
    arguments = described["arguments"]
    if set(arguments) != set(KNOWN[kind]):
        raise ValueError(f"{kind.__name__} takes {', '.join(KNOWN[kind])}; got {', '.join(arguments)}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()})


def draws_itself(described: Any) -> bool:
    """Whether a network holds more than its tensors, worked out when it is built: then shapes alone do not make it."""
    return isinstance(described, dict) and described.get("class") == "transformers"
