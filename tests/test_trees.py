"""Trees of tensors, of any shape that hypothesis thinks of, against a walk written here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nacre import NacreError
from nacre.trees import apply, explained, leaves, map_leaves, shapes, split


class Pair(NamedTuple):
    left: Any
    right: Any


def tensors(examples: int | None = None) -> st.SearchStrategy[Tensor]:
    """Small tensors; with so many examples each."""
    sizes = st.lists(st.integers(0, 3), max_size=2)
    first = [] if examples is None else [examples]
    made: st.SearchStrategy[Tensor] = st.builds(lambda size: torch.rand([*first, *size]), sizes)
    return made


def trees(leaf: st.SearchStrategy[Any], *, least: int = 0) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf,
        lambda part: st.one_of(
            st.lists(part, min_size=least, max_size=3),
            st.lists(part, min_size=least, max_size=3).map(tuple),
            st.dictionaries(st.text(max_size=4), part, min_size=least, max_size=3),
            st.builds(Pair, part, part),
        ),
        max_leaves=8,
    )


def walk(tree: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every leaf with the way to it: the kinds of what holds it, and where it is in there."""
    if isinstance(tree, dict | list | tuple):
        for place, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            for way, leaf in walk(part):
                yield (type(tree), place, *way), leaf
    else:
        yield (), tree


@given(trees(tensors()))
def test_leaves_are_the_tensors_from_left_to_right(tree: Any) -> None:
    assert [id(leaf) for leaf in leaves(tree)] == [id(leaf) for _, leaf in walk(tree)]


@given(trees(tensors()))
def test_mapping_keeps_the_tree_and_changes_each_tensor_once(tree: Any) -> None:
    before = [(way, leaf.clone()) for way, leaf in walk(tree)]
    mapped = map_leaves(lambda leaf: leaf + 1, tree)
    assert [way for way, _ in walk(mapped)] == [way for way, _ in before]
    for (_, new), (_, old) in zip(walk(mapped), before, strict=True):
        assert torch.equal(new, old + 1)
    for (_, left), (_, old) in zip(walk(tree), before, strict=True):
        assert torch.equal(left, old)  # the tree itself is left alone


@given(trees(tensors(examples=7), least=1), st.integers(1, 9))
def test_parts_are_of_one_size_and_together_the_whole(tree: Any, size: int) -> None:
    parts = split(tree, size)
    counts = [{len(leaf) for leaf in leaves(part)} for part in parts]
    assert all(count == {size} for count in counts[:-1])
    assert sum(count.pop() for count in counts) == 7
    columns = zip(*(list(leaves(part)) for part in parts), strict=True)
    for column, leaf in zip(columns, leaves(tree), strict=True):
        assert torch.equal(torch.cat(column), leaf)
    assert [[way for way, _ in walk(part)] for part in parts] == [[way for way, _ in walk(tree)]] * len(parts)


@given(trees(tensors()))
def test_shapes_names_every_tensor(tree: Any) -> None:
    said = shapes(tree)
    assert said.count("float32[") == len(list(leaves(tree)))
    at = 0
    for _, leaf in walk(tree):  # in order
        at = said.index(f"float32{list(leaf.shape)}", at) + 1


OTHERS = st.sampled_from([None, 7, 0.5, "text", b"bytes", {1, 2}, object()])


@given(trees(st.one_of(tensors(), OTHERS)))
def test_what_is_no_tensor_is_named_by_its_type(tree: Any) -> None:
    wrong = [type(leaf).__name__ for _, leaf in walk(tree) if not isinstance(leaf, Tensor)]
    if wrong:
        with pytest.raises(NacreError, match=f"got {wrong[0]}$"):
            map_leaves(lambda leaf: leaf, tree)
        assert all(name in shapes(tree) for name in wrong)
    else:
        map_leaves(lambda leaf: leaf, tree)


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(torch.zeros(0, 3), id="no examples"),
        pytest.param(torch.tensor(1.0), id="a number"),
        pytest.param([torch.zeros(3), torch.zeros(4)], id="two counts"),
        pytest.param({}, id="no tensor"),
        pytest.param([torch.zeros(3), torch.tensor(1.0)], id="a number beside a batch"),
    ],
)
def test_what_is_no_batch_cannot_be_split(tree: Any) -> None:
    with pytest.raises(NacreError, match="a batch of at least one example; got ") as caught:
        split(tree, 2)
    assert shapes(tree) in str(caught.value)


def test_a_batch_that_fits_is_not_copied() -> None:
    x = torch.zeros(4, 2)
    (part,) = split(x, 4)
    assert part is x


class Sum(nn.Module):
    def forward(self, a: Tensor, b: Tensor, scale: Tensor | None = None) -> Tensor:
        return (a - b) * (1 if scale is None else scale)


def test_a_dict_becomes_named_arguments_and_a_sequence_places() -> None:
    a, b = torch.tensor([5.0]), torch.tensor([3.0])
    for inputs in ({"b": b, "a": a}, [a, b], (a, b), Pair(a, b)):
        assert apply(Sum(), inputs).item() == 2.0
    assert apply(nn.Identity(), a) is a
    assert apply(Sum(), {"a": a, "b": b, "scale": a}).item() == 10.0


def test_what_torch_raises_is_explained_with_what_came() -> None:
    inputs = {"x": torch.zeros(2, 3)}
    with (
        pytest.raises(NacreError, match=r"cannot be multiplied \{x: float32\[2, 3\]\}: mat1") as caught,
        explained("these cannot be multiplied", inputs),
    ):
        inputs["x"] @ torch.zeros(4, 4)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, torch.OutOfMemoryError])
def test_what_is_not_about_the_data_passes(error: type[BaseException]) -> None:
    with pytest.raises(error), explained("these cannot be multiplied", torch.zeros(2)):
        raise error
