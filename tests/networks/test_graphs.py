"""resnet18, resnet50 and vit_tiny: as many weights as are published, computed by hand, plain, and kept by a store."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre import NacreError, SharedSpace, Start
from nacre.networks import NETWORKS, by_name, resnet18, resnet50, vit_tiny

GRAPHS = ("resnet18", "resnet50", "vit_tiny")
# of the networks with 1,000 classes, less their last layer; vit_tiny: less its class token and that one's position
PUBLISHED = {"resnet18": 11_689_512 - 513_000, "resnet50": 25_557_032 - 2_049_000}
PUBLISHED |= {"vit_tiny": 5_717_416 - 193_000 - 192 - 192}


def seeded(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = vit_tiny(patch=16) if name == "vit_tiny" else NETWORKS[name].build(3)
        for tensor in network.state_dict().values():  # statistics that are not those of an untaught network
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5)
    return network.eval()


def pictures(side: int) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", GRAPHS)
def test_they_have_as_many_weights_as_is_published(name: str) -> None:
    assert sum(parameter.numel() for parameter in seeded(name).parameters()) == PUBLISHED[name]


def resnet_by_hand(tensors: dict[str, Tensor], x: Tensor, depths: tuple[int, ...], bottleneck: bool) -> Tensor:
    def convolve(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = tensors[f"{name}_conv.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        gamma, beta, mean, variance = (
            tensors[f"{name}_norm.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / (variance + 1e-5).sqrt() * gamma + beta

    x = F.max_pool2d(convolve("stem", x, 2).clamp(min=0), 3, 2, 1)
    for stage, depth in enumerate(depths, start=1):
        for number in range(1, depth + 1):
            block, stride = f"stage{stage}_{number}", 2 if stage > 1 and number == 1 else 1
            past = convolve(f"{block}_past", x, stride) if f"{block}_past_conv.weight" in tensors else x
            for part in range(1, 4 if bottleneck else 3):
                strided = stride if part == (2 if bottleneck else 1) else 1
                x = convolve(f"{block}_{part}", x if part == 1 else x.clamp(min=0), strided)
            x = (x + past).clamp(min=0)
    return x.mean((2, 3))


@pytest.mark.parametrize(("name", "depths"), [("resnet18", (2, 2, 2, 2)), ("resnet50", (3, 4, 6, 3))])
@pytest.mark.parametrize("side", [64, 45])
def test_a_residual_network_is_what_its_paper_says(name: str, depths: tuple[int, ...], side: int) -> None:
    network, x = seeded(name), pictures(side)
    with torch.no_grad():
        wanted = resnet_by_hand(network.double().state_dict(), x.double(), depths, name == "resnet50")
        torch.testing.assert_close(network(x.double()), wanted, rtol=1e-9, atol=1e-9)


def vit_by_hand(tensors: dict[str, Tensor], x: Tensor, patch: int) -> Tensor:
    def linear(name: str, x: Tensor) -> Tensor:
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-6).sqrt()
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    patches = F.unfold(x, patch, stride=patch).transpose(1, 2)  # [batch, patches, numbers in one]
    x = patches @ tensors["patches.weight"].flatten(1).T + tensors["patches.bias"]
    x = x + tensors["positions"].flatten(2).transpose(1, 2)
    for number in range(1, 13):
        block = f"block{number}"
        h = norm(f"{block}_norm1", x)
        parts = [linear(f"{block}_{part}", h).view(*h.shape[:2], 3, 64) for part in ("query", "key", "value")]
        query, key, value = parts
        weights = (torch.einsum("bihd,bjhd->bhij", query, key) / 8).softmax(-1)
        x = x + linear(f"{block}_out", torch.einsum("bhij,bjhd->bihd", weights, value).flatten(2))
        x = x + linear(f"{block}_fc2", F.gelu(linear(f"{block}_fc1", norm(f"{block}_norm2", x))))
    return norm("norm", x).mean(1)


def test_a_vision_transformer_is_what_its_paper_says() -> None:
    network, x = vit_tiny(patch=4).eval().double(), pictures(56).double()  # as many patches as there are positions
    with torch.no_grad():
        torch.testing.assert_close(network(x), vit_by_hand(network.state_dict(), x, 4), rtol=1e-9, atol=1e-9)


def test_a_vision_transformer_takes_other_sizes_with_positions_stretched() -> None:
    network = vit_tiny(patch=4).eval()
    with torch.no_grad():
        for side, other in ((32, 40), (57, 59), (64, 24)):
            assert network(torch.zeros(1, 3, side, other)).shape == (1, 192)
        moved = network(pictures(32).roll(8, -1))
        assert not torch.allclose(moved, network(pictures(32)), atol=1e-4)  # it knows where a patch is


@pytest.mark.parametrize("name", GRAPHS)
def test_a_store_of_one_loads_without_being_given_it(name: str, tmp_path: Path) -> None:
    space = SharedSpace(seeded(name))
    network = space.expand(nn.Linear(NETWORKS[name].features(3, 32), 3), rank=1, start=Start("random")).eval()
    x = pictures(32)
    network(x)
    space.append("one", network)
    space.save(tmp_path / "life.nacre")
    loaded = SharedSpace.load(tmp_path / "life.nacre")
    plain = loaded.network("one")
    assert [type(part) for part in plain.modules() if type(part).__module__.startswith("nacre")] == []
    with torch.no_grad():
        assert torch.equal(plain(x), space.network("one")(x))
        torch.testing.assert_close(plain(x), network(x))
        assert loaded.probe(x).isfinite().all()  # what no file holds is drawn


def test_a_name_that_stands_for_nothing_lists_those_that_do() -> None:
    with pytest.raises(
        NacreError, match=r"no network is called 'resnet19'; the networks are conv5, vgg16_bn, resnet18, .*hf:"
    ):
        by_name("resnet19")


def test_the_three_are_plain_graphs_of_torchs_layers() -> None:
    for make in (resnet18, resnet50, vit_tiny):
        kinds = {type(part).__module__.partition(".")[0] for part in make().modules()}
        assert kinds == {"torch"}
