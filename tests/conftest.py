"""Before any test: one thread a process. The processes that tests start set the same, so that bits can be compared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

from nacre import Learner, NacreError

torch.set_num_threads(1)


def known(learner: Learner, inputs: Tensor) -> dict[str, Any]:
    """All that has been learnt: tasks, ranks, sizes, every bit of every network and of what each answers."""
    networks = {
        f"{task}/{name}": tensor.numpy().tobytes()
        for task in learner.tasks
        for name, tensor in learner.network(task).state_dict().items()
    }
    answers = [learner.predict(inputs, task=task).numpy().tobytes() for task in learner.tasks]
    ranks = [learner.knowledge.ranks(task) for task in learner.tasks]
    return {"tasks": learner.tasks, "ranks": ranks, "size": learner.knowledge.size(), "bits": (networks, answers)}


@pytest.fixture
def knowledge() -> Callable[[Learner, Tensor], dict[str, Any]]:
    return known


@pytest.fixture
def refused() -> Callable[..., AbstractContextManager[None]]:
    """`with refused(learner, inputs, *said):` in the block a NacreError is raised that says all of this, on one line
    and without naming what is inside of nacre; the learner knows exactly what it knew."""

    @contextlib.contextmanager
    def check(learner: Learner, inputs: Tensor, *said: str) -> Iterator[None]:
        before = known(learner, inputs)
        with pytest.raises(NacreError) as caught:
            yield
        message = str(caught.value)
        for part in said:
            assert part in message, message
        assert "\n" not in message
        assert "0x" not in message or "got <" in message, message  # addresses only in what a user gave
        assert known(learner, inputs) == before

    return check
