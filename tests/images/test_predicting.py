"""Pictures answered: prepared exactly as in training, in the order given, the broken ones named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nacre import Learner, NacreError
from nacre.images import Wanted, learn, predict
from nacre.images.examples import read
from nacre.scenarios.given import find

Paint = Callable[..., Path]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, painter: Paint) -> Path:
    folder = tmp_path_factory.mktemp("predicting")
    learn(folder / "life.nacre", "colours", str(painter(folder / "p", "red", "green", "blue")), Wanted(epochs=6))
    return folder / "life.nacre"


def test_the_answers_are_the_learners_own_on_what_training_saw(store: Path) -> None:
    """Every training picture, from its file and through the decoded cache, to the last bit."""
    examples = read(find(str(store.parent / "p")), "colours", 32, 0, 0)
    answers, broken = predict(store, "colours", [store.parent / "p"], top=3)
    assert broken == []
    learner = Learner.load(store, device="cpu")
    mean, std = (torch.tensor(learner.knowledge.facts["preprocessing"][key]) for key in ("mean", "std"))
    pixels = (examples.train.images.float() / 255 - mean.view(1, 3, 1, 1)) / std.view(1, 3, 1, 1)
    wanted = learner.predict(pixels, task="colours").double().softmax(1)
    assert [answer.file.parent.name for answer in answers] == ["blue"] * 10 + ["green"] * 10 + ["red"] * 10
    for answer, row in zip(answers, wanted, strict=True):
        assert [name for name, _ in answer.classes] == [
            ("blue", "green", "red")[at] for at in row.argsort(descending=True)
        ]
        assert [share for _, share in answer.classes] == row.sort(descending=True).values.tolist()
    right = sum(answer.classes[0][0] == answer.file.parent.name for answer in answers)
    assert right == len(answers)


@pytest.mark.parametrize("kind", ["L", "RGBA", "P", "CMYK", "large", "wide", "16 bit", "turned"])
def test_a_picture_of_any_size_and_mode_is_answered(kind: str, store: Path, tmp_path: Path) -> None:
    """The same picture in another guise gets the same class, and nearly the same probability where nothing is lost."""
    original = store.parent / "p/red/00.png"
    picture = Image.open(original)
    path = tmp_path / "picture.png"
    if kind == "16 bit":
        levels = np.asarray(picture.convert("L")).astype(np.uint16) * 257
        Image.fromarray(levels).save(path)
        picture.convert("L").save(original := tmp_path / "eight.png")
    elif kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6
        picture.rotate(90, expand=True).save(path, exif=exif)
    elif kind in ("large", "wide"):
        picture.resize((400, 400 if kind == "large" else 150), Image.Resampling.NEAREST).save(path)
    elif kind == "CMYK":
        picture.convert("CMYK").save(path := tmp_path / "picture.tif")
    elif kind == "P":
        picture.quantize(256).save(path)
    else:
        picture.convert(kind).save(path)
    ((one, other), broken) = predict(store, "colours", [path, original])
    assert broken == []
    if kind not in ("L", "16 bit"):
        assert one.classes[0][0] == "red"
    if kind in ("RGBA", "16 bit", "turned"):
        assert one.classes == other.classes
    assert 1 / 3 <= one.classes[0][1] <= 1


def test_files_are_answered_in_their_order_and_folders_in_that_of_their_names(store: Path, tmp_path: Path) -> None:
    source = store.parent / "p"
    files = [source / "red/03.png", source / "blue", source / "green/01.png"]
    (tmp_path / "below/deeper").mkdir(parents=True)
    (tmp_path / "below/deeper/a.png").write_bytes((source / "red/00.png").read_bytes())
    (tmp_path / "below/notes.txt").write_text("")
    answers, _ = predict(store, "colours", [*files, tmp_path / "below"])
    names = ["red/03.png", *(f"blue/{n:02d}.png" for n in range(10)), "green/01.png", "deeper/a.png"]
    assert [f"{answer.file.parent.name}/{answer.file.name}" for answer in answers] == names


def test_more_pictures_than_a_batch(store: Path, tmp_path: Path) -> None:
    data = (store.parent / "p/green/00.png").read_bytes()
    for number in range(300):
        (tmp_path / f"{number:03d}.png").write_bytes(data if number != 7 else b"")
    answers, broken = predict(store, "colours", [tmp_path])
    assert [answer.file.name for answer in answers] == [f"{n:03d}.png" for n in range(300) if n != 7]
    assert {answer.classes[0][0] for answer in answers} == {"green"}
    assert broken == [f"{tmp_path}/007.png is no picture that Pillow reads: it is empty"]


def test_what_cannot_be_asked(store: Path, tmp_path: Path) -> None:
    picture = store.parent / "p/red/00.png"
    with pytest.raises(NacreError, match="no task is called 'colors'; the tasks are 'colours'"):
        predict(store, "colors", [picture])
    with pytest.raises(NacreError, match="does not exist: give pictures, or folders of them"):
        predict(store, "colours", [tmp_path / "nowhere.png"])
    with pytest.raises(NacreError, match="holds no pictures"):
        predict(store, "colours", [tmp_path])
    with pytest.raises(NacreError, match="a whole number from 1; got 0"):
        predict(store, "colours", [picture], top=0)
