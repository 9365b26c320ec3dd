"""What becomes of a backbone's tensors: factorised, a task's own, or frozen after the first task."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nacre import NacreError, SharedSpace
from nacre.space import Network
from nacre.space.layout import Layout, tensors


class Words(nn.Module):
    """Embeddings, a token, attention, recurrence and norms: a bit of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.token = nn.Parameter(torch.randn(8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.memory = nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, 6)
        self.register_buffer("position", torch.arange(4.0).view(4, 1))
        self.register_buffer("scratch", torch.ones(1), persistent=False)
        self.position: Tensor
        self.scratch: Tensor

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.token + self.position
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        features: Tensor = self.out(self.memory(x)[0].mean(1)) * self.scratch
        return features


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.out = nn.Linear(6, 9)
        self.second.weight = self.first.weight
        self.out.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.second(self.first(self.words(words)).tanh())
        features: Tensor = self.out(x).mean(1)
        return features


def train_a_little(network: nn.Module, x: Tensor, steps: int = 2) -> None:
    """So that every trainable tensor and every norm statistic moves."""
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()


def test_weights_are_factorised_norms_and_biases_private_the_rest_frozen() -> None:
    layout = Layout.of(Words())
    assert list(layout.layers) == ["attention.in_proj_weight", "attention.out_proj", "out"]
    assert set(layout.private) == {
        "attention.in_proj_bias", "attention.out_proj.bias", "norm.weight", "norm.bias",
        "memory.bias_ih_l0", "memory.bias_hh_l0", "out.bias",
    }  # fmt: skip
    assert set(layout.frozen) == {"token", "words.weight", "memory.weight_ih_l0", "memory.weight_hh_l0"}
    assert set(layout.constant) == {"position"}, "scratch is no part of the state"


@pytest.mark.parametrize(
    ("norm", "private"),
    [
        (nn.BatchNorm1d(6), {"weight", "bias", "running_mean", "running_var"}),
        (nn.BatchNorm1d(6, affine=False), {"running_mean", "running_var"}),
        (nn.BatchNorm1d(6, track_running_stats=False), {"weight", "bias"}),
        (nn.GroupNorm(2, 6), {"weight", "bias"}),
        (nn.LayerNorm(6, elementwise_affine=False), set()),
        (nn.RMSNorm(6), {"weight"}),
        (
            nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
            {"weight", "bias", "running_mean", "running_var"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_norm_layers_are_private_with_their_statistics(norm: nn.Module, private: set[str]) -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(4, 6, bias=False), norm))
    assert set(layout.private) == {f"1.{name}" for name in private}
    assert not layout.frozen
    assert not layout.constant


def test_include_exclude_and_private_are_predicates_on_name_and_module() -> None:
    def linear(name: str, module: nn.Module) -> bool:
        return isinstance(module, nn.Linear)

    def out(name: str, module: nn.Module) -> bool:
        return name == "out"

    def embedding(name: str, module: nn.Module) -> bool:
        return isinstance(module, nn.Embedding)

    assert SharedSpace(Words(), include=linear).layers == ("attention.out_proj", "out")
    assert SharedSpace(Words(), exclude=linear).layers == ("attention.in_proj_weight",)
    assert SharedSpace(Words(), include=linear, exclude=out).layers == ("attention.out_proj",)
    layout = Layout.of(Words(), exclude=out, private=embedding)
    assert "out.weight" in layout.frozen
    assert "words.weight" in layout.private
    assert set(layout.frozen) == {"token", "memory.weight_ih_l0", "memory.weight_hh_l0", "out.weight"}


def test_every_task_trains_its_private_tensors_and_only_the_first_the_frozen_ones() -> None:
    torch.manual_seed(0)
    space = SharedSpace(Words())
    layout = Layout.of(Words())
    words = torch.randint(9, (16, 4))
    learnt: list[dict[str, Tensor]] = []
    for task in ("a", "b", "c"):
        network = space.expand(nn.Linear(6, 3))
        trainable = {name for name, tensor in network.backbone.named_parameters() if tensor.requires_grad}
        assert set(layout.private) <= trainable
        assert set(layout.frozen) <= trainable if task == "a" else not set(layout.frozen) & trainable
        train_a_little(network, words)
        space.append(task, network)
        learnt.append({name: tensor.clone() for name, tensor in tensors(network.backbone).items()})
    for name in layout.private:
        assert not torch.equal(learnt[0][name], learnt[1][name]), name
    for name in layout.frozen:
        assert torch.equal(learnt[0][name], learnt[2][name]), name
    for task, values in zip(space.tasks, learnt, strict=True):  # and each gets its own back
        plain = tensors(space.network(task).get_submodule("backbone"))
        for name in (*layout.private, *layout.frozen, *layout.constant):
            assert torch.equal(plain[name], values[name]), (task, name)


def test_a_tensor_made_private_is_trained_by_every_task() -> None:
    space = SharedSpace(Words(), private=lambda name, module: isinstance(module, nn.Embedding))  # noqa: ARG005
    words = torch.randint(9, (16, 4))
    values = []
    for task in ("a", "b"):
        network = space.expand(nn.Linear(6, 3))
        train_a_little(network, words)
        space.append(task, network)
        values.append(network.get_parameter("backbone.words.weight").detach().clone())
    assert not torch.equal(*values)
    for task, value in zip(space.tasks, values, strict=True):
        assert torch.equal(space.network(task).get_parameter("backbone.words.weight"), value)


def test_a_buffer_that_a_task_changes_is_that_tasks_own() -> None:
    space = SharedSpace(Words())
    for task, value in (("a", 1.0), ("b", 1.0), ("c", 5.0), ("d", 5.0)):
        network = space.expand(nn.Linear(6, 3))
        network.get_buffer("backbone.position").fill_(value)
        space.append(task, network)
    kept = [space.network(task).get_buffer("backbone.position").unique().tolist() for task in space.tasks]
    assert kept == [[1.0], [1.0], [5.0], [5.0]]
    stored = [space.size(task).private - space.size("b").private for task in space.tasks]
    assert stored == [0, 0, 4, 4], "one that is as the first task left it costs nothing"


@pytest.mark.parametrize("base", ["zero", "backbone"])
def test_the_users_backbone_is_untouched(base: str) -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)).train()
    before = copy.deepcopy(backbone.state_dict())
    objects = {name: id(tensor) for name, tensor in tensors(backbone).items()}
    space = SharedSpace(backbone, base=base)  # type: ignore[arg-type]
    for task in ("a", "b"):
        network = space.expand(nn.Linear(6, 3))
        train_a_little(network, torch.randn(8, 8))
        space.append(task, network)
        space.network(task)
    assert all(torch.equal(before[name], value) for name, value in backbone.state_dict().items())
    assert backbone.state_dict().keys() == before.keys()
    assert objects == {name: id(tensor) for name, tensor in tensors(backbone).items()}
    assert [type(module) for module in backbone] == [nn.Linear, nn.BatchNorm1d, nn.Linear]
    assert not any(parametrize.is_parametrized(module) for module in backbone.modules())
    assert backbone.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in backbone.parameters())


