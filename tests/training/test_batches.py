from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from nacre import NacreError, Recipe
from nacre.training.batch import Batches, batch_indices, share
from nacre.training.batches import as_batches
from nacre.training.examples import check_classes
from nacre.training.held import Held
from nacre.training.processes import Processes
from nacre.training.streamed import Read

ONE = Processes(torch.device("cpu"))
FORKS = "ignore:.*multi-threaded.*fork:DeprecationWarning"  # of Python 3.12 and newer, wherever torch has threads


class Pair(NamedTuple):
    left: Any
    right: Any


class Numbers(Dataset[Any]):
    """Example i is the number i and its class i % 3; with noise, something random is added at each reading."""

    def __init__(self, count: int, noise: bool = False) -> None:
        self.count, self.noise, self.read = count, noise, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.read += 1
        drawn = torch.rand(1) + np.random.rand() if self.noise else torch.zeros(1)
        return torch.tensor([float(index)]) + drawn.float() / 10, index % 3


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter([(torch.zeros(1), 0)])

    def __len__(self) -> int:
        return 1


def epoch_of(batches: Batches, *seed: object) -> list[float]:
    """The first number of every input, in the order of the epoch."""
    return [float(value) for batch in batches.epoch(*seed) for value in batch.inputs[:, 0]]


def tensors(count: int) -> tuple[Tensor, Tensor]:
    return torch.arange(float(count))[:, None], torch.arange(count) % 3


def kinds(count: int, batch_size: int = 4) -> dict[str, Batches]:
    """The same examples as tensors, as a Dataset and as a DataLoader that shuffles."""
    recipe = Recipe(batch_size=batch_size)
    loader = DataLoader(Numbers(count), batch_size=batch_size, shuffle=True, generator=torch.Generator())
    return {
        "tensors": as_batches(tensors(count), recipe, ONE),
        "dataset": as_batches(Numbers(count), recipe, ONE),
        "loader": as_batches(loader, recipe, ONE),
    }


# which examples make a batch


@settings(deadline=None)
@given(count=st.integers(1, 300), size=st.integers(1, 70))
def test_every_example_is_in_one_batch_and_none_is_left_alone(count: int, size: int) -> None:
    runs = list(batch_indices(torch.arange(count), size))
    assert torch.cat(runs).tolist() == list(range(count))
    assert all(len(run) == size for run in runs[:-1])
    assert 1 <= len(runs[-1]) <= size + 1
    if size > 1 and count > 1:
        assert len(runs[-1]) > 1


def test_a_last_batch_of_one_joins_the_one_before() -> None:
    assert [len(run) for run in batch_indices(torch.arange(9), 4)] == [4, 5]
    assert [len(run) for run in batch_indices(torch.arange(10), 4)] == [4, 4, 2]
    assert [len(run) for run in batch_indices(torch.arange(1), 4)] == [1]


@settings(deadline=None)
@given(count=st.integers(1, 40), processes=st.integers(1, 9))
def test_the_weighted_mean_over_processes_is_the_mean_of_the_batch(count: int, processes: int) -> None:
    values = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    means, seen = [], []
    for rank in range(processes):
        mine, weight = share(torch.arange(count), Processes(torch.device("cpu"), processes, rank))
        assert len(mine) >= 1
        means.append(values[mine].mean() * weight)
        seen += mine.tolist() if weight else []
    assert torch.allclose(torch.stack(means).mean(), values.mean(), atol=1e-12)
    assert seen == list(range(count))


# epochs


@pytest.mark.parametrize("kind", ["tensors", "dataset", "loader"])
def test_an_epoch_goes_through_every_example_once_in_an_order_of_its_own(kind: str) -> None:
    batches = kinds(22)[kind]
    first, again, second = epoch_of(batches, 0, 1), epoch_of(batches, 0, 1), epoch_of(batches, 0, 2)
    assert sorted(first) == sorted(second) == list(range(22))
    assert first == again
    assert first != second
    assert first != sorted(first)


@pytest.mark.parametrize("kind", ["tensors", "dataset", "loader"])
def test_evaluation_goes_through_every_example_once(kind: str) -> None:
    parts = list(kinds(1100)[kind].in_order())
    inputs, targets = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    order = inputs[:, 0].argsort() if kind == "loader" else torch.arange(1100)
    assert torch.equal(inputs[order, 0], torch.arange(1100.0))
    assert torch.equal(targets[order], torch.arange(1100) % 3)


