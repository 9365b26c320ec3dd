"""Pretrained models of transformers, three families from folders: the base is kept once, or named by its hash."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from nacre import NacreError, SharedSpace, Start
from nacre.networks import by_name, pretrained
from nacre.space import describe, store, verify


def space_of(saved: Any, **options: Any) -> SharedSpace:
    backbone = pretrained(saved.folder, saved.kind)
    return SharedSpace(backbone, **{"base": "backbone", "features": "logits", **options})


def teach(space: SharedSpace, task: str, inputs: Any, **options: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(space.tasks))
        network = space.expand(nn.Linear(16, 3), rank=2, start=Start("random"), **options)
        network.train()
        optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.1)
        network(inputs).square().sum().backward()
        optimizer.step()
    space.append(task, network)


def logits(space: SharedSpace, task: str, inputs: Any) -> Tensor:
    with torch.no_grad():
        answer: Tensor = space.network(task)(inputs)
    return answer


def call(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def test_the_features_are_what_the_models_own_classifier_reads(saved: Any) -> None:
    backbone = pretrained(saved.folder, saved.kind)
    classifier = saved.whole.classifier
    last = classifier[-1] if isinstance(classifier, nn.Sequential) else classifier
    with torch.no_grad():
        torch.testing.assert_close(last(call(backbone, saved.inputs)["logits"]), call(saved.whole, saved.inputs).logits)


def test_a_network_without_residual_is_the_pretrained_one(saved: Any) -> None:
    """The frozen start is the model that was saved, bit for bit."""
    space = space_of(saved)
    network = space.expand(nn.Linear(16, 3), rank=0)
    network.eval()(saved.inputs)
    space.append("nothing", network)
    whole = saved.whole.state_dict()
    found = space.network("nothing").get_submodule("backbone").state_dict()
    assert found.keys() == {name for name in whole if not name.startswith("classifier")}
    assert all(torch.equal(found[name], whole[name]) for name in found)


def test_a_task_costs_its_residual_and_the_base_is_kept_once(saved: Any, tmp_path: Path) -> None:
    space = space_of(saved)
    for task in ("a", "b"):
        teach(space, task, saved.inputs)
    space.save(tmp_path / "s")
    first, second = (space.record(task) for task in ("a", "b"))
    assert first.frozen.keys() <= second.frozen.keys() | {"bert.embeddings.position_ids"}
    assert first.numbers()["factors"] == second.numbers()["factors"]
    base = safetensors.torch.load_file(tmp_path / "s" / "base.safetensors")
    weights = {name for name, tensor in base.items() if tensor.dim() > 1}
    assert space.size().base == sum(base[name].numel() for name in weights)
    assert describe(tmp_path / "s")["megabytes"] == space.size().megabytes
    assert verify(tmp_path / "s") == []


@pytest.mark.parametrize("alone", [False, True], ids=["sharing", "alone"])
def test_a_store_gives_the_same_bits_without_being_given_the_network(saved: Any, alone: bool, tmp_path: Path) -> None:
    space = space_of(saved)
    teach(space, "a", saved.inputs)
    teach(space, "b", saved.inputs, sharing=not alone)
    space.save(tmp_path / "s")
    loaded = SharedSpace.load(tmp_path / "s")
    for task in ("a", "b"):
        assert torch.equal(logits(loaded, task, saved.inputs), logits(space, task, saved.inputs))
    teach(loaded, "c", saved.inputs)
    teach(space, "c", saved.inputs)
    assert torch.equal(logits(loaded, "c", saved.inputs), logits(space, "c", saved.inputs))


def test_what_came_frozen_must_stay_as_it_is(saved: Any) -> None:
    space = space_of(saved)
    network = space.expand(nn.Linear(16, 3), rank=1)
    fixed = [name for name, p in pretrained(saved.folder, saved.kind).named_parameters() if not p.requires_grad]
    if not fixed:  # neither embeddings nor tokens
        assert saved.folder.name == "resnet"
        return
    with torch.no_grad():
        network.backbone.get_parameter(fixed[0]).add_(1)
    with pytest.raises(NacreError, match="training changed it; nothing was appended"):
        space.append("moved", network)


# the base outside of the store


def test_an_external_base_is_found_by_its_name_and_known_by_its_hash(saved: Any, tmp_path: Path) -> None:
    source = f"hf:{saved.folder}" if saved.kind == "image" else None
    space, whole = space_of(saved, base="external", source=source), space_of(saved)
    for each in (space, whole):
        teach(each, "a", saved.inputs)
        each.save(tmp_path / each.base)
    assert not (tmp_path / "external" / "base.safetensors").exists()
    assert (tmp_path / "external/tasks/000-a.safetensors").read_bytes() == (
        tmp_path / "backbone/tasks/000-a.safetensors"
    ).read_bytes()
    given: dict[str, Any] = {} if source else {"backbone": pretrained(saved.folder, saved.kind)}
    loaded = SharedSpace.load(tmp_path / "external", **given)
    assert torch.equal(logits(loaded, "a", saved.inputs), logits(whole, "a", saved.inputs))
    assert loaded.size().base == whole.size().base
    assert verify(tmp_path / "external") == []
    teach(loaded, "b", saved.inputs)
    loaded.save(tmp_path / "external")
    assert store.read_index(tmp_path / "external")["base_source"]["name"] == source


def test_other_weights_than_the_bases_are_refused(saved: Any, tmp_path: Path) -> None:
    space = space_of(saved, base="external", source=None)
    teach(space, "a", saved.inputs)
    space.save(tmp_path / "s")
    with pytest.raises(NacreError, match="does not hold its base, a network of your own: load it with backbone="):
        SharedSpace.load(tmp_path / "s")
    other = pretrained(saved.folder, saved.kind)
    tensor = next(p for p in other.parameters() if p.dim() == 1)
    with torch.no_grad():
        tensor[0] += 1e-3
    with pytest.raises(
        NacreError, match=r"stands on other weights than these of backbone=: their hash is [0-9a-f]{12}"
    ):
        SharedSpace.load(tmp_path / "s", backbone=other)


def test_what_a_checkpoint_lacks_is_drawn_and_is_the_same_always(saved: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(saved.folder, tmp_path / "lacking")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    kept = pretrained(saved.folder, saved.kind).state_dict()
    lacking = next(name for name, tensor in tensors.items() if tensor.dim() >= 2 and name in kept)
    before = tensors.pop(lacking)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    first = pretrained(folder, saved.kind).state_dict()
    torch.manual_seed(1)
    again = pretrained(folder, saved.kind).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first[lacking], before)


def test_the_hash_of_a_base_is_the_one_that_is_documented(tmp_path: Path) -> None:
    import hashlib

    backbone = nn.Linear(2, 3)
    space = SharedSpace(backbone, base="external", source="mine")
    space.save(tmp_path / "s")
    digest = hashlib.sha256()
    for name, shape in (("bias", "[3]"), ("weight", "[3,2]")):
        digest.update(f'["{name}","float32",{shape}]\n'.encode())
        digest.update(backbone.get_parameter(name).detach().numpy().astype("<f4").tobytes())
    assert store.read_index(tmp_path / "s")["base_source"] == {"name": "mine", "sha256": digest.hexdigest()}
    assert torch.equal(
        SharedSpace.load(tmp_path / "s", backbone=backbone).backbone().get_parameter("bias"), backbone.bias
    )


# mistakes, and what strangers write


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(NacreError, match="no image model of transformers could be read from"):
        by_name(f"hf:{tmp_path}")
    with pytest.raises(NacreError, match="of the kind 'image' or 'text'; got 'sound'"):
        pretrained(tmp_path, "sound")  # type: ignore[arg-type]


def test_weights_in_a_pickle_are_not_read(saved: Any, tmp_path: Path) -> None:
    torch.save(saved.whole.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_bytes((saved.folder / "config.json").read_bytes())
    with pytest.raises(NacreError, match="could be read from"):
        pretrained(tmp_path, saved.kind)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "AutoModel"},
        {"model": "pipeline"},
        {"model": "logging"},
        {"model": 3},
        {"attention": "someone/kernels"},
        {"without": "nothing"},
        {"config": {"auto_map": {"AutoModel": "theirs.py"}}},
        {"config": {"use_pretrained_backbone": True}},
        {"config": {"hidden_size": 7}},
        {"config": []},
    ],
    ids=str,
)
def test_a_forged_description_is_refused(change: dict[str, Any], save_model: Any, tmp_path: Path) -> None:
    saved = save_model("vit", tmp_path / "model")
    space = space_of(saved)
    teach(space, "a", saved.inputs)
    space.save(tmp_path / "s")
    index = json.loads((tmp_path / "s" / "space.json").read_text())
    arguments = index["network"]["description"]["arguments"]
    change = dict(change)
    if isinstance(change.get("config"), dict):
        change["config"] = arguments["config"] | change["config"]
    arguments |= change
    del index["sha256"]
    (tmp_path / "s" / "space.json").write_bytes(store.signed(index))
    with pytest.raises(NacreError):
        SharedSpace.load(tmp_path / "s").network("a")
