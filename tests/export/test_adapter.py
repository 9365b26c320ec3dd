"""LoRA adapters: the files say the weights that the task has, worked out in numpy; PEFT itself, where it is there."""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor, nn

from nacre import NacreError, SharedSpace, Start
from nacre.export import from_peft, to_peft
from nacre.networks import pretrained


def teach(space: SharedSpace, task: str, inputs: Any, rank: Any, features: int = 16) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(space.tasks))
        network = space.expand(nn.Linear(features, 3), rank=rank, start=Start("random")).train()
        optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.01)
        network(inputs).square().mean().backward()
        optimizer.step()
        network.eval()
    space.append(task, network)


def taught(saved: Any) -> SharedSpace:
    """Two tasks; the second has other ranks in every layer, 0 in some."""
    backbone = pretrained(saved.folder, saved.kind)
    space = SharedSpace(backbone, base="backbone", source=f"hf:{saved.folder}", features="logits")
    teach(space, "a", saved.inputs, 2)
    teach(space, "b", saved.inputs, {name: number % 3 for number, name in enumerate(space.layers)})
    return space


def logits(model: nn.Module, inputs: Any) -> Tensor:
    with torch.no_grad():
        answer = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return answer if isinstance(answer, Tensor) else answer.logits


def answers(space: SharedSpace, task: str, inputs: Any) -> Tensor:
    with torch.no_grad():
        answer: Tensor = space.network(task)(inputs)
    return answer


def laid_on(base: dict[str, np.ndarray[Any, Any]], folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """A state after an adapter, as LoRA's paper and PEFT's file format have it: W + alpha / r B A."""
    config = json.loads((folder / "adapter_config.json").read_text())
    named = {
        name.removeprefix("base_model.model."): tensor
        for name, tensor in safetensors.numpy.load_file(folder / "adapter_model.safetensors").items()
    }
    state = dict(base)
    for name, A in named.items():
        place, lora, _ = name.rpartition(".lora_A.weight")
        if not lora:
            if ".lora_B." not in name:
                state[name.replace(".base_layer.", ".")] = tensor = named[name]
                assert tensor.dtype in (np.float32, np.int64)
            continue
        assert re.fullmatch(config["target_modules"], place)
        patterns = [
            (key, value) for key, value in config["rank_pattern"].items() if re.match(rf"(.*\.)?({key})$", place)
        ]
        assert [value for _, value in patterns] == ([] if len(A) == config["r"] else [len(A)])
        assert config["alpha_pattern"] == config["rank_pattern"]
        assert config["lora_alpha"] == config["r"]
        change = named[f"{place}.lora_B.weight"].reshape(-1, len(A)).astype(np.float64) @ A.reshape(len(A), -1)
        weight = state[f"{place}.weight"]
        state[f"{place}.weight"] = (weight + change.reshape(weight.shape)).astype(np.float32)
    return state


@pytest.mark.parametrize("task", ["a", "b"])
def test_the_files_say_the_weights_that_the_task_has(saved: Any, task: str, tmp_path: Path) -> None:
    space = taught(saved)
    folder = to_peft(space, task, tmp_path / "adapter")
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    base = {name: tensor.numpy() for name, tensor in saved.whole.state_dict().items() if "classifier" not in name}
    found = laid_on(base, folder)
    network = space.network(task)
    wanted = {name: tensor.numpy() for name, tensor in network.get_submodule("backbone").state_dict().items()}
    head = "classifier.1" if "classifier.1.weight" in saved.whole.state_dict() else "classifier"
    wanted |= {f"{head}.{name}": tensor.numpy() for name, tensor in network.get_submodule("head").state_dict().items()}
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        if not name.endswith("num_batches_tracked"):
            np.testing.assert_allclose(found[name], tensor, atol=1e-5, err_msg=name)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(saved.folder)


@pytest.mark.parametrize("task", ["a", "b"])
def test_an_adapter_becomes_a_task_again(saved: Any, task: str, tmp_path: Path) -> None:
    space = taught(saved)
    folder = to_peft(space, task, tmp_path / "adapter")
    from_peft(space, "again", folder, classes=["x", "y", "z"], example=saved.inputs)
    torch.testing.assert_close(
        answers(space, "again", saved.inputs), answers(space, task, saved.inputs), rtol=1e-4, atol=1e-4
    )
    assert space.record("again").shares is False
    space.save(tmp_path / "life.nacre")
    loaded = SharedSpace.load(tmp_path / "life.nacre")
    assert torch.equal(answers(loaded, "again", saved.inputs), answers(space, "again", saved.inputs))


def test_an_adapter_that_others_trained_becomes_a_task(save_model: Any, tmp_path: Path) -> None:
    """Written by hand as PEFT writes it: scales from alpha and the rank, patterns, biases, a classifier."""
    saved = save_model("vit", tmp_path / "model")
    draw = torch.Generator().manual_seed(0)
    state = {name: tensor.clone() for name, tensor in saved.whole.state_dict().items()}
    named: dict[str, Tensor] = {}
    layers = {
        "vit.layers.0.attention.q_proj": (4, 2.0),
        "vit.layers.1.mlp.fc1": (2, 3.5),
        "vit.layers.1.mlp.fc2": (4, 2.0),
    }
    for place, (rank, scale) in layers.items():
        out, rest = state[f"{place}.weight"].shape
        A, B = torch.randn(rank, rest, generator=draw), torch.randn(out, rank, generator=draw)
        named |= {f"{place}.lora_A.weight": A, f"{place}.lora_B.weight": B}
        state[f"{place}.weight"] += scale * B @ A
        state[f"{place}.bias"] += 0.5
        named[f"{place}.base_layer.bias"] = state[f"{place}.bias"]
    for part in ("weight", "bias"):
        state[f"classifier.{part}"] = named[f"classifier.{part}"] = state[f"classifier.{part}"] + 1
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "alpha_pattern": {"fc1": 7}, "rank_pattern": {"fc1": 2}}
    stored = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in named.items()}
    safetensors.torch.save_file(stored, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))

    space = SharedSpace(pretrained(saved.folder), base="backbone", features="logits")
    from_peft(space, "theirs", tmp_path)
    saved.whole.load_state_dict(state)
    torch.testing.assert_close(answers(space, "theirs", saved.inputs), logits(saved.whole, saved.inputs))
    assert space.ranks("theirs")["vit.layers.1.mlp.fc1"] == 2


