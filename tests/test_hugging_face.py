"""Models of transformers as backbones: no class of theirs is known to nacre, and nothing about them is special."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, ResNetConfig, ResNetModel, ViTConfig, ViTModel

from nacre import CACL, Learner, Recipe

SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def words(generator: torch.Generator) -> dict[str, Tensor]:
    mask = torch.arange(7) < torch.randint(3, 8, (24, 1), generator=generator)
    return {"input_ids": torch.randint(1, 50, (24, 7), generator=generator), "attention_mask": mask.long()}


def images(generator: torch.Generator) -> Tensor:
    return torch.randn(24, 3, 16, 16, generator=generator)


def bert() -> nn.Module:
    return BertModel(BertConfig(vocab_size=50, max_position_embeddings=16, **SMALL))


def vit() -> nn.Module:
    return ViTModel(ViTConfig(image_size=16, patch_size=8, **SMALL))


def resnet() -> nn.Module:
    return ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"))


def flat(output: Any) -> Tensor:
    """Its pooled maps are [n, channels, 1, 1]."""
    features: Tensor = output["pooler_output"].flatten(1)
    return features


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Any], Any, int]] = {
    "bert": (bert, words, "pooler_output", 2 * 6 + 1),  # q, k, v, out and two of the MLP in a block; the pooler
    "vit": (vit, images, "pooler_output", 2 * 6 + 1 + 1),  # and the patches' projection
    "resnet": (resnet, images, flat, 1 + 2 + 3),  # the stem; two in a block, and a shortcut where it grows
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_transformers_learns_tasks_and_forgets_none(kind: str, tmp_path: Path) -> None:
    make, draw, features, layers = KINDS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        learner = Learner(make(), CACL(energy=0.01), base="backbone", features=features, device="cpu", progress=False)
    assert len(learner.knowledge.full_ranks) == layers  # type: ignore[attr-defined]
    inputs, y = draw(torch.Generator().manual_seed(1)), torch.arange(24) % 3
    learner.learn("one", (inputs, y), recipe=Recipe(epochs=1, batch_size=8))
    answers = learner.predict(inputs, task="one")
    learner.learn("two", (inputs, y % 2), recipe=Recipe(epochs=1, batch_size=8))
    learner.save(tmp_path / "life.nacre")
    given = features if callable(features) else None
    loaded = Learner.load(tmp_path / "life.nacre", backbone=make(), features=given, device="cpu")
    for life in (learner, loaded):
        assert torch.equal(life.predict(inputs, task="one"), answers)
    network = loaded.network("one")
    assert not any(type(module).__module__.startswith("nacre") for module in network.modules())
    with torch.no_grad():
        assert torch.equal(network(inputs), answers)
