"""The low-rank form of a task's network: the same logits, fewer multiplications, and only where that is possible."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import nacre
from nacre import NacreError, SharedSpace, Start
from nacre.networks import conv5
from nacre.space.optimising import Optimize

HOW: tuple[Optimize, ...] = ("counted", "measured")
X = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def taught(rank: Any, tasks: int = 1, **options: Any) -> SharedSpace:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        space = SharedSpace(conv5(), **options)
        for number in range(tasks):
            network = space.expand(nn.Linear(1024, 5), rank=rank, start=Start("random")).eval()
            with torch.no_grad():
                for layer in network.factors().values():
                    layer.s.mul_(0.1)
                network(X)
            space.append(f"task {number}", network)
    return space


def flops(network: nn.Module, x: Tensor = X) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(x)
    return int(counter.get_total_flops())


def logits(network: nn.Module, x: Any = X) -> Tensor:
    with torch.no_grad():
        answer: Tensor = network(x)
    return answer


def tenth(space: SharedSpace) -> dict[str, int]:
    return {name: max(1, rank // 10) for name, rank in space.full_ranks.items()}


@pytest.mark.parametrize("how", HOW)
def test_the_logits_are_the_same_in_fewer_multiplications(how: Optimize) -> None:
    space = taught(tenth(SharedSpace(conv5())))
    dense, found = space.network("task 0"), space.network("task 0", optimize=how)
    assert float(logits(dense).std()) > 1e-3
    torch.testing.assert_close(logits(found), logits(dense), rtol=1e-4, atol=1e-4 * float(logits(dense).abs().max()))
    assert [type(part) for part in found.modules() if type(part).__module__.startswith("nacre")] == []
    if how == "counted":
        assert flops(found) < 0.2 * flops(dense)
    assert flops(found) <= flops(dense)


def test_each_layer_is_chosen_for_itself() -> None:
    space = taught({"conv1": 12, "conv2": 5, "conv3": 60, "conv4": 120, "conv5": 1})
    found = dict(space.network("task 0", optimize="counted").get_submodule("backbone").named_children())
    two = {name for name, module in found.items() if isinstance(module, nn.Sequential)}
    # of what one layer takes: 12 (64 + 27) / (64 27) = 0.63; 60 (128 + 576) / (128 576) = 0.57; conv4 1.04
    assert two == {"conv1", "conv2", "conv3", "conv5"}
    assert all(module.weight.is_contiguous(memory_format=torch.channels_last) for module in convolutions(found))


def test_a_layer_that_would_save_little_stays_one() -> None:
    space = taught({"conv1": 13, "conv2": 57, "conv3": 100, "conv4": 115, "conv5": 170})  # 0.68 of one layer and more
    assert space.full_ranks == {"conv1": 18, "conv2": 57, "conv3": 104, "conv4": 115, "conv5": 170}
    dense, found = space.network("task 0"), space.network("task 0", optimize="counted")
    assert torch.equal(logits(found), logits(dense))
    assert all(module.weight.is_contiguous() for module in convolutions(dict(found.named_modules())))


def convolutions(found: dict[str, nn.Module]) -> list[nn.Conv2d]:
    parts = [part for module in found.values() for part in module.modules()]
    return [part for part in parts if isinstance(part, nn.Conv2d)]


def test_a_layer_of_rank_0_costs_one_column() -> None:
    space = taught({"conv1": 3, "conv2": 0, "conv3": 0, "conv4": 0, "conv5": 2})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = space.expand(
            nn.Linear(1024, 5), rank={"conv1": 3, "conv5": 2, "conv2": 1, "conv3": 0, "conv4": 0}
        ).eval()
        network(X)
        space.append("another", network)
    for task in space.tasks:
        dense, found = space.network(task), space.network(task, optimize="counted")
        torch.testing.assert_close(logits(found), logits(dense))
        assert found.get_parameter("backbone.conv3.0.weight").shape == (1, 64, 3, 3)
        assert flops(found) < 0.1 * flops(dense)


def test_tasks_side_by_side_are_one_sum_of_their_joint_rank() -> None:
    space = taught(3, tasks=3)
    dense, found = space.network("task 2"), space.network("task 2", optimize="counted")
    torch.testing.assert_close(logits(found), logits(dense), rtol=1e-4, atol=1e-4 * float(logits(dense).abs().max()))
    first: Any = found.get_submodule("backbone.conv2.0")
    assert first.out_channels == space.identifier("task 2")["conv2"] == 9


def test_where_no_layer_has_a_low_rank_nothing_changes() -> None:
    on_base = taught(2, base="backbone")
    dense = taught(None)
    alone = SharedSpace(conv5())
    network = alone.expand(nn.Linear(1024, 5), dense=True).eval()
    network(X)
    alone.append("task 0", network)
    for space in (on_base, dense, alone):
        plain, found = space.network("task 0"), space.network("task 0", optimize="counted")
        if space is dense:  # the paper's r is just where it no longer pays
            assert flops(found) <= flops(plain)
        else:
            assert torch.equal(logits(found), logits(plain))
            assert flops(found) == flops(plain)


class Mixed(nn.Module):
    """Layers that other modules read the weights of, a weight that stands in two places, one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 16)
        self.other.weight = self.one.weight
        self.twice = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(self.attention(x, x, x, need_weights=False)[0])
        features: Tensor = self.twice(self.twice(self.other(self.one(x)))).mean(1)
        return features


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_layers_whose_weights_others_read_stay_as_they_are() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        space, x = SharedSpace(Mixed()), torch.randn(3, 5, 16)
        network = space.expand(nn.Linear(16, 2), rank=2).eval()
        network(x)
        space.append("a", network)
    found = space.network("a", optimize="counted")
    torch.testing.assert_close(logits(found, x), logits(space.network("a"), x), rtol=1e-4, atol=1e-5)
    two = [name for name, part in found.named_modules() if type(part) is nn.Sequential and name]
    assert two == ["backbone.twice"]


def test_a_learner_gives_it_and_says_what_it_takes() -> None:
    learner = nacre.Learner(nn.Sequential(nn.Linear(6, 40), nn.ReLU()), device="cpu", progress=False)
    x, y = torch.randn(32, 6), torch.arange(32) % 2
    learner.learn("a", (x, y), recipe=nacre.Recipe(epochs=1))
    for how in HOW:
        torch.testing.assert_close(logits(learner.network("a", optimize=how), x), learner.predict(x, task="a"))
    with pytest.raises(NacreError, match="optimize= is 'counted', 'measured' or None; got 'fast'"):
        learner.network("a", optimize="fast")  # type: ignore[arg-type]


def test_measuring_needs_inputs() -> None:
    space = SharedSpace(nn.Linear(30, 30))
    space.append("never run", space.expand(nn.Linear(30, 2), rank=1))
    assert flops(space.network("never run", optimize="counted"), torch.zeros(1, 30)) == 2 * (30 + 30 + 60)
    with pytest.raises(NacreError, match="its network has never seen any"):
        space.network("never run", optimize="measured")
