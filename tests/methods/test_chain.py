"""A chain of layers: its links by hand, what is refused, and narrow chains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nacre import NacreError
from nacre.methods import ACL, HAT
from nacre.methods.chain import Link, chain, check_chain, first_linear, head_link, narrowed
from nacre.networks import conv5, vgg16_bn, vgg16_bn_head
from nacre.training import Epoch
from tests.methods.problems import drawn, learner_of, pictures, short


def test_the_links_of_conv5_and_its_head_by_hand() -> None:
    assert chain(conv5()) == (
        Link("conv1.weight", 64, None),
        Link("conv2.weight", 64, "conv1.weight"),
        Link("conv3.weight", 128, "conv2.weight"),
        Link("conv4.weight", 128, "conv3.weight"),
        Link("conv5.weight", 256, "conv4.weight"),
    )
    assert head_link(conv5(), nn.Linear(1024, 5)) == Link("weight", 5, "conv5.weight", 4)  # at 2 x 2 places


def test_vgg16_bn_is_a_chain_of_thirteen() -> None:
    links = chain(vgg16_bn())
    assert [link.units for link in links] == [64, 64, 128, 128, *[256] * 3, *[512] * 6]
    assert [link.before for link in links[1:]] == [link.weight for link in links[:-1]]
    assert head_link(vgg16_bn(), vgg16_bn_head(512, 5)) == Link("fc1.weight", 32, links[-1].weight, 1)


def test_the_columns_that_read_a_unit_are_those_that_flatten_makes_of_its_places() -> None:
    """A picture in which one unit alone is not 0 reaches a Linear in the columns that the link names."""
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    for unit in range(3):
        gate = torch.eye(3)[unit]
        maps = torch.ones(1, 3, 2, 2) * gate.view(1, 3, 1, 1)
        assert torch.equal(nn.Flatten()(maps), chain(net)[1].columns(gate, 2))


def test_sequentials_inside_of_sequentials_are_gone_through() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), nn.Sequential(nn.Linear(3, 2)))
    assert [link.weight for link in chain(net)] == ["0.0.weight", "1.0.weight"]
    assert chain(nn.Linear(4, 3)) == (Link("weight", 3, None),)


class OneOfMyOwn(nn.Module):
    pass


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([nn.Linear(4, 3), nn.LayerNorm(3)], "1 is LayerNorm"),  # mixes units
        ([nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4)], "1 is GroupNorm"),
        ([nn.Linear(4, 3), nn.Softmax(1)], "1 is Softmax"),
        ([nn.Conv2d(4, 4, 3, groups=2)], "0 is Conv2d"),
        ([nn.Linear(4, 3), OneOfMyOwn()], "1 is OneOfMyOwn"),
        ([nn.Conv2d(4, 4, 1), nn.Linear(4, 2)], "1 is Linear"),  # along the width of the picture
        ([nn.Conv2d(4, 4, 1), nn.Flatten(2)], "1 is Flatten"),
        ([nn.Linear(4, 3), nn.Flatten(), nn.Linear(9, 2)], "2.weight has 9 columns for the 3 units before"),
        ([nn.Linear(4, 3), nn.PReLU()], "1 is PReLU"),
    ],
)
def test_what_is_no_chain_is_refused_by_the_part_that_breaks_it(parts: list[nn.Module], why: str) -> None:
    with pytest.raises(NacreError, match=r"needs a chain: an nn\.Sequential of Linear layers") as error:
        chain(nn.Sequential(*parts))
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("trained", "features", "why"),
    [(["0.weight"], None, "trained are 0.weight$"), (["0.weight", "1.weight"], len, "features=.* may mix them$")],
)
def test_layers_that_are_not_trained_and_picked_features_are_refused(
    trained: list[str], features: Any, why: str
) -> None:
    with pytest.raises(NacreError, match=why):
        check_chain(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), trained, features)


def test_a_head_that_does_not_begin_with_a_linear_layer_is_refused() -> None:
    assert first_linear(nn.Sequential(nn.Dropout(), nn.Linear(3, 2)))[0] == "1"
    for head in (nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), OneOfMyOwn(), nn.Sequential()):
        with pytest.raises(NacreError, match="a head that begins with a Linear layer; got"):
            first_linear(head)


@pytest.mark.parametrize("build", [conv5, vgg16_bn])
def test_a_narrow_chain_turns_the_same_pictures_into_as_many_places_of_fewer_units(build: Any) -> None:
    x = torch.zeros(2, 3, 32, 32)
    wide = build().eval()
    thin = narrowed(wide, [link.units // 8 for link in chain(wide)]).eval()
    assert thin(x).shape[1] * 8 == wide(x).shape[1]
    assert [link.units * 8 for link in chain(thin)] == [link.units for link in chain(wide)]
    kinds = [[type(part) for part in net.modules()][1:] for net in (thin, wide)]
    assert kinds[0] == kinds[1]


def test_a_norm_layer_of_flat_features_is_narrowed_by_all_its_places() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 2, stride=2), nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 8, bias=False))
    thin = narrowed(net, [2, 3])
    assert thin(torch.zeros(5, 1, 4, 4)).shape == (5, 3)
    assert [tuple(p.shape) for p in thin.parameters()] == [(2, 1, 2, 2), (2,), (8,), (8,), (3, 8)]


@pytest.mark.parametrize("method", [HAT(rate=5.0), ACL()], ids=repr)
def test_a_head_may_flatten_the_features_itself(method: Any) -> None:
    """What is kept answers as the network did after its last epoch."""
    x, answers = pictures(5)[0], []

    def look(_: Epoch, network: nn.Module) -> None:
        with torch.no_grad():
            answers.append(network.eval()(x))

    learner = learner_of(method, drawn(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2))))
    head = nn.Sequential(nn.Flatten(), nn.Linear(72, 2))
    for axis in range(2):
        learner.learn(str(axis), pictures(axis), recipe=short(2), head=head, callbacks=[look])
    torch.testing.assert_close(learner.predict(x, task="1"), answers[-1])
