"""Networks as data: what is described is rebuilt to compute the same, what cannot be is not, and nothing runs code."""

from __future__ import annotations

import copy
import inspect
import json
import resource
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nacre.errors import NacreError
from nacre.space.description import KNOWN, build, describe
from nacre.space.layout import install, tensors

LINE, IMAGE, VOLUME = (2, 6, 8), (2, 6, 8, 8), (2, 6, 8, 8, 8)
LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(8, 3), LINE),
    (nn.Linear(8, 3, bias=False), LINE),
    (nn.Conv1d(6, 4, 3, 2, 1, 2, 2, False, "reflect"), LINE),
    (nn.Conv2d(6, 4, (3, 2), (1, 2), (1, 0), (1, 2), 2, True, "circular"), IMAGE),
    (nn.Conv2d(6, 4, 3, padding="same"), IMAGE),
    (nn.Conv3d(6, 4, (1, 2, 3), padding="valid", padding_mode="replicate"), VOLUME),
    (nn.ConvTranspose1d(6, 4, 3, 2, 1, 1, 2, False, 2), LINE),
    (nn.ConvTranspose2d(6, 4, (3, 2), (2, 1), (1, 0), (1, 0), 2, True, (2, 1)), IMAGE),
    (nn.ConvTranspose3d(6, 4, 2, 2), VOLUME),
    (nn.BatchNorm1d(6, 1e-2, 0.3), LINE),
    (nn.BatchNorm2d(6, momentum=None, affine=False), IMAGE),
    (nn.BatchNorm3d(6, track_running_stats=False), VOLUME),
    (nn.InstanceNorm1d(6, 1e-2), LINE),
    (nn.InstanceNorm2d(6, affine=True, track_running_stats=True), IMAGE),
    (nn.InstanceNorm3d(6, affine=True), VOLUME),
    (nn.LayerNorm((6, 8), 1e-2), LINE),
    (nn.LayerNorm(8, elementwise_affine=False), LINE),
    (nn.LayerNorm(8, bias=False), LINE),
    (nn.GroupNorm(3, 6, 1e-2), LINE),
    (nn.GroupNorm(2, 6, affine=False), IMAGE),
    (nn.RMSNorm(8, 1e-2), LINE),
    (nn.RMSNorm((6, 8), elementwise_affine=False), LINE),
    (nn.MaxPool1d(3, 2, 1, 2, ceil_mode=True), LINE),
    (nn.MaxPool2d((3, 2), (2, 1), (1, 0), (1, 2)), IMAGE),
    (nn.MaxPool3d(2, ceil_mode=True), VOLUME),
    (nn.AvgPool1d(3, 2, 1, ceil_mode=True, count_include_pad=False), LINE),
    (nn.AvgPool2d((3, 2), (2, 1), (1, 0), True, False, 5), IMAGE),
    (nn.AvgPool3d(2, 1, 1, divisor_override=3), VOLUME),
    (nn.AdaptiveAvgPool1d(3), LINE),
    (nn.AdaptiveAvgPool2d((3, None)), IMAGE),
    (nn.AdaptiveAvgPool3d((1, 2, 3)), VOLUME),
    (nn.AdaptiveMaxPool1d(3), LINE),
    (nn.AdaptiveMaxPool2d((None, 2)), IMAGE),
    (nn.AdaptiveMaxPool3d(2), VOLUME),
    (nn.Dropout(0.9), LINE),
    (nn.Dropout1d(0.9), LINE),
    (nn.Dropout2d(0.9), IMAGE),
    (nn.Dropout3d(0.9, inplace=True), VOLUME),
    (nn.ReLU(inplace=True), LINE),
    (nn.ReLU6(), LINE),
    (nn.SiLU(), LINE),
    (nn.Hardswish(), LINE),
    (nn.Mish(), LINE),
    (nn.ELU(0.3), LINE),
    (nn.LeakyReLU(0.3), LINE),
    (nn.GELU("tanh"), LINE),
    (nn.Softplus(2.0, 0.5), LINE),
    (nn.Tanh(), LINE),
    (nn.Sigmoid(), LINE),
    (nn.Identity(), LINE),
    (nn.Softmax(1), LINE),
    (nn.LogSoftmax(-1), LINE),
    (nn.Flatten(0, 1), LINE),
    (nn.Upsample(size=(5, 7), mode="bilinear", align_corners=True), IMAGE),
    (nn.Upsample(scale_factor=(1.5, 2.0)), IMAGE),
    (nn.Embedding(9, 4, padding_idx=2), ()),
    (nn.Sequential(OrderedDict(first=nn.Linear(8, 4), act=nn.Tanh(), last=nn.Linear(4, 2))), LINE),
    (nn.Sequential(), LINE),
]