def test_changing_the_backbone_afterwards_changes_nothing_learnt() -> None:
    backbone = nn.Sequential(nn.Linear(8, 6), nn.Tanh())
    space = SharedSpace(backbone, base="backbone")
    space.append("a", space.expand(nn.Linear(6, 3)))
    x = torch.randn(4, 8)
    before = space.network("a")(x)
    with torch.no_grad():
        backbone.get_parameter("0.weight").zero_()
    assert torch.equal(space.network("a")(x), before)


def summed_weight(network: Network, name: str) -> Tensor:
    weight: Tensor = network.backbone.get_submodule(name).weight  # type: ignore[assignment]
    return weight


def test_tied_weights_stay_tied_while_training_and_in_the_plain_network() -> None:
    torch.manual_seed(0)
    space = SharedSpace(Tied())
    assert space.layers == ("words", "first")
    words = torch.randint(9, (16, 4))
    for task in ("a", "b"):
        network = space.expand(nn.Linear(9, 3))
        train_a_little(network, words)
        assert torch.equal(summed_weight(network, "first"), summed_weight(network, "second"))
        assert torch.equal(summed_weight(network, "words"), summed_weight(network, "out"))
        space.append(task, network)
        plain = space.network(task)
        assert plain.get_parameter("backbone.second.weight") is plain.get_parameter("backbone.first.weight")
        assert plain.get_parameter("backbone.out.weight") is plain.get_parameter("backbone.words.weight")
        assert torch.equal(plain.get_parameter("backbone.first.weight"), summed_weight(network, "first"))
        assert torch.equal(network.eval()(words), plain(words))


