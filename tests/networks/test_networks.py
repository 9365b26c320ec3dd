"""The networks: as many weights as counted by hand, the sizes that the paper prints, the smallest image of each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre import Learner, NacreError, Recipe, SharedSpace, Single, Start
from nacre.networks import NETWORKS, conv5, too_small, vgg16_bn, vgg16_bn_head
from nacre.space.description import build, describe

VGG_WIDTHS = (3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
POOLED = (2, 4, 7, 10, 13)  # convolutions that a pool comes after


def seeded(make: Callable[..., nn.Sequential], *arguments: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(*arguments)


def pictures(count: int, channels: int, side: int) -> Tensor:
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(1))


# sizes


@pytest.mark.parametrize(
    ("tasks", "classes", "side", "features", "megabytes"),
    [(20, 5, 32, 1024, 31.68), (20, 5, 84, 16384, 37.82), (5, 10, 32, 1024, 8.02)],
    ids=["cifar100", "miniimagenet", "five-datasets"],
)
def test_a_conv5_for_every_task_takes_what_the_paper_prints(
    tasks: int, classes: int, side: int, features: int, megabytes: float
) -> None:
    weights = 9 * (3 * 64 + 64 * 64 + 64 * 128 + 128 * 128) + 4 * 128 * 256
    assert weights == 390_848
    assert round(tasks * 4 * (weights + features * classes + classes) / 1e6, 2) == megabytes

    assert NETWORKS["conv5"].features(3, side) == features
    space = SharedSpace(conv5())
    space.append("one", space.expand(nn.Linear(features, classes), dense=True))
    assert round(tasks * space.size().megabytes, 2) == megabytes


def test_vgg16_bn_has_the_weights_of_configuration_d() -> None:
    network = vgg16_bn()
    by_hand = sum(9 * before * after for before, after in pairwise(VGG_WIDTHS))
    assert by_hand == 14_710_464
    convolutions = [module for module in network if isinstance(module, nn.Conv2d)]
    norms = [module for module in network if isinstance(module, nn.BatchNorm2d)]
    assert sum(convolution.weight.numel() for convolution in convolutions) == by_hand
    assert [norm.num_features for norm in norms] == list(VGG_WIDTHS[1:])
    assert sum(parameter.numel() for parameter in network.parameters()) == by_hand + 2 * sum(VGG_WIDTHS[1:])


def vgg_by_hand(network: nn.Sequential, x: Tensor) -> Tensor:
    """VGG16 with batch norm in functions, from the tensors of a network in eval mode."""
    tensors = list(network.state_dict().values())
    for number in range(13):
        weight, gamma, beta, mean, variance, _ = tensors[6 * number : 6 * number + 6]
        x = F.conv2d(x, weight, padding=1)
        x = (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt() * gamma[:, None, None]
        x = (x + beta[:, None, None]).clamp(min=0)
        if number + 1 in POOLED:
            x = F.max_pool2d(x, 2)
    return x.mean((2, 3))


@pytest.mark.parametrize("side", [32, 84])
def test_vgg16_bn_is_thirteen_convolutions_and_five_pools_at_any_size(side: int) -> None:
    network, x = seeded(vgg16_bn).eval(), pictures(2, 3, side)
    with torch.no_grad():
        for module in network:
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                    assert tensor is not None
                    tensor.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(2))
        features = network(x)
        assert features.shape == (2, 512)
        torch.testing.assert_close(features, vgg_by_hand(network, x), rtol=1e-4, atol=1e-5)


def test_the_head_of_vgg16_bn_is_two_linear_layers() -> None:
    head, features = seeded(vgg16_bn_head, 512, 5), torch.randn(3, 512)
    first, second = (module for module in head if isinstance(module, nn.Linear))
    hidden = (features @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(head(features), hidden @ second.weight.T + second.bias)
    assert sum(parameter.numel() for parameter in head.parameters()) == 512 * 32 + 32 + 32 * 5 + 5


# what a store needs


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("channels", [1, 3])
def test_networks_and_heads_are_described_and_rebuilt(name: str, channels: int) -> None:
    network = NETWORKS[name]
    backbone = network.build(channels)
    for module in (backbone, network.head(512, 7) if network.head else nn.Linear(1024, 7)):
        described = describe(module)
        assert described is not None
        assert [(key, tensor.shape) for key, tensor in build(described).state_dict().items()] == [
            (key, tensor.shape) for key, tensor in module.state_dict().items()
        ]


def test_vgg16_bn_keeps_four_norm_tensors_a_layer_with_every_task(tmp_path: Path) -> None:
    space = SharedSpace(vgg16_bn())
    network = space.expand(vgg16_bn_head(512, 5), rank=1, start=Start("random"))
    space.append("one", network)
    record = space.record("one")
    assert len(record.factors) == 13
    assert len(record.private) == 4 * 13
    assert sum(tensor.numel() for tensor in record.private.values()) == 4 * sum(VGG_WIDTHS[1:])
    space.save(tmp_path / "life.nacre")
    loaded = SharedSpace.load(tmp_path / "life.nacre")
    x = pictures(2, 3, 32)
    with torch.no_grad():
        assert torch.equal(loaded.network("one")(x), space.network("one")(x))


# the smallest image


LIMITED = [name for name, network in NETWORKS.items() if network.smallest > 1]  # the others take images of any size


@pytest.mark.parametrize("name", LIMITED)
def test_the_smallest_side_is_the_smallest(name: str) -> None:
    network = NETWORKS[name]
    backbone = network.build(1).eval()
    with torch.no_grad():
        assert backbone(torch.zeros(1, 1, network.smallest, network.smallest)).shape[0] == 1
        with pytest.raises(RuntimeError):
            backbone(torch.zeros(1, 1, network.smallest, network.smallest - 1))
        assert network.features(1, network.smallest) == backbone(pictures(1, 1, network.smallest)).shape[1]


@pytest.mark.parametrize("name", LIMITED)
def test_a_learner_says_how_large_an_image_must_be(name: str) -> None:
    network = NETWORKS[name]
    side = network.smallest - 1
    learner = Learner(network.build(1), Single(), device="cpu", progress=False)
    with pytest.raises(
        NacreError,
        match=rf"{name} takes images of {network.smallest} x {network.smallest} pixels or more, "
        rf"these have {side} x {side}: scale them up",
    ):
        learner.learn("small", (pictures(4, 1, side), torch.arange(4) % 2), recipe=Recipe(epochs=1))
    assert learner.tasks == ()


def test_other_networks_and_other_inputs_are_not_mistaken_for_them() -> None:
    assert too_small(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.zeros(1, 3, 2, 2)) is None
    assert too_small(nn.Sequential(nn.ReLU()), torch.zeros(1, 3, 2, 2)) is None
    assert too_small(nn.Linear(3, 2), torch.zeros(1, 3, 2, 2)) is None
    assert too_small(conv5(), torch.zeros(1, 3, 24, 24)) is None
    assert too_small(conv5(), {"pixels": torch.zeros(1, 3, 2, 2)}) is None
    assert too_small(conv5(), torch.zeros(3, 2, 2)) is None