@pytest.fixture
def little_memory() -> Iterator[None]:
    """No more address space than is taken now and a little: whoever allocates what a description claims, fails."""
    statistics = Path("/proc/self/statm")
    if not statistics.exists():
        pytest.skip("the address space of a process can be seen and limited on Linux only")
    now = int(statistics.read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def through_json(module: nn.Module) -> nn.Module | None:
    """The module described, as it comes out of a file, with the tensors of the first one."""
    described = describe(module)
    if described is None:
        return None
    rebuilt = build(json.loads(json.dumps(described)))
    install(rebuilt, {name: tensor.detach().clone() for name, tensor in tensors(module).items()})
    return rebuilt


def inputs_of(module: nn.Module, shape: tuple[int, ...]) -> Tensor:
    if isinstance(module, nn.Embedding):
        return torch.arange(module.num_embeddings)
    return torch.linspace(-2, 3, torch.Size(shape).numel()).reshape(shape)


def test_every_class_that_may_be_rebuilt_is_tried_here() -> None:
    assert {type(module) for module, _ in LAYERS} == set(KNOWN)


@pytest.mark.parametrize(("module", "shape"), LAYERS, ids=[str(module).split("\n")[0] for module, _ in LAYERS])
def test_what_is_described_computes_the_same(module: nn.Module, shape: tuple[int, ...]) -> None:
    for tensor in tensors(module).values():
        if tensor.is_floating_point():
            torch.nn.init.uniform_(tensor, 0.5, 2)  # nothing at a default
    rebuilt = through_json(module)
    assert rebuilt is not None
    inputs = inputs_of(module, shape)
    with torch.no_grad():
        assert torch.equal(rebuilt.eval()(inputs.clone()), module.eval()(inputs.clone()))


@pytest.mark.parametrize("kind", KNOWN, ids=lambda kind: kind.__name__)
def test_no_argument_of_a_class_is_forgotten(kind: type[nn.Module]) -> None:
    """Each argument is written down, changes tensors (which are compared), or keeps a module from being described."""
    taken = set(inspect.signature(kind).parameters) - {"device", "dtype", "args", "kwargs"}
    seen_otherwise = {"bias"}  # of norms, where torch has it: a tensor that is missing
    refused = {"max_norm", "norm_type", "scale_grad_by_freq", "sparse", "return_indices", "recompute_scale_factor"}
    only_for_making = {"_weight", "_freeze"}
    assert taken - set(KNOWN[kind]) <= seen_otherwise | refused | only_for_making


class Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def with_hook() -> nn.Module:
    layer = nn.Linear(8, 3)
    layer.register_forward_hook(lambda *given: 2 * given[2])
    return layer


def with_pre_hook() -> nn.Module:
    layer = nn.Linear(8, 3)
    layer.register_forward_pre_hook(lambda *given: 2 * given[1][0])
    return layer


def with_own_forward() -> nn.Module:
    layer = nn.Linear(8, 3)
    layer.forward = lambda given: 2 * given  # type: ignore[method-assign, assignment]
    return layer


def with_parametrization() -> nn.Module:
    layer = nn.Linear(8, 3)
    parametrize.register_parametrization(layer, "weight", nn.Tanh())
    return layer


def with_further_tensor() -> nn.Module:
    layer = nn.Linear(8, 3)
    layer.register_buffer("scale", torch.ones(3))
    return layer


def tied_layers() -> nn.Module:
    layer = nn.Linear(8, 8)
    return nn.Sequential(nn.Sequential(layer), nn.Sequential(layer))


def tied_weights() -> nn.Module:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    return nn.Sequential(first, second)


def deep_module() -> nn.Module:
    module: nn.Module = nn.Tanh()
    for _ in range(40):
        module = nn.Sequential(module)
    return module


OWN: list[Callable[[], nn.Module]] = [
    lambda: Scaled(8, 3),
    lambda: nn.MultiheadAttention(8, 2),
    lambda: nn.ModuleList([nn.Linear(8, 3)]),
    lambda: nn.Embedding(9, 4, max_norm=1.0),
    lambda: nn.Embedding(9, 4, sparse=True),
    lambda: nn.Embedding(9, 4, scale_grad_by_freq=True),
    lambda: nn.MaxPool2d(2, return_indices=True),
    lambda: nn.AdaptiveMaxPool1d(2, return_indices=True),
    lambda: nn.Upsample(scale_factor=1.6, mode="bilinear", recompute_scale_factor=True),
    lambda: nn.Linear(8, 3).double(),
    lambda: nn.Softplus(threshold=float("inf")),
    with_hook,
    with_pre_hook,
    with_own_forward,
    with_parametrization,
    with_further_tensor,
    tied_layers,
    tied_weights,
    deep_module,
]


@pytest.mark.parametrize("make", OWN, ids=range(len(OWN)))
def test_what_data_cannot_say_is_not_described(make: Callable[[], nn.Module]) -> None:
    assert describe(make()) is None
    assert describe(nn.Sequential(nn.Identity(), make())) is None


def test_a_norm_without_the_bias_that_its_class_may_leave_out_is_not_described() -> None:
    if "bias" not in inspect.signature(nn.BatchNorm1d).parameters:
        pytest.skip("this torch has no such norm")
    assert describe(nn.BatchNorm1d(3, bias=False)) is None


def test_an_activation_that_stands_in_several_places_is_described() -> None:
    act = nn.ReLU()
    module = nn.Sequential(nn.Linear(8, 8), act, nn.Sequential(nn.Linear(8, 3), act), act)
    rebuilt = through_json(module)
    assert rebuilt is not None
    inputs = inputs_of(module, LINE)
    assert torch.equal(rebuilt(inputs), module(inputs))
    assert [name for name, _ in rebuilt.named_modules(remove_duplicate=False)] == [
        name for name, _ in module.named_modules(remove_duplicate=False)
    ]


def test_sizes_that_numpy_worked_out_are_described() -> None:
    wide: Any = np.int64(8)
    module = nn.Sequential(nn.Linear(wide, np.prod((2, 2)).item()), nn.Dropout(np.float64(0.5)), nn.Linear(4, wide))
    assert describe(module) == describe(nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5), nn.Linear(4, 8)))


