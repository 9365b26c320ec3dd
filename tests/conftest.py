"""Before any test: one thread a process. The processes that tests start set the same, so that bits can be compared."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
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


# pretrained models

FAMILIES = ("resnet", "vit", "bert")


@dataclass(frozen=True)
class Saved:
    """A model of a family: where it is, of which kind, and inputs for it."""

    folder: Path
    kind: Any
    whole: Any  # the model itself, classifier and all
    inputs: Any


def save_family(family: str, folder: Path) -> Saved:
    transformers: Any = importlib.import_module("transformers")  # its configurations take more than they declare
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images, ids = torch.randn(3, 3, 32, 32), torch.randint(1, 90, (3, 12))
        small: dict[str, Any] = {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
        }
        config: Any
        whole: Any
        inputs: Any
        if family == "resnet":
            config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=4)
            whole, inputs = transformers.ResNetForImageClassification(config), images
        elif family == "vit":
            config = transformers.ViTConfig(**small, image_size=32, patch_size=8, num_labels=4)
            whole, inputs = transformers.ViTForImageClassification(config), images
        else:
            config = transformers.BertConfig(**small, vocab_size=99, max_position_embeddings=20, num_labels=4)
            whole = transformers.BertForSequenceClassification(config)
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for tensor in whole.state_dict().values():  # statistics and biases that are not 0 and 1
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.uniform_(0.2, 1.0)
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        whole.eval().save_pretrained(folder)
    return Saved(folder, "text" if family == "bert" else "image", whole, inputs)


@pytest.fixture(scope="session")
def save_model() -> Callable[[str, Path], Saved]:
    """Saves a small model of a family, with drawn weights, to a folder, as pretrained ones are: no hub is asked."""
    return save_family


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A saved model of each of three families: convolutional, vision transformer, text encoder."""
    return save_family(request.param, tmp_path_factory.mktemp("models") / request.param)
