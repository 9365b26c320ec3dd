"""space.network(task): a plain torch module that shares nothing with anybody, whatever goes in and comes out."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from nacre import NacreError, SharedSpace
from nacre.space.plain import Features


class Body(nn.Module):
    """Features of two inputs, wrapped as the test wants them."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.left = nn.Linear(4, 6)
        self.right = nn.Linear(3, 6)
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("scale", torch.full((1,), 2.0))
        self.register_buffer("scratch", torch.ones(1), persistent=False)
        self.wrap = wrap

    def forward(self, left: Tensor, right: Tensor) -> Any:
        buffers = self.get_buffer("scale") * self.get_buffer("scratch")
        return self.wrap(self.norm(self.left(left) + self.right(right)).tanh() * buffers)


class Hidden(nn.Module):
    """A picker with control flow, which only an nn.Module can have."""

    def forward(self, output: dict[str, Tensor]) -> Tensor:
        hidden = output["hidden"]
        return hidden if hidden.shape[1] == 6 else hidden.mean(1)


class Case(NamedTuple):
    wrap: Callable[[Tensor], Any]
    features: Features
    inputs: type


def bare(features: Tensor) -> Tensor:
    return features


CASES = {
    "dict in": Case(bare, None, dict),
    "tuple in": Case(bare, None, tuple),
    "list in": Case(bare, None, list),
    "mapping in": Case(bare, None, UserDict),
    "key": Case(lambda x: {"other": x * 0, "hidden": x}, "hidden", dict),
    "index": Case(lambda x: (x * 0, x), 1, tuple),
    "last": Case(lambda x: [x * 0, x], -1, dict),
    "function": Case(lambda x: SimpleNamespace(hidden=x[:, None]), lambda output: output.hidden[:, 0] * 0.5, dict),
    "module": Case(lambda x: {"hidden": x}, Hidden(), tuple),
}


def inputs(case: Case, count: int = 5) -> Any:
    left, right = torch.randn(count, 4), torch.randn(count, 3)
    return case.inputs((left, right)) if case.inputs in (tuple, list) else case.inputs(left=left, right=right)


def train(network: nn.Module, x: Any) -> None:
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()


def taught(case: Case, tasks: int = 2) -> tuple[SharedSpace, Any, dict[str, Tensor]]:
    """A space that learnt some tasks, a batch, and what each trained network made of it."""
    torch.manual_seed(0)
    space = SharedSpace(Body(case.wrap), features=case.features)
    x, outputs = inputs(case), {}
    for at in range(tasks):
        network = space.expand(nn.Linear(6, 2 + at))
        train(network, inputs(case, 8))
        outputs[f"task {at}"] = network.eval()(x).detach()
        space.append(f"task {at}", network)
    return space, x, outputs


def images() -> tuple[SharedSpace, Tensor]:
    """A space of plain sequential networks that has learnt eight tasks."""
    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(128, 16), nn.Tanh()
    )
    space = SharedSpace(backbone)
    for at in range(8):
        network = space.expand(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 2 + at)))
        train(network, torch.randn(8, 3, 6, 6))
        space.append(f"task {at}", network)
    return space, torch.randn(4, 3, 6, 6)