@pytest.mark.parametrize("kind", ["tensors", "dataset", "loader"])
def test_the_size_of_the_whole_batch_is_told_to_every_process(kind: str) -> None:
    recipe, seen = Recipe(batch_size=4), []
    for rank in range(3):
        process = Processes(torch.device("cpu"), 3, rank)
        data: dict[str, Any] = {
            "tensors": tensors(10),
            "dataset": Numbers(10),
            "loader": DataLoader(Numbers(10), batch_size=4),
        }
        found = list(as_batches(data[kind], recipe, process).epoch(0))
        assert [batch.examples for batch in found] == [4, 4, 2]
        assert [len(batch.inputs) for batch in found] == [[2, 2, 1], [1, 1, 1], [1, 1, 1]][rank]
        assert [batch.weight for batch in found] == pytest.approx(
            [[1.5, 1.5, 1.5], [0.75, 0.75, 1.5], [0.75, 0.75, 0]][rank]
        )
        seen += [float(value) for batch in found if batch.weight for value in batch.inputs[:, 0]]
    assert sorted(seen) == list(range(10))


def test_a_dataset_is_read_anew_in_every_epoch() -> None:
    data = Numbers(12, noise=True)
    batches = as_batches(data, Recipe(batch_size=4), ONE)
    first, second = sorted(epoch_of(batches, 0, 1)), sorted(epoch_of(batches, 0, 2))
    assert data.read == 24
    assert [int(value) for value in first] == [int(value) for value in second] == list(range(12))
    assert not set(first) & set(second)
    assert sorted(epoch_of(batches, 0, 1)) == first


def test_keep_reads_a_dataset_once() -> None:
    data = Numbers(12, noise=True)
    batches = as_batches(data, Recipe(batch_size=4, keep=True), ONE)
    first, second = sorted(epoch_of(batches, 0, 1)), sorted(epoch_of(batches, 0, 2))
    assert data.read == 12
    assert first == second


@pytest.mark.filterwarnings(FORKS)
def test_the_numbers_drawn_do_not_depend_on_the_number_of_workers() -> None:
    read = []
    for workers in (0, 2):
        batches = as_batches(Numbers(20, noise=True), Recipe(batch_size=4, workers=workers), ONE)
        read.append([epoch_of(batches, 0, number) for number in range(3)])
    assert read[0] == read[1]


@pytest.mark.filterwarnings(FORKS)
def test_an_epoch_read_by_workers_is_the_same_whether_or_not_others_were_read_before() -> None:
    recipe = Recipe(batch_size=4, workers=1)
    whole, resumed = (as_batches(Numbers(12, noise=True), recipe, ONE) for _ in range(2))
    list(whole.in_order())
    epoch_of(whole, 0, 0)
    assert epoch_of(whole, 0, 1) == epoch_of(resumed, 0, 1)


def test_processes_draw_different_noise_for_different_examples() -> None:
    noise = []
    for rank in range(2):
        process = Processes(torch.device("cpu"), 2, rank)
        batches = as_batches(Numbers(8, noise=True), Recipe(batch_size=8), process)
        noise += [round(value % 1, 5) for value in epoch_of(batches, 0)]
    assert len(set(noise)) == 8


def test_reading_leaves_the_users_random_numbers_alone() -> None:
    recipe = Recipe(batch_size=4)
    before, numpy_before = torch.get_rng_state(), pickle.dumps(np.random.get_state())
    for data in (tensors(12), Numbers(12, noise=True)):
        batches = as_batches(data, recipe, ONE)
        epoch_of(batches, 0)
        list(batches.in_order())
    as_batches(Numbers(12), Recipe(keep=True), ONE)
    assert torch.equal(torch.get_rng_state(), before)
    assert pickle.dumps(np.random.get_state()) == numpy_before


def test_a_dataset_that_gives_many_at_once_is_asked_for_many_at_once() -> None:
    asked: list[list[int]] = []

    class Bulk(Numbers):
        def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
            asked.append(indices)
            return [self[index] for index in indices]

    assert sorted(epoch_of(as_batches(Bulk(10), Recipe(batch_size=5), ONE), 0)) == list(range(10))
    assert [len(indices) for indices in asked] == [5, 5]


def test_a_subset_reads_as_any_dataset() -> None:
    part = Subset(Numbers(10), [2, 3, 5, 7])
    assert sorted(epoch_of(as_batches(part, Recipe(batch_size=2), ONE), 0)) == [2, 3, 5, 7]


# a DataLoader of the user's


def test_the_generator_of_a_loader_is_seeded_for_every_epoch() -> None:
    """So that an epoch has the same order whether or not the run was interrupted."""
    loaders = [DataLoader(Numbers(12), batch_size=4, shuffle=True, generator=torch.Generator()) for _ in range(2)]
    whole, resumed = (as_batches(loader, Recipe(), ONE) for loader in loaders)
    epoch_of(whole, 0, 0)
    assert epoch_of(whole, 0, 1) == epoch_of(resumed, 0, 1)


