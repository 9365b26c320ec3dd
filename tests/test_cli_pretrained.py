"""nacre learn --network hf:FOLDER and what comes after it, on real files: kept in the store, or outside and known."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from nacre import CACL, SharedSpace, cli
from nacre.images import Wanted, learn, open_store
from nacre.space import describe

transformers: Any = importlib.import_module("transformers")
Run = Callable[..., tuple[int, str, str]]
EPOCHS = {"vit": 2, "resnet": 100}  # the drawn transformer is slow to learn anything: here it only has to go the way
SIDE = 32  # which the models of tests.conftest take
PROCESSORS: dict[str, dict[str, Any]] = {
    "vit": {"size": {"height": SIDE, "width": SIDE}},
    "resnet": {"size": {"shortest_edge": SIDE}, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3]},
}


def paint(folder: Path, **classes: tuple[int, int, int]) -> None:
    """A class for every colour, with some noise."""
    draw = np.random.default_rng(0)
    for name, colour in classes.items():
        (folder / name).mkdir(parents=True)
        for number in range(12):
            pixels = np.clip(np.array(colour) + draw.normal(0, 10, (20, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:02d}.png")


def save_processor(family: str, folder: Path) -> None:
    kind = "ConvNextImageProcessorPil" if family == "resnet" else "ViTImageProcessorPil"
    getattr(transformers, kind)(**PROCESSORS[family]).save_pretrained(folder)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, save_model: Any) -> Iterator[Path]:
    """The current folder, with pictures and three models."""
    folder = tmp_path_factory.mktemp("pretrained")
    paint(folder / "inks", red=(200, 40, 40), green=(40, 200, 40), blue=(40, 40, 200))
    paint(folder / "greys", dark=(60, 60, 60), light=(190, 190, 190))
    for family in ("vit", "resnet", "bert"):
        save_model(family, folder / family)
    for family in PROCESSORS:
        save_processor(family, folder / family)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NACRE_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        yield folder


@pytest.fixture
def nacre(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process: exit status, standard output, standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nacre", *map(str, words)])
        said, status = "", 0
        try:
            cli.main()
        except SystemExit as ended:
            said, status = (ended.code, 1) if isinstance(ended.code, str) else ("", ended.code or 0)
        output, log = capsys.readouterr()
        return status, output, log + said

    return run


@pytest.fixture
def lost(here: Path) -> Iterator[Callable[[str], None]]:
    """Takes a model's folder away; it is there again afterwards."""
    away: list[str] = []

    def take(family: str) -> None:
        (here / family).rename(here / f"{family}.away")
        away.append(family)

    yield take
    for family in away:
        (here / f"{family}.away").rename(here / family)


@pytest.mark.parametrize("family", PROCESSORS)
def test_tasks_stand_on_a_model_that_is_kept_once_and_may_then_be_gone(
    family: str, here: Path, nacre: Run, lost: Callable[[str], None]
) -> None:
    store = here / f"{family}.nacre"
    status, output, log = nacre(
        "learn", store.name, "inks", "inks", "--network", f"hf:{family}", "--epochs", EPOCHS[family]
    )
    assert status == 0, log
    assert f"{here / family}: pictures of 32 x 32 pixels, mean and deviation as its image processor says" in log
    base = (store / "base.safetensors").read_bytes()
    kept = describe(store)["base_megabytes"]
    assert f"  base       hf:{here / family}, {kept:.3f} MB, kept once, in the store\n" in output
    assert family == "vit" or "  accuracy   100.0 % of 6 test pictures" in output
    lost(family)
    pictures = sorted((here / "inks").rglob("*.png"))
    before = open_store(store).learner.predict(open_store(store).read(pictures), task="inks")
    status, output, log = nacre("learn", store.name, "greys", "greys", "--epochs", 2)
    assert (status, "inks gives the same bits as before" in output) == (0, True), log
    opened = open_store(store)
    assert torch.equal(opened.learner.predict(opened.read(pictures), task="inks"), before)
    assert (store / "base.safetensors").read_bytes() == base
    assert all(path.stat().st_size < 3 * len(base) for path in (store / "tasks").iterdir())
    status, output, log = nacre("predict", store.name, "inks", "inks/red/00.png", "--json")
    assert status == 0, log
    assert family == "vit" or json.loads(output)["pictures"][0]["class"] == "red"
    assert nacre("verify", store.name)[0] == 0
    seen = nacre("inspect", store.name)[1]
    assert f"Under every task hf:{here / family}: {kept:.3f} MB, {len(base):,} bytes" in seen
    rows = [line.split() for line in seen.splitlines()]  # layers below each other: their names are long
    for layer, rank in describe(store)["tasks"][0]["ranks"].items():
        assert [layer, str(rank)] in [row[:2] for row in rows]
    for kind, files in (("onnx", "inks.onnx"), ("torch", "inks.pt2"), ("peft", "inks-adapter/adapter_config.json")):
        status, output, log = nacre("export", store.name, "inks", "--to", kind)
        assert (status, (here / files).exists()) == (0, True), log
    assert json.loads((here / "inks-adapter/adapter_config.json").read_text())["base_model_name_or_path"] == str(
        here / family
    )


