"""The low-rank residual of a weight: networks with it against independent dense ones in float64."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from nacre import Factors, NacreError
from nacre.lowrank import Layer, attach, factors, find_layers, load_factors, residuals

LAYERS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(7, 5), (7,)),
    (nn.Linear(7, 5, bias=False), (3, 7)),
    (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2), (4, 11)),
    (nn.Conv1d(4, 6, 3, groups=2, padding=1, padding_mode="circular"), (4, 11)),
    (nn.Conv2d(3, 5, 3), (3, 8, 8)),
    (nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(1, 2), bias=False), (3, 8, 7)),
    (nn.Conv2d(4, 4, 3, groups=4, padding="same"), (4, 6, 6)),
    (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (4, 6, 6)),
    (nn.Conv2d(4, 6, 3, padding=2, dilation=2, padding_mode="replicate", groups=2), (4, 6, 6)),
    (nn.Conv2d(6, 4, 1), (6, 5, 5)),
    (nn.Conv3d(2, 4, 2, stride=2, groups=2), (2, 5, 6, 4)),
    (nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), (4, 6)),
    (nn.ConvTranspose1d(4, 6, 3, groups=2, dilation=2), (4, 6)),
    (nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1, groups=2), (4, 4, 5)),
    (nn.ConvTranspose2d(3, 5, (2, 3), bias=False), (3, 4, 4)),
    (nn.ConvTranspose3d(2, 3, 2, stride=2), (2, 3, 3, 2)),
    (nn.ConvTranspose3d(4, 4, 2, groups=4, dilation=2), (4, 3, 3, 3)),
]
ATTENTIONS: list[tuple[nn.MultiheadAttention, tuple[int, int]]] = [
    (nn.MultiheadAttention(8, 2, batch_first=True), (8, 8)),
    (nn.MultiheadAttention(8, 4, bias=False), (8, 8)),
    (nn.MultiheadAttention(8, 2, kdim=5, vdim=6, batch_first=True), (5, 6)),
    (nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True), (8, 8)),
]


def drawn(layer: Layer, rank: int, seed: int = 0) -> Factors:
    """Factors of a matrix about as large as an ordinary initialisation."""
    out, rest = math.prod(layer.shape[:1]), math.prod(layer.shape[1:])
    generator = torch.Generator().manual_seed(seed)
    U, s, V = (torch.randn(shape, generator=generator) for shape in ((out, rank), (rank,), (rest, rank)))
    return Factors(U, s / math.sqrt(rest * max(rank, 1)), V)


def residual_and_dense(module: nn.Module, rank: int = 3) -> tuple[nn.Module, nn.Module, dict[str, Tensor]]:
    """A copy with the residual on every layer, a dense float64 one with the sum written out, and the shared sums."""
    low_rank, dense = copy.deepcopy(module), copy.deepcopy(module).double()
    sums = {}
    for layer in find_layers(module).values():
        shared, new = torch.randn(layer.shape) / math.sqrt(math.prod(layer.shape[1:])), drawn(layer, rank)
        attach(low_rank, layer, shared, new)
        U, s, V = (part.numpy().astype(np.float64) for part in (new.U, new.s, new.V))
        written_out = shared.numpy().astype(np.float64) + np.einsum("ik,k,jk->ij", U, s, V).reshape(layer.shape)
        with torch.no_grad():
            for name in layer.tensors:
                dense.get_parameter(name).copy_(torch.from_numpy(written_out))
        sums[layer.name] = shared
    return low_rank, dense, sums


def assert_same(value: Tensor, exact: Tensor) -> None:
    """float32 against float64: at most about a hundred numbers of order one are added up."""
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("module", "shape"), LAYERS, ids=lambda value: str(value).replace(" ", ""))
def test_a_layer_computes_with_the_frozen_sum_plus_U_diag_s_V(module: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    low_rank, dense, _ = residual_and_dense(module)
    x = torch.randn(2, *shape)
    assert_same(low_rank(x), dense(x.double()))
    weight: Tensor = low_rank.weight  # type: ignore[assignment]
    new = factors(low_rank)["weight"]
    assert new.shape == tuple(weight.flatten(1).shape), "one weight tensor is one matrix"
    assert new.U.shape == (weight.shape[0], 3)


@pytest.mark.parametrize(("module", "shape"), LAYERS, ids=lambda value: str(value).replace(" ", ""))
def test_factors_get_the_gradient_of_the_dense_weight(module: nn.Module, shape: tuple[int, ...]) -> None:
    """With G the gradient of the weight: dU = G V diag(s), ds = diag(U^T G V), dV = G^T U diag(s)."""
    torch.manual_seed(0)
    low_rank, dense, _ = residual_and_dense(module)
    x = torch.randn(2, *shape)
    low_rank(x).square().sum().backward()
    dense(x.double()).square().sum().backward()
    G = dense.get_parameter("weight").grad
    assert G is not None
    G = G.flatten(1)
    new = factors(low_rank)["weight"]
    U, s, V = (part.detach().double() for part in (new.U, new.s, new.V))
    for part, exact in ((new.U, G @ V * s), (new.s, (U.T @ G @ V).diagonal()), (new.V, G.T @ U * s)):
        assert part.grad is not None
        torch.testing.assert_close(part.grad.double(), exact, rtol=1e-4, atol=1e-6 * float(G.norm()))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("module", "sizes"), ATTENTIONS, ids=["packed", "no bias", "kdim and vdim", "bias_k"])
def test_attention_computes_with_the_frozen_sum_plus_U_diag_s_V(
    module: nn.MultiheadAttention, sizes: tuple[int, int], training: bool
) -> None:
    torch.manual_seed(0)
    low_rank, dense, _ = residual_and_dense(module)
    low_rank.train(training)
    dense.train(training)
    query, key, value = (torch.randn(4, 3, size) for size in (8, *sizes))
    with torch.set_grad_enabled(training):  # in eval mode without gradients torch takes another path
        output, weights = low_rank(query, key, value)
        exact, exact_weights = dense(query.double(), key.double(), value.double())
    assert_same(output, exact)
    assert_same(weights, exact_weights)


@pytest.mark.parametrize(
    ("module", "matrices"),
    [
        (ATTENTIONS[0][0], {"in_proj_weight": (24, 8), "out_proj": (8, 8)}),
        (
            ATTENTIONS[2][0],
            {"q_proj_weight": (8, 8), "k_proj_weight": (8, 5), "v_proj_weight": (8, 6), "out_proj": (8, 8)},
        ),
    ],
)
def test_every_weight_tensor_of_attention_is_one_matrix(
    module: nn.Module, matrices: dict[str, tuple[int, int]]
) -> None:
    assert {name: layer.matrix for name, layer in find_layers(module).items()} == matrices


def test_layers_stand_in_the_networks_order_under_their_modules_names() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)
    network = nn.Sequential(nn.Embedding(5, 8), encoder, nn.BatchNorm1d(8), nn.PReLU(), nn.Linear(8, 3))
    found = find_layers(network)
    assert list(found) == ["1.self_attn.in_proj_weight", "1.self_attn.out_proj", "1.linear1", "1.linear2", "4"]
    assert [layer.matrix for layer in found.values()] == [(24, 8), (8, 8), (16, 8), (8, 16), (3, 8)]


def test_include_and_exclude_choose_by_name_and_module() -> None:
    network = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Linear(4, 4), nn.Linear(4, 4), nn.MultiheadAttention(4, 1))

    def linear(name: str, module: nn.Module) -> bool:
        return isinstance(module, nn.Linear)

    def first(name: str, module: nn.Module) -> bool:
        return name == "1"

    assert list(find_layers(network, include=linear)) == ["1", "2", "3.out_proj"]
    assert list(find_layers(network, exclude=linear)) == ["0", "3.in_proj_weight"]
    assert list(find_layers(network, include=linear, exclude=first)) == ["2", "3.out_proj"]


class Tied(nn.Module):
    """Two linear layers with one weight, and an embedding tied to the layer that reads it out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.out = nn.Linear(6, 9, bias=False)
        self.second.weight = self.first.weight
        self.out.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        features: Tensor = self.out(self.second(self.first(self.words(words)).tanh()).tanh())
        return features