def test_so_is_the_generator_of_its_sampler() -> None:
    loaders = [
        DataLoader(data, batch_size=4, sampler=RandomSampler(data, generator=torch.Generator()))
        for data in (Numbers(12), Numbers(12))
    ]
    whole, resumed = (as_batches(loader, Recipe(), ONE) for loader in loaders)
    epoch_of(whole, 0, 0)
    assert epoch_of(whole, 0, 1) == epoch_of(resumed, 0, 1)


def test_so_is_the_generator_of_a_sampler_within_its_batch_sampler() -> None:
    loaders = [
        DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data, generator=torch.Generator()), 4, False))
        for data in (Numbers(12), Numbers(12))
    ]
    whole, resumed = (as_batches(loader, Recipe(), ONE) for loader in loaders)
    epoch_of(whole, 0, 0)
    assert epoch_of(whole, 0, 1) == epoch_of(resumed, 0, 1)


def test_all_of_a_loader_is_gone_through_in_one_order_every_time() -> None:
    loader = DataLoader(Numbers(40), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(7))
    batches = as_batches(loader, Recipe(), ONE)
    first, second = ([inputs[:, 0].tolist() for inputs, _ in batches.in_order()] for _ in range(2))
    assert first == second


def test_a_loaders_own_batches_are_kept() -> None:
    sampler = WeightedRandomSampler([0.0, 1.0, 0.0], num_samples=10)
    batches = as_batches(DataLoader(Numbers(3), batch_size=5, sampler=sampler), Recipe(batch_size=64), ONE)
    assert epoch_of(batches, 0) == [1.0] * 10
    assert [batch.examples for batch in batches.epoch(0)] == [5, 5]


# trees


class Fields(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"ids": torch.tensor([index, index]), "mask": torch.ones(2), "labels": index % 2}


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_a_dict_with_labels_is_inputs_and_targets(kind: str) -> None:
    data = Fields() if kind == "dataset" else DataLoader(Fields(), batch_size=3)
    for batch in as_batches(data, Recipe(batch_size=3), ONE).epoch(0):
        assert list(batch.inputs) == ["ids", "mask"]
        assert batch.inputs["ids"].shape == (3, 2)
        assert torch.equal(batch.targets, batch.inputs["ids"][:, 0] % 2)


@pytest.mark.parametrize("kind", ["tensors", "dataset", "loader"])
@pytest.mark.parametrize("tree", ["dict", "list", "tuple", "namedtuple", "nested"])
def test_inputs_may_be_any_tree(kind: str, tree: str) -> None:
    def grow(x: Tensor) -> Any:
        shapes: dict[str, Any] = {
            "dict": {"a": x, "b": -x},
            "list": [x, -x],
            "tuple": (x, -x),
            "namedtuple": Pair(x, -x),
            "nested": {"a": (x, [-x])},
        }
        return shapes[tree]

    class Grown(Numbers):
        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return grow(x), y

    x, y = tensors(7)
    data: dict[str, Any] = {"tensors": (grow(x), y), "dataset": Grown(7), "loader": DataLoader(Grown(7), batch_size=3)}
    seen: list[float] = []
    for batch in as_batches(data[kind], Recipe(batch_size=3), ONE).epoch(0):
        inputs = batch.inputs["a"] if tree == "nested" else batch.inputs
        left, right = inputs.values() if isinstance(inputs, dict) else inputs
        assert type(inputs) is {"namedtuple": Pair, "list": list, "dict": dict}.get(tree, type(inputs))
        assert torch.equal(left, -(right[0] if tree == "nested" else right))
        seen += left[:, 0].tolist()
    assert sorted(seen) == list(range(7))


def test_augmentation_changes_every_batch_and_draws_from_the_epoch() -> None:
    def shift(inputs: Tensor, draw: torch.Generator) -> Tensor:
        return inputs + torch.rand(len(inputs), 1, generator=draw) / 2

    for data in (tensors(10), Numbers(10), DataLoader(Numbers(10), batch_size=4)):
        batches = as_batches(data, Recipe(batch_size=4, augment=shift), ONE)
        first, again, second = (sorted(epoch_of(batches, 0, number)) for number in (1, 1, 2))
        assert first == again
        assert not set(first) & set(second)
        assert [int(value) for value in first] == list(range(10))
        assert all(x[0] == int(x[0]) for inputs, _ in batches.in_order() for x in inputs)


# what is refused