def test_describing_changes_nothing() -> None:
    module = nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3))
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()
    describe(module)
    assert torch.equal(torch.get_rng_state(), state), "the next numbers drawn must not depend on whether one saved"
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert module.training


def layer(kind: Any, **arguments: Any) -> dict[str, Any]:
    return {"class": kind, "arguments": arguments}


def conv(**changes: Any) -> dict[str, Any]:
    described = describe(nn.Conv2d(3, 4, 3))
    assert described is not None
    return layer("Conv2d", **(described["arguments"] | changes))


def nested(depth: int) -> dict[str, Any]:
    described = layer("Tanh")
    for _ in range(depth):
        described = layer("Sequential") | {"children": [["0", described]]}
    return described


BAD: dict[str, Any] = {
    "null": None,
    "a text": "Linear",
    "a number": 3,
    "a list": ["Linear"],
    "an empty object": {},
    "no arguments": {"class": "Linear"},
    "a class of nobody": layer("Magic"),
    "a function of Python": layer("eval", source="1"),
    "a path to a class": layer("torch.nn.Linear", in_features=2, out_features=2, bias=True),
    "a class of torch that is not rebuilt": layer("Module"),
    "a class that is a list": layer(["Linear"]),
    "a class that is a number": layer(3),
    "too few arguments": layer("Linear", in_features=2),
    "too many arguments": layer("Tanh", device="cuda"),
    "arguments that are a list": {"class": "Linear", "arguments": ["in_features", "out_features", "bias"]},
    "arguments that are null": {"class": "Linear", "arguments": None},
    "a text for a number": layer("Linear", in_features="2", out_features=2, bias=True),
    "half a feature": layer("Linear", in_features=2.5, out_features=2, bias=True),
    "fewer than no features": layer("Linear", in_features=-2, out_features=2, bias=True),
    "10^30 features": layer("Linear", in_features=10**30, out_features=2, bias=True),
    "more numbers than there are addresses": layer("Linear", in_features=2**40, out_features=2**40, bias=True),
    "a kernel of 10^18": conv(kernel_size=10**18),
    "a kernel of 10^18 squared": conv(kernel_size=[10**18, 10**18]),
    "no groups": conv(groups=0),
    "an unknown padding": conv(padding="all"),
    "an unknown padding mode": conv(padding_mode="all"),
    "norm groups of nothing": layer("GroupNorm", num_groups=0, num_channels=3, eps=1e-5, affine=True),
    "a padding index outside": layer("Embedding", num_embeddings=3, embedding_dim=3, padding_idx=10),
    "a dropout of 7": layer("Dropout", p=7, inplace=False),
    "a Sequential of nothing said": layer("Sequential"),
    "a Sequential of a text": layer("Sequential") | {"children": "ab"},
    "a Sequential of numbers": layer("Sequential") | {"children": [1, 2]},
    "a dot in a name": layer("Sequential") | {"children": [["a.b", layer("Tanh")]]},
    "an empty name": layer("Sequential") | {"children": [["", layer("Tanh")]]},
    "a name that is a method": layer("Sequential") | {"children": [["forward", layer("Tanh")]]},
    "a name that is an attribute": layer("Sequential") | {"children": [["_modules", layer("Tanh")]]},
    "a hundred deep": nested(100),
    "10^5 deep": nested(10**5),
}


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("what", BAD)
def test_a_bad_description_is_refused_and_allocates_nothing(what: str) -> None:
    with pytest.raises(NacreError, match="described") as refused:
        build(BAD[what])
    assert "alloc" not in str(refused.value)


@pytest.mark.usefixtures("little_memory")
def test_a_billion_features_are_built_without_memory() -> None:
    module = build(layer("Linear", in_features=10**9, out_features=10**9, bias=True))
    assert all(tensor.is_meta for tensor in tensors(module).values())


arguments = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.sampled_from([2**31, 2**62, 2**63, 10**30])
    | st.floats(allow_nan=False)
    | st.sampled_from(["same", "zeros", "bilinear", "x"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_arguments_at_all_give_a_network_without_memory_or_are_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([kind for kind in KNOWN if kind is not nn.Sequential]))
    described = layer(kind.__name__, **{name: data.draw(arguments, label=name) for name in KNOWN[kind]})
    module: nn.Module = nn.Identity()
    refusal = "described"
    try:
        module = build(described)
    except NacreError as error:
        refusal = str(error)
    assert "described" in refusal
    assert all(tensor.is_meta for tensor in tensors(module).values())