def test_a_base_outside_of_the_store_is_opened_again_and_its_hash_is_checked(
    here: Path, nacre: Run, lost: Callable[[str], None]
) -> None:
    words = ("--network", "hf:resnet", "--epochs", 1)
    assert nacre("learn", "out.nacre", "inks", "inks", *words, "--base", "external")[0] == 0
    assert nacre("learn", "within.nacre", "inks", "inks", *words)[0] == 0
    out, within = (here / f"{name}.nacre" for name in ("out", "within"))
    assert not (out / "base.safetensors").exists()
    task = "tasks/000-inks.safetensors"
    assert (out / task).read_bytes() == (within / task).read_bytes()
    assert nacre("predict", out.name, "inks", "inks")[1] == nacre("predict", within.name, "inks", "inks")[1] != ""
    assert "outside of the store, known by its hash" in nacre("inspect", out.name)[1]
    lost("resnet")
    shutil.copytree(here / "resnet.away", here / "resnet")
    try:
        model = transformers.ResNetForImageClassification.from_pretrained(here / "resnet")
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)
        model.save_pretrained(here / "resnet")
        status, output, log = nacre("predict", out.name, "inks", "inks")
        sha256 = describe(out)["base_source"]["sha256"]
        assert (status, output) == (1, "")
        assert f"stands on other weights than these of hf:{here / 'resnet'}: their hash is " in log
        assert f"that of its base {sha256[:12]}" in log
    finally:
        shutil.rmtree(here / "resnet")
    status, output, log = nacre("learn", out.name, "greys", "greys")
    assert (status, output) == (1, "")
    assert f"does not hold its base: it stands on hf:{here / 'resnet'}, weights with the hash {sha256[:12]}" in log
    assert f"there is no folder {here / 'resnet'}" in log
    assert nacre("verify", out.name)[0] == 0  # what is in the store is whole


def test_without_an_image_processor_that_is_said_and_the_pictures_decide(
    here: Path, nacre: Run, save_model: Any, tmp_path: Path
) -> None:
    """The side is then what the model's configuration says, mean and deviation are those of the first task."""
    save_model("vit", tmp_path / "bare")
    status, _, log = nacre(
        "learn", tmp_path / "s.nacre", "greys", "greys", "--network", f"hf:{tmp_path}/bare", "--epochs", 1
    )
    assert status == 0, log
    assert "pictures of 32 x 32 pixels, no image processor is saved with it, so mean and deviation are those of" in log
    mean = open_store(tmp_path / "s.nacre").preprocessing.mean
    assert all(level == pytest.approx(125 / 255, abs=0.01) for level in mean)  # half of them are 60, half 190