@pytest.mark.parametrize(
    ("data", "came"),
    [
        ({"x": torch.zeros(4, 1), "labels": torch.zeros(4).long()}, "dict"),
        ("cats", "str"),
        (torch.zeros(4, 1), "Tensor"),
        (iter([1]), "list_iterator"),
        (None, "NoneType"),
        (7, "int"),
        (Stream(), "Stream"),
    ],
    ids=["dict", "str", "tensor", "iterator", "none", "number", "iterable dataset"],
)
def test_data_of_another_kind_is_refused_by_name(data: Any, came: str) -> None:
    message = rf"a pair \(inputs, targets\) of tensors, a map-style Dataset or a DataLoader; got {came}"
    with pytest.raises(NacreError, match=message):
        as_batches(data, Recipe(), ONE)


def test_arrays_of_numpy_are_refused_by_name() -> None:
    with pytest.raises(NacreError, match=r"inputs and targets are tensors, .*; got ndarray"):
        as_batches((np.zeros((4, 1)), np.zeros(4)), Recipe(), ONE)


@pytest.mark.parametrize("keep", [True, False])
def test_a_dataset_of_something_else_says_what_an_example_is(keep: bool) -> None:
    class Triples(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(1), 0, 0

    with pytest.raises(NacreError, match=r"an example is a pair \(inputs, target\) or a dict with the key 'labels'"):
        as_batches(Triples(3), Recipe(keep=keep), ONE).first()


def test_three_tensors_are_no_pair() -> None:
    data = TensorDataset(torch.zeros(3, 1), torch.zeros(3), torch.zeros(3))
    with pytest.raises(NacreError, match="an example is a pair"):
        as_batches(data, Recipe(), ONE).first()


@pytest.mark.parametrize("keep", [True, False])
def test_an_empty_dataset_is_refused(keep: bool) -> None:
    with pytest.raises(NacreError, match="the data set is empty"):
        as_batches(Numbers(0), Recipe(keep=keep), ONE)


def test_an_empty_loader_is_refused() -> None:
    with pytest.raises(NacreError, match="the DataLoader gave no batch"):
        as_batches(DataLoader(Numbers(0)), Recipe(), ONE).first()


@pytest.mark.parametrize(
    ("inputs", "targets", "came"),
    [
        (torch.zeros(4, 1), torch.zeros(3).long(), r"float32\[4, 1\] and int64\[3\]"),
        (torch.zeros(0, 1), torch.zeros(0).long(), r"float32\[0, 1\] and int64\[0\]"),
        (torch.zeros(4, 1), torch.tensor(1), r"float32\[4, 1\] and int64\[\]"),
        ({"a": torch.zeros(4, 1), "b": torch.zeros(5, 1)}, torch.zeros(4).long(), r"\{a: float32\[4, 1\], b"),
    ],
)
def test_inputs_and_targets_must_be_equally_many_and_not_none(inputs: Any, targets: Tensor, came: str) -> None:
    with pytest.raises(NacreError, match=f"equally many examples, at least one; got {came}"):
        as_batches((inputs, targets), Recipe(), ONE)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0.0, 1.0]), r"one integer for each example; got float32\[2\]"),
        (torch.tensor([True, False]), r"one integer for each example; got bool\[2\]"),
        (torch.tensor([[0, 1], [1, 0]]), r"one integer for each example; got int64\[2, 2\]"),
        ({"a": torch.tensor([0])}, r"one integer for each example; got \{a: int64\[1\]\}"),
        (torch.tensor([0, -1]), r"must be 0 to 2; got -1 to 0"),
        (torch.tensor([1, 3]), r"must be 0 to 2; got 1 to 3"),
    ],
)
def test_targets_that_are_no_class_numbers_are_named(targets: Any, message: str) -> None:
    with pytest.raises(NacreError, match=message):
        check_classes(targets, 3)


def test_class_numbers_may_be_integers_of_any_size() -> None:
    for kind in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        check_classes(torch.tensor([0, 2], dtype=kind), 3)


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_a_stream_is_refused_at_the_batch_that_holds_a_wrong_label(kind: str) -> None:
    batches = kinds(9)[kind]
    batches.expect_classes(2)
    with pytest.raises(NacreError, match="must be 0 to 1; got 0 to 2"):
        epoch_of(batches, 0)
    with pytest.raises(NacreError, match="must be 0 to 1; got 0 to 2"):
        list(batches.in_order())


def test_tensors_are_refused_at_once() -> None:
    with pytest.raises(NacreError, match="must be 0 to 1; got 0 to 2"):
        kinds(9)["tensors"].expect_classes(2)


def test_a_tensor_dataset_is_taken_as_its_tensors() -> None:
    assert type(as_batches(TensorDataset(*tensors(4)), Recipe(), ONE)) is Held
    assert type(as_batches(Numbers(4), Recipe(), ONE)) is Read
