"""Trees of tensors: a tensor, or a dict, list or tuple of trees. What a network's inputs may be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError

Tree = Any  # Tensor | Mapping[str, Tree] | list[Tree] | tuple[Tree, ...]


def map_leaves(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """The same tree with `function` applied to every tensor.

    >>> import torch
    >>> map_leaves(lambda x: x + 1, {"a": torch.zeros(1)})
    {'a': tensor([1.])}
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        mapped = [map_leaves(function, value) for value in tree]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else type(tree)(mapped)  # a namedtuple takes them apart
    raise NacreError(f"inputs and targets are tensors, or dicts, lists or tuples of them; got {type(tree).__name__}")


def leaves(tree: Tree) -> Iterator[Tensor]:
    """The tensors of a tree, in order.

    >>> import torch
    >>> [tuple(leaf.shape) for leaf in leaves([torch.zeros(1), (torch.zeros(2, 3),)])]
    [(1,), (2, 3)]
    """
    found: list[Tensor] = []

    def collect(leaf: Tensor) -> Tensor:
        found.append(leaf)
        return leaf

    map_leaves(collect, tree)
    return iter(found)


def split(tree: Tree, size: int) -> list[Tree]:
    """A batch of examples in parts of at most `size`.

    >>> import torch
    >>> [len(part) for part in split(torch.zeros(5, 2), 2)]
    [2, 2, 1]
    """
    counts = {len(leaf) if leaf.dim() else 0 for leaf in leaves(tree)}
    if len(counts) != 1 or 0 in counts:
        raise NacreError(f"inputs must be a batch of at least one example; got {shapes(tree)}")
    count = counts.pop()
    return [tree] if count <= size else [between(tree, at, at + size) for at in range(0, count, size)]


def between(tree: Tree, first: int, last: int) -> Tree:
    """The examples from `first` to before `last`, as views."""
    return map_leaves(lambda leaf: leaf[first:last], tree)


def chosen(tree: Tree, examples: Sequence[int]) -> Tree:
    """Some examples of a batch, in the order named.

    >>> import torch
    >>> chosen(torch.tensor([10, 20, 30]), [2, 0])
    tensor([30, 10])
    """
    return map_leaves(lambda leaf: leaf[torch.tensor(examples, device=leaf.device)], tree)


def grouped(names: Sequence[str], inputs: Tree) -> dict[str, list[int]]:
    """Which examples of a batch have which name, one for each.

    >>> import torch
    >>> grouped(["b", "a", "b"], torch.zeros(3, 2))
    {'b': [0, 2], 'a': [1]}
    """
    counts = {len(leaf) if leaf.dim() else 0 for leaf in leaves(inputs)}
    if counts != {len(names)} or not names:
        raise NacreError(f"a list of tasks names one for each example; got {len(names)} for {shapes(inputs)}")
    groups: dict[str, list[int]] = {}
    for example, name in enumerate(names):
        groups.setdefault(name, []).append(example)
    return groups


def joined(trees: Iterable[Tree]) -> Tree:
    """Trees of equal structure as one, joined along the batch."""
    trees = list(trees)
    columns = zip(*(leaves(tree) for tree in trees), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return map_leaves(lambda _: next(joined), trees[0])


def shapes(tree: Tree) -> str:
    """The shapes and types in a tree, for messages: `float32[2, 3]` or `{ids: int64[2, 7]}`."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')}{list(tree.shape)}"
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key}: {shapes(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list | tuple):
        return "(" + ", ".join(shapes(value) for value in tree) + ")"
    return type(tree).__name__


@contextlib.contextmanager
def explained(what: str, tree: Tree, why: Callable[[], str | None] | None = None) -> Iterator[None]:
    """In this block what torch raises where shapes or types do not fit becomes a NacreError that says what came.

    why: may know a better reason than torch says.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError) as error:
        raise NacreError(f"{what} {shapes(tree)}: {(why and why()) or error}") from error


def arguments(inputs: Tree) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a module is called on a tree: a dict becomes keyword arguments, a list or tuple positional ones."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})


def apply(module: nn.Module, inputs: Tree) -> Any:
    """Calls a module on a tree."""
    args, kwargs = arguments(inputs)
    return module(*args, **kwargs)