def test_pictures_are_prepared_as_the_image_processor_prepares_them(here: Path, tmp_path: Path) -> None:
    """Pixel for pixel, of a picture that is a square already."""
    learnt = learn(tmp_path / "s.nacre", "inks", "inks", Wanted(network="hf:resnet", epochs=1, size=20))
    assert learnt.base == "store"
    opened = open_store(tmp_path / "s.nacre")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    own = transformers.AutoImageProcessor.from_pretrained(here / "resnet")
    wanted = own(pixels, size={"shortest_edge": 20}, crop_pct=1.0, do_resize=False, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(opened.read([tmp_path / "a.png"]), wanted)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("--network conv5 --base external", 2, "--network hf:NAME_OR_FOLDER; conv5 is learnt from scratch"),
        ("--base store", 2, "--network hf:NAME_OR_FOLDER; without --network a new store begins with conv5"),
        ("--network hf:vit --base nowhere", 2, "nowhere"),
        (
            "--network hf:vit --size 24",
            1,
            "cannot take pictures of 24 pixels, say another --size; float32[1, 3, 24, 24]: Input",
        ),
        ("--network hf:bert", 1, "no image model of transformers could be read from"),
        ("--network hf:./nothing", 1, "there is no folder nothing, where a pretrained model should be"),
        ("--network hf:inks", 1, "no image model of transformers could be read from"),
        ("--network conv6", 1, "no network is called 'conv6'; the networks are conv5, vgg16_bn"),
    ],
)
def test_a_start_that_cannot_be_is_refused_before_anything_is_written(
    words: str, status: int, message: str, here: Path, nacre: Run
) -> None:
    before = sorted(here.iterdir())
    found, output, log = nacre("learn", "new.nacre", "inks", "inks", *words.split())
    assert (found, output) == (status, ""), log
    assert message in " ".join(log.split())
    assert sorted(here.iterdir()) == before


def test_a_store_keeps_the_network_and_the_base_that_it_was_begun_with(here: Path, nacre: Run, tmp_path: Path) -> None:
    learn(tmp_path / "on.nacre", "greys", "greys", Wanted(network="hf:vit", epochs=1))
    learn(tmp_path / "off.nacre", "greys", "greys", Wanted(epochs=1))
    for store, words, status, message in (
        ("on", ("--network", "hf:resnet"), 1, f"was begun with --network hf:{here / 'vit'}, and all its tasks have"),
        ("on", ("--base", "external"), 1, "was begun with --base store, and all its tasks have that; got external"),
        ("off", ("--network", "hf:vit"), 1, "was begun with --network conv5"),
        ("off", ("--base", "store"), 2, "off.nacre was begun with --network conv5"),
    ):
        found, _, log = nacre("learn", tmp_path / f"{store}.nacre", "inks", "inks", *words)
        assert (found, message in log) == (status, True), log
    assert nacre("learn", tmp_path / "on.nacre", "inks", "inks", "--network", "hf:vit", "--epochs", 1)[0] == 0


def test_without_transformers_it_says_what_to_install(here: Path, nacre: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = nacre("learn", "new.nacre", "inks", "inks", "--network", "hf:vit")
    assert said == (1, "", "nacre: pretrained networks need transformers: pip install 'nacre[hf]'")


def test_a_task_begins_at_the_network_that_is_there(here: Path, tmp_path: Path) -> None:
    """Its residual is nothing before the first step: a pretrained network is not shaken first."""
    learn(tmp_path / "s.nacre", "greys", "greys", Wanted(network="hf:vit", epochs=1))
    learner = open_store(tmp_path / "s.nacre").learner
    space, method = learner.knowledge, learner.method
    assert isinstance(space, SharedSpace)
    assert isinstance(method, CACL)
    begun, there = space.expand(torch.nn.Linear(16, 2), start=method.start), space.network("greys")
    for layer in space.layers:
        weights = (network.get_submodule(f"backbone.{layer}").weight for network in (begun, there))
        assert torch.equal(*(cast(torch.Tensor, weight) for weight in weights))