def test_a_module_that_stands_twice_is_one_layer() -> None:
    layer = nn.Linear(6, 6)
    space = SharedSpace(nn.Sequential(layer, nn.Tanh(), layer))
    assert space.layers == ("0",)
    network = space.expand(nn.Linear(6, 3))
    x = torch.randn(8, 6)
    train_a_little(network, x)
    space.append("a", network)
    plain = space.network("a")
    assert plain.get_submodule("backbone.0") is plain.get_submodule("backbone.2")
    assert torch.equal(network.eval()(x), plain(x))


def test_a_single_layer_is_a_backbone() -> None:
    space = SharedSpace(nn.Linear(5, 4))
    network = space.expand(nn.Linear(4, 2))
    space.append("a", network)
    x = torch.randn(3, 5)
    assert torch.equal(network.eval()(x), space.network("a")(x))


def test_a_network_without_weights_to_factorise_is_refused() -> None:
    with pytest.raises(NacreError, match="nothing to factorise in Sequential: it has no Linear, convolution or Multi"):
        SharedSpace(nn.Sequential(nn.Embedding(4, 3), nn.LayerNorm(3)))
    with pytest.raises(NacreError, match="that include= and exclude= let through"):
        SharedSpace(nn.Sequential(nn.Linear(4, 3)), include=lambda name, module: False)  # noqa: ARG005


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_a_backbone_that_is_not_float32_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(NacreError, match=rf"learns in float32, but 1.weight is {dtype}: call backbone.float\(\) first"):
        SharedSpace(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3, dtype=dtype)))


def test_a_buffer_that_is_not_float32_is_refused_but_integers_are_welcome() -> None:
    backbone = nn.Sequential(nn.Linear(4, 3))
    backbone.register_buffer("index", torch.arange(3))
    SharedSpace(backbone)
    backbone.register_buffer("scale", torch.ones(1, dtype=torch.float64))
    with pytest.raises(NacreError, match=r"but scale is torch\.float64"):
        SharedSpace(backbone)


def test_lazy_layers_must_have_seen_a_batch() -> None:
    backbone = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(NacreError, match=r"0\.weight has no shape yet: run one batch"):
        SharedSpace(backbone)
    backbone(torch.zeros(2, 4))
    SharedSpace(backbone)


def test_a_backbone_with_numbers_that_are_not_finite_is_refused() -> None:
    backbone = nn.Sequential(nn.Linear(4, 3))
    with torch.no_grad():
        backbone.get_parameter("0.bias")[1] = float("inf")
    with pytest.raises(NacreError, match=r"0\.bias holds numbers that are not finite"):
        SharedSpace(backbone)


def test_a_mask_of_minus_infinity_is_no_number_gone_wrong() -> None:
    backbone = nn.Sequential(nn.Linear(4, 3))
    mask = torch.full((3, 3), -torch.inf).triu(1)
    backbone.register_buffer("mask", mask)
    space = SharedSpace(backbone)
    space.append("a", space.expand(nn.Linear(3, 2)))
    assert torch.equal(space.network("a").get_buffer("backbone.mask"), mask)
    network = space.expand(nn.Linear(3, 2))
    network.get_buffer("backbone.mask")[0, 0] = float("nan")
    with pytest.raises(NacreError, match="mask holds numbers that are not finite"):
        space.append("b", network)