def test_tied_weights_are_one_layer_and_stay_tied() -> None:
    module = Tied()
    assert {name: layer.tensors for name, layer in find_layers(module).items()} == {
        "words": ("words.weight", "out.weight"),
        "first": ("first.weight", "second.weight"),
    }
    low_rank, dense, _ = residual_and_dense(module)
    assert len(residuals(low_rank)) == 2
    assert sum("U" in name for name, _ in low_rank.named_parameters()) == 2
    words = torch.randint(9, (5,))
    low_rank(words).square().sum().backward()
    assert_same(low_rank(words), dense(words))
    dense(words).square().sum().backward()
    for name, new in factors(low_rank).items():  # the gradients of both places
        G, U, V = dense.get_parameter(f"{name}.weight").grad, new.U.detach().double(), new.V.detach().double()
        assert G is not None
        assert new.s.grad is not None
        torch.testing.assert_close(new.s.grad.double(), (U.T @ G @ V).diagonal(), rtol=1e-4, atol=1e-4)


def test_frozen_sums_are_buffers_so_that_no_optimiser_touches_them() -> None:
    torch.manual_seed(0)
    low_rank, _, sums = residual_and_dense(nn.Sequential(nn.Linear(6, 5), nn.MultiheadAttention(5, 1)))
    before = {name: shared.clone() for name, shared in sums.items()}
    assert {name.rsplit(".", 1)[1] for name, _ in low_rank.named_parameters()} == {
        "bias", "in_proj_bias", "U", "s", "V",
    }  # fmt: skip
    optimizer = torch.optim.SGD(low_rank.parameters(), lr=0.5, momentum=0.9, weight_decay=0.5)
    for _ in range(3):
        x = low_rank[0](torch.randn(4, 6))  # type: ignore[index]
        low_rank[1](x, x, x)[0].sum().backward()  # type: ignore[index]
        optimizer.step()
    assert {name: torch.equal(sums[name], shared) for name, shared in before.items()} == dict.fromkeys(sums, True)