def spans(tensors: Iterator[Tensor]) -> set[tuple[int, int]]:
    """Where tensors' storages lie in memory."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages if storage.nbytes()}


def of_module(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def of_space(space: SharedSpace) -> Iterator[Tensor]:
    yield from of_module(space._template.module)
    yield from space._sums._longest.values()
    for task in space.tasks:
        record = space.record(task)
        for factors in record.factors.values():
            yield from (factors.U, factors.s, factors.V)
        yield from (*of_module(record.head), *record.private.values(), *record.frozen.values())


def disjoint(one: set[tuple[int, int]], other: set[tuple[int, int]]) -> bool:
    return all(end <= start or stop <= begin for begin, end in one for start, stop in other)


def classes(module: nn.Module) -> set[str]:
    return {kind.__module__.split(".")[0] for part in module.modules() for kind in type(part).__mro__}


cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@cases
def test_whatever_goes_in_and_comes_out_the_bits_are_those_of_the_trained_network(case: Case) -> None:
    space, x, outputs = taught(case)
    for task, output in outputs.items():
        plain = space.network(task)
        assert torch.equal(plain(x), output)
        assert "nacre" not in classes(plain)
        assert not any(module.training for module in plain.modules())


@cases
def test_and_after_loading_too(case: Case, tmp_path: Path) -> None:
    space, x, outputs = taught(case)
    space.save(tmp_path / "space")
    given = case.features if callable(case.features) else None
    loaded = SharedSpace.load(tmp_path / "space", backbone=Body(case.wrap), features=given)
    for task, output in outputs.items():
        assert torch.equal(loaded.network(task)(x), output)


@cases
def test_a_network_asked_for_by_probe_sees_the_same_features(case: Case) -> None:
    space, x, _ = taught(case)
    assert space.probe(x).shape == (5, 6)


@cases
def test_a_plain_network_exports(case: Case) -> None:
    space, x, outputs = taught(case)
    given = dict(x) if case.inputs is UserDict else x
    program = torch.export.export(space.network("task 1"), (given,))
    torch.testing.assert_close(program.module()(given), outputs["task 1"], rtol=1e-6, atol=1e-6)


def test_a_sequential_network_is_plain_torch_through_and_through() -> None:
    space, x = images()
    plain = space.network("task 3")
    assert classes(plain) <= {"torch", "builtins"}
    assert type(plain) is nn.Sequential
    assert [type(module) for module in plain.get_submodule("backbone").children()] == [
        nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Dropout, nn.Flatten, nn.Linear, nn.Tanh,
    ]  # fmt: skip
    program = torch.export.export(plain, (x,))
    torch.testing.assert_close(program.module()(x), plain(x), rtol=1e-6, atol=1e-6)
    compiled = torch.compile(plain, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), plain(x))
    assert torch.equal(copy.deepcopy(plain)(x), plain(x))


def test_exported_for_any_batch_size() -> None:
    space, x = images()
    plain = space.network("task 0")
    program = torch.export.export(plain, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    more = torch.randn(9, 3, 6, 6)
    torch.testing.assert_close(program.module()(more), plain(more), rtol=1e-6, atol=1e-6)


def test_no_two_networks_share_memory_with_each_other_or_the_space() -> None:
    space, _ = images()
    trained = space.expand(nn.Linear(16, 2))
    plain = {name: space.network(name) for name in space.tasks}
    again = space.network("task 2")
    held = [spans(of_space(space)), spans(of_module(trained)), spans(of_module(again))]
    held += [spans(of_module(network)) for network in plain.values()]
    assert all(disjoint(one, other) for at, one in enumerate(held) for other in held[:at])
    assert not disjoint(held[0], spans(of_space(space))), "the check can fail"


@cases
def test_networks_with_pickers_share_no_memory_either(case: Case) -> None:
    space, _, _ = taught(case)
    networks = [space.network(task) for task in (*space.tasks, "task 0")]
    held = [spans(of_module(network)) for network in networks] + [spans(of_space(space))]
    assert all(disjoint(one, other) for at, one in enumerate(held) for other in held[:at])
    modules = [set(map(id, network.modules())) for network in networks]
    assert not any(one & other for at, one in enumerate(modules) for other in modules[:at])


@torch.no_grad()
def ruin(module: nn.Module) -> None:
    for tensor in of_module(module):
        tensor.fill_(1)
    module.train()


def test_ruining_a_plain_network_changes_nothing() -> None:
    space, x = images()
    before = {task: space.network(task)(x) for task in space.tasks}
    other = space.network("task 1")
    ruin(space.network("task 1"))
    ruin(space.expand(nn.Linear(16, 2)))
    assert torch.equal(other(x), before["task 1"])
    for task, output in before.items():
        assert torch.equal(space.network(task)(x), output), task


def test_ruining_a_trained_network_and_its_head_after_append_changes_nothing() -> None:
    space, x = images()
    head = nn.Linear(16, 3)
    network = space.expand(head)
    space.append("last", network)
    before = {task: space.network(task)(x) for task in space.tasks}
    ruin(network)
    ruin(head)
    for task, output in before.items():
        assert torch.equal(space.network(task)(x), output), task


def test_a_plain_network_can_be_trained_on() -> None:
    space, x = images()
    before = space.network("task 1")(x)
    plain = space.network("task 1")
    assert all(parameter.requires_grad for parameter in plain.parameters())
    train(plain, x)
    assert not torch.equal(plain.eval()(x), before)
    assert torch.equal(space.network("task 1")(x), before)


def test_eight_threads_get_the_bits_that_one_gets(tmp_path: Path) -> None:
    space, x = images()
    space.save(tmp_path / "space")
    alone = {task: space.network(task)(x) for task in space.tasks}
    loaded = SharedSpace.load(tmp_path / "space")  # nothing is read yet: the threads race for it
    asked = [space.tasks[(at * 3) % 8] for at in range(48)]
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda task: loaded.network(task)(x), asked))
    for task, output in zip(asked, outputs, strict=True):
        assert torch.equal(output, alone[task]), task


def test_eight_threads_may_share_one_network() -> None:
    space, x = images()
    plain = space.network("task 5")
    expected = plain(x)
    with ThreadPoolExecutor(8) as pool:
        assert all(torch.equal(output, expected) for output in pool.map(plain, [x] * 32))


# what is refused


def forward(wrap: Callable[[Tensor], Any], features: Features, head: nn.Module | None = None) -> None:
    case = Case(wrap, features, tuple)
    SharedSpace(Body(wrap), features=features).expand(head or nn.Linear(6, 2))(inputs(case))


@pytest.mark.parametrize(
    ("wrap", "features", "message"),
    [
        (lambda x: {"hidden": x}, "hiden", "features='hiden' picks nothing from the backbone's dict"),
        (lambda x: (x,), 3, "features=3 picks nothing from the backbone's tuple"),
        (lambda x: (x,), "hidden", "features='hidden' picks nothing from the backbone's tuple"),
        (bare, "hidden", "features='hidden' picks nothing from the backbone's Tensor"),
        (bare, lambda output: output.hidden, "picks nothing from the backbone's Tensor"),
        (lambda x: {"hidden": x}, None, r"gave a dict, nacre expects a tensor \(batch, features\): say with features="),
        (lambda x: (x, x), None, r"gave a tuple, nacre expects a tensor \(batch, features\): say with features="),
        (lambda x: {"hidden": (x,)}, "hidden", "gave a tuple, nacre expects a tensor"),
        (
            lambda x: x[:, None],
            None,
            r"turned \(float32\[5, 4\], float32\[5, 3\]\) into \[5, 1, 6\], nacre expects \(batch, features\)",
        ),
        (lambda x: x[:, :4], None, "the head reads 6 features, the backbone gave 4"),
    ],
)
def test_features_that_are_none_are_refused_in_words(
    wrap: Callable[[Tensor], Any], features: Features, message: str
) -> None:
    with pytest.raises(NacreError, match=message):
        forward(wrap, features)


def test_a_head_of_ones_own_may_read_any_tensor() -> None:
    forward(lambda x: x[:, None], None, nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))


def test_a_head_that_cannot_be_copied_is_refused_before_anything_is_learnt() -> None:
    head = nn.Linear(6, 2)
    head.register_buffer("made", 2 * head.weight)  # as hooks leave it that make a weight from others
    with pytest.raises(NacreError, match="the head cannot be copied"):
        SharedSpace(Body(bare)).expand(head)


def test_a_function_that_cannot_be_written_down_is_refused_before_anything_is_learnt() -> None:
    with pytest.raises(NacreError, match=r"cannot be written into a plain network .* give an nn.Module instead"):
        SharedSpace(Body(bare), features=lambda x: x if x.sum() > 0 else -x)
    with pytest.raises(NacreError, match="cannot be written into a plain network"):
        SharedSpace(Body(bare), features=lambda x: torch.ones(3))  # noqa: ARG005


def test_a_picker_with_weights_of_its_own_is_refused() -> None:
    """No task would keep them, and training them for a later task would change earlier ones."""
    with pytest.raises(NacreError, match=r"features=Linear has tensors of its own.* part of the backbone"):
        SharedSpace(Body(bare), features=nn.Linear(6, 6))


def test_what_a_picker_module_is_set_to_while_training_stays_there() -> None:
    picker = nn.Dropout(0.5)
    space = SharedSpace(Body(bare), features=picker)
    network = space.expand(nn.Linear(6, 2))
    x = inputs(CASES["tuple in"])
    train(network, x)
    space.append("a", network)
    other = space.expand(nn.Linear(6, 2)).eval()
    assert network.training
    assert not any(module.training for module in other.modules())
    assert torch.equal(space.network("a")(x), network.eval()(x))
