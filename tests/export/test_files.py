"""ONNX files and .pt2 files: onnxruntime and torch alone give the same classes and logits, whatever the network."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre import NacreError, SharedSpace, cli
from nacre.export import OPSET, to_onnx, to_torch
from nacre.networks import NETWORKS, pretrained

onnxruntime: Any = importlib.import_module("onnxruntime")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("vgg16_bn", "resnet18", "resnet50", "vit_tiny")]


def digits(count: int, side: int) -> Tensor:
    """Real pictures: scikit-learn's digits, scaled up, in three channels."""
    images = torch.from_numpy(importlib.import_module("sklearn.datasets").load_digits().images[:count]).float() / 8 - 1
    return F.interpolate(images[:, None], (side, side), mode="bilinear").repeat(1, 3, 1, 1)


def taught(name: str, side: int = 32) -> SharedSpace:
    """Two tasks on a network, with logits that are not all near 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = NETWORKS[name]
        space, features = SharedSpace(network.build(3)), network.features(3, side)
        for task, rank in (("digits", None), ("more", 2)):
            head = network.head(features, 10) if network.head else nn.Linear(features, 10)
            trained = space.expand(head, rank=rank)
            with torch.no_grad():
                trained.train()(digits(32, side))  # norm layers see some pictures
                outputs = trained.eval()(digits(64, side))
                last = [part for part in trained.head.modules() if isinstance(part, nn.Linear)][-1]
                last.weight.mul_(3 / outputs.std())
            space.append(task, trained, classes=[str(number) for number in range(10)])
    return space


def answers(space: SharedSpace, task: str, inputs: Any) -> Tensor:
    with torch.no_grad():
        logits: Tensor = space.network(task)(inputs)
    return logits


def run_onnx(path: Path, inputs: Any) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    named = inputs if isinstance(inputs, dict) else {session.get_inputs()[0].name: inputs}
    (logits,) = session.run(["logits"], {name: tensor.numpy() for name, tensor in named.items()})
    return np.asarray(logits)


def assert_same(found: Any, wanted: Tensor) -> None:
    assert float(wanted.std()) > 0.1
    assert np.abs(np.asarray(found) - wanted.numpy()).max() < 1e-4
    assert (np.asarray(found).argmax(1) == wanted.numpy().argmax(1)).all()


@pytest.mark.parametrize("name", ["conv5", *SLOW])
def test_every_network_is_the_same_in_a_file(name: str, tmp_path: Path) -> None:
    space, x = taught(name), digits(256, 32)
    wanted = answers(space, "more", x)
    for optimize in (None, "counted"):
        onnx = to_onnx(space, "more", tmp_path / "more.onnx", optimize=optimize)
        assert_same(run_onnx(onnx, x), wanted)
        assert_same(run_onnx(onnx, x[:1]), answers(space, "more", x[:1]))
        program = torch.export.load(str(to_torch(space, "more", tmp_path / "more.pt2", optimize=optimize)))
        with torch.no_grad():
            assert_same(program.module()(x), wanted)
            assert_same(program.module()(x[:1]), wanted[:1])


def test_every_family_of_transformers_is_the_same_in_a_file(saved: Any, tmp_path: Path) -> None:
    space = SharedSpace(pretrained(saved.folder, saved.kind), base="backbone", features="logits")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = space.expand(nn.Linear(16, 3), rank=2).eval()
        with torch.no_grad():
            network.head.get_parameter("weight").mul_(3 / network(saved.inputs).std())
        space.append("a", network)
    wanted = answers(space, "a", saved.inputs)
    onnx = to_onnx(space, "a", tmp_path / "a.onnx")
    assert_same(run_onnx(onnx, saved.inputs), wanted)
    program = torch.export.load(str(to_torch(space, "a", tmp_path / "a.pt2")))
    with torch.no_grad():
        assert_same(program.module()(saved.inputs), wanted)


# what is in the files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    space = taught("conv5")
    space.facts["preprocessing"] = {"size": [32, 32], "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.25]}
    space.save(folder / "life.nacre")
    to_torch(space, "digits", folder / "digits.pt2")
    to_onnx(space, "digits", folder / "digits.onnx")
    to_onnx(space, "digits", folder / "pixels.onnx", with_preprocessing=True)
    return folder


def test_the_onnx_file_says_what_it_is(files: Path) -> None:
    onnx: Any = importlib.import_module("onnx")
    model = onnx.load(str(files / "digits.onnx"))
    onnx.checker.check_model(model)
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == OPSET
    (given,), (logits,) = model.graph.input, model.graph.output
    shape = [entry.dim_param or entry.dim_value for entry in given.type.tensor_type.shape.dim]
    assert (given.name, shape, logits.name) == ("input", ["batch", 3, 32, 32], "logits")
    beside = json.loads((files / "digits.json").read_text())
    assert beside == json.loads({entry.key: entry.value for entry in model.metadata_props}["nacre"])
    assert beside["classes"] == [str(number) for number in range(10)]
    assert beside["inputs"] == {"shape": [3, 32, 32], "dtype": "float32"}
    assert beside["preprocessing"]["mean"] == [0.5, 0.4, 0.3]


def test_a_graph_with_preprocessing_takes_pixels(files: Path) -> None:
    space = SharedSpace.load(files / "life.nacre")
    pixels = torch.randint(0, 256, (5, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    mean, std = (np.array(said).reshape(3, 1, 1) for said in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.25]))
    normalised = torch.from_numpy((pixels.numpy() / 255 - mean) / std).float()
    assert_same(run_onnx(files / "pixels.onnx", pixels.to(torch.uint8)), answers(space, "digits", normalised))
    assert json.loads((files / "pixels.json").read_text())["inputs"]["dtype"] == "uint8"


def test_no_part_of_a_pt2_file_is_a_pickle(files: Path) -> None:
    with zipfile.ZipFile(files / "digits.pt2") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    weights = [name for name in parts if "/data/weights/weight_" in name]
    assert len(weights) == 7
    for name, data in parts.items():
        assert not data.startswith((b"PK", b"\x80")), f"{name} is what torch.save or pickle writes"
        if name.endswith("config.json"):
            assert b'"use_pickle": true' not in data
        elif name not in weights and name.rpartition("/")[2] != "model.pt":
            data.decode("ascii")
    assert [len(data) for name, data in parts.items() if name.endswith("model.pt")] == [0]  # sample inputs: none
    tensors = safetensors.torch.load_file(files / "digits.safetensors")
    state = SharedSpace.load(files / "life.nacre").network("digits").state_dict()
    assert tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], state[name]) for name in state)


def test_the_files_need_no_nacre(files: Path) -> None:
    """In a process that cannot import it: nothing is on its path but the packages that torch and onnxruntime need."""
    space, x = SharedSpace.load(files / "life.nacre"), digits(3, 32)
    np.save(files / "x.npy", x.numpy())
    code = (
        "import sys; sys.modules['nacre'] = None\n"
        "import numpy as np, onnxruntime, torch\n"
        "x = np.load('x.npy'); session = onnxruntime.InferenceSession('digits.onnx')\n"
        "found = [session.run(None, {'input': x})[0], torch.export.load('digits.pt2').module()(torch.from_numpy(x))]\n"
        "np.save('found.npy', np.stack([np.asarray(torch.as_tensor(each).detach()) for each in found]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=files, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for found in np.load(files / "found.npy"):
        assert_same(found, answers(space, "digits", x))


# mistakes


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    space = SharedSpace(nn.Linear(4, 3))
    space.append("never run", space.expand(nn.Linear(3, 2)))
    with pytest.raises(NacreError, match="nobody knows what the inputs of this network look like"):
        to_onnx(space, "never run", tmp_path / "a.onnx")
    network = space.expand(nn.Linear(3, 2))
    network(torch.zeros(2, 4))
    space.append("run", network)
    with pytest.raises(NacreError, match=r"the file is called something\.pt2; got '.*a\.pt'"):
        to_torch(space, "run", tmp_path / "a.pt")
    with pytest.raises(NacreError, match="the store does not say how pictures become the inputs of 'run'"):
        to_onnx(space, "run", tmp_path / "a.onnx", with_preprocessing=True)
    with pytest.raises(NacreError, match="no task is called 'other'; the tasks are 'never run', 'run'"):
        to_onnx(space, "other", tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_inputs_of_several_tensors_have_names(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.sizes = nn.Embedding(9, 4), nn.Linear(3, 4)

        def forward(self, ids: Tensor, sizes: Tensor) -> Tensor:
            features: Tensor = self.words(ids).mean(1) + self.sizes(sizes)
            return features

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        space, inputs = SharedSpace(Two()), {"ids": torch.arange(10).view(2, 5) % 9, "sizes": torch.randn(2, 3)}
        network = space.expand(nn.Linear(4, 2)).eval()
        network(inputs)
        space.append("a", network)
    found = run_onnx(to_onnx(space, "a", tmp_path / "a.onnx"), inputs)
    np.testing.assert_allclose(found, answers(space, "a", inputs).numpy(), atol=1e-5)


# the command


def test_the_command_writes_a_file_and_says_which(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setattr(sys, "argv", ["nacre", "export", "life.nacre", "more", "--to", "onnx", "--optimize", "counted"])
    cli.main()
    assert capsys.readouterr().out == "more.onnx\n"
    space = SharedSpace.load(files / "life.nacre")
    assert_same(run_onnx(files / "more.onnx", digits(64, 32)), answers(space, "more", digits(64, 32)))


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("life.nacre", "other", "--to", "torch"), 1, "no task is called 'other'; the tasks are 'digits', 'more'"),
        (("life.nacre", "more", "--to", "peft"), 1, "an adapter lies on a pretrained base"),
        (
            ("life.nacre", "more", "--to", "torch", "--with-preprocessing"),
            2,
            "--to torch takes no --with-preprocessing",
        ),
        (("life.nacre", "more", "--to", "coreml"), 2, "coreml"),
    ],
    ids=["task", "base", "option", "kind"],
)
def test_the_command_says_what_is_wrong(
    words: tuple[str, ...],
    status: int,
    said: str,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setattr(sys, "argv", ["nacre", "export", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    message = ended.value.code if isinstance(ended.value.code, str) else capsys.readouterr().err
    assert (1 if isinstance(ended.value.code, str) else ended.value.code) == status
    assert said in message