def test_the_summed_weight_is_float32_under_autocast() -> None:
    low_rank, _, _ = residual_and_dense(nn.Sequential(nn.Conv1d(3, 4, 2), nn.Flatten(), nn.Linear(16, 5)))
    outside = [low_rank[at].weight for at in (0, 2)]  # type: ignore[index]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = [low_rank[at].weight for at in (0, 2)]  # type: ignore[index]
        assert low_rank(torch.randn(2, 3, 5)).dtype == torch.bfloat16, "the layer's own arithmetic follows autocast"
    for one, other in zip(outside, inside, strict=True):
        assert other.dtype == torch.float32
        assert torch.equal(one, other)


def test_rank_zero_leaves_the_shared_sum() -> None:
    module = nn.Linear(4, 3)
    (layer,) = find_layers(module).values()
    shared = torch.randn(3, 4)
    attach(module, layer, shared, Factors.zero(3, 4))
    assert torch.equal(module.weight, shared)
    x = torch.randn(2, 4)
    assert_same(module(x), x.double() @ shared.double().T + module.bias.double())


def test_factors_load_at_any_rank() -> None:
    low_rank, _, sums = residual_and_dense(nn.Linear(6, 5))
    (layer,) = find_layers(nn.Linear(6, 5)).values()
    for rank in (0, 1, 5, 9):
        new = drawn(layer, rank, seed=rank)
        load_factors(low_rank, {"weight": new})
        assert factors(low_rank)["weight"].rank == rank
        weight: Tensor = low_rank.weight  # type: ignore[assignment]
        assert_same(weight.detach(), sums["weight"].double() + new.weight().double())


