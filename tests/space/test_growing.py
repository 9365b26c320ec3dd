"""Weights that grow: what there was keeps its bits, tasks keep their widths, the size is that of all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nacre import NacreError, networks
from nacre.space import GrowingWeights
from nacre.space.description import build, describe
from nacre.space.widening import wider
from tests.methods.problems import layers, normed


def all_used(weights: GrowingWeights, growth: float) -> dict[str, Tensor]:
    return {name: torch.ones_like(mask) for name, mask in weights.taken(growth).items()}


def learnt(weights: GrowingWeights, task: str, growth: float, features: int = 12) -> None:
    """Stands for training: everything that no task owns moves."""
    network = weights.grown(nn.Linear(features, 2), growth)
    taken = weights.taken(growth)
    with torch.no_grad():
        for name, weight in network.shared().items():
            weight[~taken[name]] += 0.5
    weights.append(task, network, masks={name: mask | (torch.rand(mask.shape) < 0.5) for name, mask in taken.items()})


def wide(backbone: nn.Module, growth: float) -> list[Any]:
    described = describe(backbone)
    assert described is not None
    return [part for part in build(wider(described, growth)).modules() if not isinstance(part, nn.Sequential)]


def test_hidden_layers_get_more_units_and_the_features_stay() -> None:
    found = [part for part in wide(networks.conv5(), 1.5) if isinstance(part, nn.Conv2d)]
    # 64 and 128 times 1.2247, rounded up
    assert [(part.in_channels, part.out_channels) for part in found] == [
        (3, 79), (79, 79), (79, 157), (157, 157), (157, 256),
    ]  # fmt: skip
    for part in wide(networks.vgg16_bn(), 2.25):
        if isinstance(part, nn.BatchNorm2d):
            assert part.num_features in (96, 192, 384, 768, 512)
    assert [part.num_features for part in wide(networks.vgg16_bn(), 2.25) if isinstance(part, nn.BatchNorm2d)][
        -1
    ] == 512


def test_units_go_through_a_flatten() -> None:
    backbone = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 5), nn.Linear(5, 3))
    conv, _, norm, first, second = wide(backbone, 4.0)
    assert (conv.out_channels, norm.num_features, first.in_features) == (8, 24, 24)
    assert (first.out_features, second.in_features, second.out_features) == (10, 10, 3)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
            "a backbone with LayerNorm cannot be widened",
        ),
        (
            nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten()),
            "a backbone with Conv2d in groups cannot be widened",
        ),
        (nn.Linear(4, 2), "a Linear cannot be widened: that takes an nn.Sequential of torch's own layers"),
    ],
    ids=["norm over units", "groups", "no chain"],
)
def test_what_cannot_be_widened_is_refused(backbone: nn.Module, message: str) -> None:
    with pytest.raises(NacreError, match=f"^{message}$"):
        _ = GrowingWeights(backbone).can_grow


def test_a_single_layer_has_no_units_to_add() -> None:
    assert not GrowingWeights(nn.Sequential(nn.Linear(4, 8))).can_grow
    assert GrowingWeights(layers()).can_grow


def test_what_tasks_own_keeps_its_bits_when_the_network_grows() -> None:
    weights = GrowingWeights(layers())
    learnt(weights, "a", 1.0)
    before, masks = {name: value.clone() for name, value in weights.shared.items()}, weights.masks("a")
    network = weights.grown(nn.Linear(12, 2), 2.0)
    assert weights.growth == 1.0  # nothing has changed yet
    for name, weight in network.shared().items():
        rows, columns = before[name].shape
        assert weight.shape != before[name].shape
        assert torch.equal(weight[:rows, :columns][masks[name]], before[name][masks[name]])
        drawn = weight[:rows, :columns][~masks[name]]
        assert drawn.count_nonzero() == drawn.numel()  # no unit is 0 and stays so
    assert torch.equal(network.backbone.get_parameter("0.bias")[:16], weights.record("a").private["0.bias"])


@pytest.mark.parametrize("normal", [layers, normed], ids=["layers", "norm layers"])
def test_tasks_keep_their_widths_and_bits(normal: object, tmp_path: Path) -> None:
    assert callable(normal)
    weights = GrowingWeights(normal())
    x = torch.randn(5, 3, 8, 8) if normal is normed else torch.randn(5, 6)
    answers = {}
    for task, growth in (("a", 1.0), ("b", 1.5), ("c", 1.5), ("d", 2.0)):
        learnt(weights, task, growth)
        with torch.no_grad():
            answers[task] = weights.network(task)(x)
    weights.save(tmp_path / "s")
    loaded = GrowingWeights.load(tmp_path / "s")
    for each in (weights, loaded):
        assert each.growth == 2.0
        for task, answer in answers.items():
            assert torch.equal(each.network(task)(x).detach(), answer)
        widths = [next(each.network(task).parameters()).shape[0] for task in each.tasks]
        assert widths == ([8, 10, 10, 12] if normal is normed else [16, 20, 20, 23])
        network = each.grown(nn.Linear(12, 2), 2.0)
        each.append("e", network, masks=all_used(each, 2.0))
    assert loaded.size().megabytes == weights.size().megabytes


def test_the_size_is_that_of_the_widest_network_and_of_every_tasks_own_masks() -> None:
    weights = GrowingWeights(layers())
    learnt(weights, "a", 1.0)
    learnt(weights, "b", 1.5)
    first, second = 6 * 16 + 16 * 12, 6 * 20 + 20 * 12
    size = weights.size()
    assert (size.weights, size.mask_bits) == (second, first + second)
    assert size.private == (16 + 12) + (20 + 12)
    assert weights.size("a").mask_bits == first
    assert size.megabytes == pytest.approx((4 * (second + 60 + 2 * 26) + (first + second) / 8) / 1e6)


def test_a_network_of_other_weights_is_refused() -> None:
    weights = GrowingWeights(layers())
    with pytest.raises(NacreError, match="this network was expanded from other weights"):
        weights.append("a", GrowingWeights(layers()).grown(nn.Linear(12, 2), 3.0))
    assert weights.tasks == ()


@pytest.mark.parametrize("growth", [0.5, 1e300, float("nan")])
def test_a_growth_that_is_none_is_refused(growth: float) -> None:
    with pytest.raises(NacreError, match="a network grows to 1 to 1e\\+06 times its weights; got"):
        GrowingWeights(layers()).grown(nn.Linear(12, 2), growth)