def test_peft_loads_it_with_the_same_logits(saved: Any, tmp_path: Path) -> None:
    peft: Any = importlib.import_module("peft")
    transformers: Any = importlib.import_module("transformers")
    kind = "AutoModelForImageClassification" if saved.kind == "image" else "AutoModelForSequenceClassification"
    space = taught(saved)
    for task in ("a", "b"):
        folder = to_peft(space, task, tmp_path / task)
        model = getattr(transformers, kind).from_pretrained(saved.folder, num_labels=3, ignore_mismatched_sizes=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT's and transformers' about each other
            adapted = peft.PeftModel.from_pretrained(model, str(folder)).eval()
        torch.testing.assert_close(
            logits(adapted, saved.inputs), answers(space, task, saved.inputs), rtol=1e-4, atol=1e-4
        )


# what LoRA has no form for


def convolutional() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, groups=4, bias=False),
            nn.ConvTranspose2d(8, 6, 2),
            nn.Flatten(),
            nn.Linear(6 * 7 * 7, 12),
            nn.ReLU(),
        )


def test_grouped_and_transposed_convolutions_and_norms_are_carried_whole(tmp_path: Path) -> None:
    network, x = convolutional(), torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    space = SharedSpace(network, base="backbone")
    teach(space, "a", x, 2, features=12)
    folder = to_peft(space, "a", tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert sorted(config["modules_to_save"]) == ["backbone.1", "backbone.3", "backbone.4", "head"]
    assert config["target_modules"] == r"backbone\.0|backbone\.6"
    base = {f"backbone.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
    wanted = space.network("a").state_dict()
    found = laid_on(base, folder)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        np.testing.assert_allclose(found[name], tensor.numpy(), atol=1e-5, err_msg=name)

    plain = nn.Sequential(OrderedDict(backbone=network, head=nn.Linear(12, 3)))
    plain.load_state_dict({name: torch.from_numpy(value) for name, value in found.items()})
    torch.testing.assert_close(logits(plain.eval(), x), answers(space, "a", x), rtol=1e-4, atol=1e-4)


class Attentive(nn.Module):
    """Packed attention, whose layers are never called, before a layer that is."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.last(self.attention(x, x, x, need_weights=False)[0]).mean(1)
        return features


def test_packed_attention_is_carried_whole(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network, x = Attentive(), torch.randn(4, 5, 8)
    space = SharedSpace(network, base="backbone")
    teach(space, "a", x, 2, features=6)
    folder = to_peft(space, "a", tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert sorted(config["modules_to_save"]) == ["backbone.attention", "head"]
    assert config["target_modules"] == r"backbone\.last"
    found = laid_on({f"backbone.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}, folder)
    for name, tensor in space.network("a").state_dict().items():
        np.testing.assert_allclose(found[name], tensor.numpy(), atol=1e-5, err_msg=name)


def test_what_has_no_place_in_an_adapter_is_said(save_model: Any, tmp_path: Path) -> None:
    zero = SharedSpace(nn.Linear(4, 3))
    zero.append("a", zero.expand(nn.Linear(3, 2)))
    for call in (lambda: to_peft(zero, "a", tmp_path / "x"), lambda: from_peft(zero, "b", tmp_path)):
        with pytest.raises(NacreError, match=r"an adapter lies on a pretrained base, but this space has base='zero'"):
            call()
    saved = save_model("vit", tmp_path / "model")
    backbone = pretrained(saved.folder).requires_grad_(True)  # tokens and positions learn
    space = SharedSpace(backbone, base="backbone", features="logits")
    teach(space, "a", saved.inputs, 1)
    with pytest.raises(NacreError, match=r"vit\.embeddings\.cls_token was learnt, and an adapter has no place"):
        to_peft(space, "a", tmp_path / "x")
    network = space.expand(nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 3)), rank=1)
    space.append("two layers", network)
    with pytest.raises(NacreError, match="has a linear classifier, task 'two layers' a Sequential"):
        to_peft(space, "two layers", tmp_path / "x")
    with pytest.raises(NacreError, match="holds no LoRA adapter"):
        from_peft(space, "b", tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "use_dora": True}))
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(NacreError, match="is no plain LoRA adapter"):
        from_peft(space, "b", tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    words = {"base_model.model.words.lora_embedding_A": torch.zeros(1)}
    safetensors.torch.save_file(words, tmp_path / "adapter_model.safetensors")
    with pytest.raises(NacreError, match="changes words in a way that is no plain LoRA"):
        from_peft(space, "b", tmp_path)
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(NacreError, match="the adapter carries no linear head classifier: give one with head="):
        from_peft(space, "b", tmp_path)
    with pytest.raises(NacreError, match="the adapter carries a, which is no norm tensor or bias of this network"):
        from_peft(space, "b", tmp_path, head=nn.Linear(16, 3))
    assert space.tasks == ("a", "two layers")