def test_loaded_factors_are_copies() -> None:
    low_rank, _, _ = residual_and_dense(nn.Linear(6, 5))
    given = Factors(torch.randn(5, 2), torch.ones(2), torch.randn(6, 2))
    load_factors(low_rank, {"weight": given})
    given.s.zero_()
    assert factors(low_rank)["weight"].s.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"1": Factors.zero(5, 6)}, "no factorised layer is called '1'; the layers are 0, 2"),
        ({"0": Factors.zero(6, 5)}, r"layer '0' is a matrix \(5, 6\); got factors of a matrix \(6, 5\)"),
        ({"0": Factors.zero(5, 6), "2": Factors.zero(5, 6)}, r"layer '2' is a matrix \(4, 5\)"),
    ],
)
def test_factors_that_do_not_fit_are_refused_whole(new: dict[str, Factors], message: str) -> None:
    low_rank, _, _ = residual_and_dense(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)))
    with pytest.raises(NacreError, match=message):
        load_factors(low_rank, new)
    assert [layer.rank for layer in factors(low_rank).values()] == [3, 3]


def test_a_deep_copy_trains_on_its_own() -> None:
    low_rank, _, _ = residual_and_dense(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)))
    x = torch.randn(3, 6)
    before = low_rank(x)
    other = copy.deepcopy(low_rank)
    assert torch.equal(other(x), before)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
    other(x).square().sum().backward()
    optimizer.step()
    assert not torch.equal(other(x), before)
    assert torch.equal(low_rank(x), before)
    assert all(parameter.grad is None for parameter in low_rank.parameters())
    load_factors(other, {"0": Factors.zero(5, 6)})
    assert factors(low_rank)["0"].rank == 3


class Checkpointed(nn.Module):
    """Two blocks, the first recomputed in the backward pass where asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv1d(3, 6, 3, padding=1), nn.Tanh(), nn.Conv1d(6, 6, 3), nn.Tanh())
        self.last = nn.Linear(18, 4)
        self.recompute = False

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.block, x, use_reentrant=False) if self.recompute else self.block(x)
        features: Tensor = self.last(x.flatten(1))
        return features


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    low_rank, _, _ = residual_and_dense(Checkpointed())
    x = torch.randn(4, 3, 5)
    gradients: list[dict[str, Tensor]] = []
    for recompute in (False, True):
        low_rank.recompute = recompute  # type: ignore[assignment]
        low_rank.zero_grad()
        low_rank(x).square().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in low_rank.named_parameters() if p.grad is not None})
    plain, recomputed = gradients
    assert len(plain) == len(list(low_rank.parameters()))
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        assert torch.equal(recomputed[name], gradient), name


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_network_computes_the_same(backend: str) -> None:
    low_rank, _, _ = residual_and_dense(nn.Sequential(nn.Conv1d(3, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 4)))
    x = torch.randn(2, 3, 5)
    compiled = torch.compile(low_rank, backend=backend, fullgraph=True)
    results = []
    for network in (low_rank, compiled):
        low_rank.zero_grad()
        output = network(x)
        output.square().sum().backward()
        results.append((output, [p.grad for p in low_rank.parameters()]))
    (output, gradients), (other_output, other_gradients) = results
    torch.testing.assert_close(other_output, output, rtol=1e-6, atol=1e-6)
    for gradient, other in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(other, gradient, rtol=1e-5, atol=1e-5)


def test_attaching_leaves_other_copies_of_the_module_alone() -> None:
    module = nn.Linear(4, 3)
    other = copy.deepcopy(module)
    (layer,) = find_layers(module).values()
    attach(module, layer, module.weight.detach().clone(), Factors.zero(3, 4))
    assert parametrize.is_parametrized(module)
    assert type(other) is nn.Linear
    assert isinstance(other.weight, nn.Parameter)
