"""What a user gives as the pictures of a task: found, labelled, and where it cannot be learnt from, said why."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from nacre import NacreError
from nacre.scenarios.given import Given, find


def picture(level: int = 0, side: int = 4) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), level, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def fill(root: Path, counts: Mapping[str, int]) -> Path:
    """Folders with so many pictures each."""
    for at, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / name / f"{number}.png").write_bytes(picture(10 * at + number))
    return root


def labelled(given: Given, split: str = "train") -> list[tuple[str, str]]:
    """The pictures' paths below the root, and their classes."""
    source = given.source
    names = [source.classes[label] for label in source.labels[split]]
    return [
        (path.relative_to(source.root).as_posix(), name) for path, name in zip(source.files[split], names, strict=True)
    ]


# folders


def test_a_folder_for_every_class(tmp_path: Path) -> None:
    fill(tmp_path, {"rose": 2, "aster": 3})
    given = find(str(tmp_path))
    assert given.source.classes == ("aster", "rose")
    assert labelled(given) == [(f"aster/{n}.png", "aster") for n in range(3)] + [
        (f"rose/{n}.png", "rose") for n in range(2)
    ]
    assert (given.tested, given.notes) == (False, ())


def test_classes_that_are_numbers_are_in_the_order_of_the_numbers(tmp_path: Path) -> None:
    assert find(str(fill(tmp_path, {"10": 2, "9": 2}))).source.classes == ("9", "10")


def test_pictures_in_folders_below_a_class_are_of_it_and_hidden_and_other_files_are_not(tmp_path: Path) -> None:
    fill(tmp_path, {"rose/2025": 2, "rose/2026": 1, "aster": 2, ".thumbnails": 2, "aster/.hidden": 1, "__MACOSX": 1})
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "rose/list.csv").write_text("")
    given = find(str(tmp_path))
    assert [name for _, name in labelled(given)] == ["aster"] * 2 + ["rose"] * 3
    assert given.notes == (f"{tmp_path}: 2 files are left out, such as notes.txt",)


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("training", "validation"), ("train", "val")])
def test_train_and_test_may_be_apart(train: str, test: str, tmp_path: Path) -> None:
    fill(tmp_path / train, {"rose": 2, "aster": 2})
    fill(tmp_path / test, {"rose": 1, "aster": 1})
    fill(tmp_path / "more", {"lily": 1})
    given = find(str(tmp_path))
    assert given.tested
    assert labelled(given, "test") == [(f"{test}/aster/0.png", "aster"), (f"{test}/rose/0.png", "rose")]
    assert given.notes == (f"{tmp_path}: more left out, beside {train}",)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    given = find(str(fill(tmp_path, {"train": 2, "bus": 2})))
    assert (given.source.classes, given.tested) == (("bus", "train"), False)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "holds no pictures: they are looked for in CLASS/PICTURE.jpg"),
        ({"rose": 0}, "holds no pictures: .* and end in .avif, .bmp, "),
        ({"rose": 5}, "holds pictures of a single class, 'rose': a task tells at least two apart"),
        ({"rose": 5, "aster": 0, "lily": 2}, "the folder of aster holds no pictures: fill it, or take it away"),
        ({"rose": 5, "aster": 1, "lily": 2}, "holds a single picture of aster: every class takes at least two"),
    ],
)
def test_what_no_task_can_be_learnt_from_is_said(counts: dict[str, int], message: str, tmp_path: Path) -> None:
    fill(tmp_path, counts)
    with pytest.raises(NacreError, match=message):
        find(str(tmp_path))


@pytest.mark.parametrize("name", ["a.avif", "a.JPG", "a.jfif", "a.webp"])
def test_what_pillow_reads_is_a_picture_whatever_its_ending(name: str, tmp_path: Path) -> None:
    fill(tmp_path, {"rose": 2, "aster": 2})
    Image.new("RGB", (3, 3)).save(tmp_path / "aster" / name)
    given = find(str(tmp_path))
    assert (f"aster/{name}", "aster") in labelled(given)
    assert given.notes == ()


def test_test_pictures_of_a_class_that_is_not_trained_on(tmp_path: Path) -> None:
    fill(tmp_path / "train", {"rose": 2, "aster": 2})
    fill(tmp_path / "test", {"rose": 1, "lily": 1})
    with pytest.raises(NacreError, match="test pictures are of the classes lily, of which none is trained on"):
        find(str(tmp_path))


def test_what_is_not_there_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NacreError, match="does not exist: a task is learnt from a folder"):
        find(str(tmp_path / "nowhere"))
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(NacreError, match="is no such file: a task is learnt from a folder"):
        find(str(tmp_path / "notes.txt"))


# lists


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", "path,label\nrose/0.png,rose\nrose/1.png,rose\naster/0.png,aster\naster/1.png,aster\n"),
        ("list.csv", "Label,File\nrose,rose/0.png\nrose,rose/1.png\n\naster,aster/0.png\naster,aster/1.png\n"),
        ("list.csv", "rose/0.png,rose\nrose/1.png,rose\naster/0.png,aster\naster/1.png,aster"),
        (
            "list.tsv",
            "\ufefffilename\tclass\nrose/0.png\trose\nrose/1.png\trose\naster/0.png\taster\naster/1.png\taster\n",
        ),
    ],
)
def test_a_list_of_paths_and_labels(name: str, text: str, tmp_path: Path) -> None:
    fill(tmp_path, {"rose": 2, "aster": 2})
    (tmp_path / name).write_text(text, encoding="utf-8")
    given = find(str(tmp_path / name))
    assert sorted(labelled(given)) == [(f"{name}/{n}.png", name) for name in ("aster", "rose") for n in range(2)]


def test_a_list_may_say_the_split_and_call_the_class_as_it_likes(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 3, "b": 3})
    rows = [f"{name}/{n}.png,{'test' if n == 2 else 'train'},{name * 2}" for name in "ab" for n in range(3)]
    (tmp_path / "list.csv").write_text("\n".join(["path,split,species", *rows]))
    with pytest.raises(NacreError, match="has no columns of path and label; its first line is path, split, species"):
        find(str(tmp_path / "list.csv"))
    given = find(str(tmp_path / "list.csv"), "species")
    assert given.source.classes == ("aa", "bb")
    assert labelled(given, "test") == [("a/2.png", "aa"), ("b/2.png", "bb")]
    with pytest.raises(NacreError, match="has no column 'genus'"):
        find(str(tmp_path / "list.csv"), "genus")


def test_a_picture_of_a_list_that_does_not_exist_is_named_and_skipped(tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2, "b": 2})
    rows = ["a/0.png,a", "a/1.png,a", "b/0.png,b", "b/1.png,b", "b/9.png,b"]
    (tmp_path / "list.csv").write_text("\n".join(rows))
    given = find(str(tmp_path / "list.csv"))
    assert len(labelled(given)) == 4
    assert given.notes == (f"{tmp_path}/b/9.png does not exist: skipped",)
    (tmp_path / "list.csv").write_text("x.png,a\ny.png,b\n")
    with pytest.raises(NacreError, match="names no picture that exists; paths are relative to its folder"):
        find(str(tmp_path / "list.csv"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("path,label\na/0.png,a\na/0.png,b\n", r"line 3: .*a/0\.png is 'b' here and 'a' above"),
        ("path,label\na/0.png\n", "line 2 has no path and label: a/0.png"),
        ("path,label,split\na/0.png,a,later\n", "line 2: the split is train or test; got 'later'"),
        ('path,label\n"a/0.png,a\n', "cannot be read as a list of pictures"),
    ],
)
def test_a_list_that_cannot_be_understood(text: str, message: str, tmp_path: Path) -> None:
    fill(tmp_path, {"a": 2})
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(NacreError, match=message):
        find(str(tmp_path / "list.csv"))


# parquet and the hub

STRUCT = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


def parquet(path: Path, labels: Sequence[Any], column: str = "label", names: Sequence[str] = ()) -> Path:
    """A file as datasets writes it, or with labels in words."""
    pictures = [{"bytes": picture(at), "path": None} for at in range(len(labels))]
    table = pyarrow.table({"image": pyarrow.array(pictures, STRUCT), column: list(labels)})
    if names:
        features = {"info": {"features": {column: {"names": list(names)}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path)
    return path


def test_parquet_with_labels_in_words_or_in_numbers_with_or_without_names(tmp_path: Path) -> None:
    words = find(str(parquet(tmp_path / "words.parquet", ["rose", "aster", "rose", "aster"])))
    assert (words.source.classes, words.source.labels["train"]) == (("aster", "rose"), (1, 0, 1, 0))
    numbers = find(str(parquet(tmp_path / "numbers.parquet", [7, 10, 7, 10])))
    assert (numbers.source.classes, numbers.source.labels["train"]) == (("7", "10"), (0, 1, 0, 1))
    named = find(str(parquet(tmp_path / "named.parquet", [0, 1, 0, 1], names=["a rose", "an aster"])))
    assert (named.source.classes, named.source.labels["train"]) == (("a rose", "an aster"), (0, 1, 0, 1))


@pytest.mark.parametrize("below", [".", "data"])
def test_a_folder_of_parquet_by_its_files_names(below: str, tmp_path: Path) -> None:
    parquet(tmp_path / below / "train-00000-of-00002.parquet", ["a", "b", "a"])
    parquet(tmp_path / below / "train-00001-of-00002.parquet", ["b"])
    parquet(tmp_path / below / "validation-00000-of-00001.parquet", ["a", "b"])
    given = find(str(tmp_path))
    assert given.source.labels == {"train": (0, 1, 0, 1), "test": (0, 1)}
    assert [path.name[:5] for path in given.source.files["train"]] == ["train", "train"]


def test_parquet_that_does_not_say_what_is_what(tmp_path: Path) -> None:
    path = parquet(tmp_path / "species.parquet", ["a", "b", "a", "b"], "species")
    with pytest.raises(NacreError, match="say which of image, species with --label"):
        find(str(path))
    assert find(str(path), "species").source.classes == ("a", "b")
    pyarrow.parquet.write_table(pyarrow.table({"label": ["a", "b"]}), tmp_path / "bare.parquet")
    with pytest.raises(NacreError, match="has no column of pictures; its columns are label"):
        find(str(tmp_path / "bare.parquet"))
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(NacreError, match="is no parquet file that can be read"):
        find(str(tmp_path / "text.parquet"))
    with pytest.raises(NacreError, match="has a label that is no class: None"):
        find(str(parquet(tmp_path / "none.parquet", ["a", None])))


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for the files of one data set, in branches."""

    files: dict[str, Path]  # by branch/file

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self.wfile.write(self._answer())

    def _answer(self) -> bytes:
        path = unquote(self.path).split("?")[0]
        tree, resolve = "/api/datasets/owner/flowers/tree/", "/datasets/owner/flowers/resolve/"
        data: bytes | None = b"" if path == "/" else None
        if path.startswith(tree):
            branch = path.removeprefix(tree)
            names = [name.removeprefix(f"{branch}/") for name in self.files if name.startswith(f"{branch}/")]
            data = json.dumps([{"type": "file", "path": name, "size": 1, "oid": "0"} for name in names]).encode()
        elif path.removeprefix(resolve) in self.files:
            data = self.files[path.removeprefix(resolve)].read_bytes()
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", f'"{hashlib.sha256(data or b"").hexdigest()}"')
        self.end_headers()
        return data or b""

    def log_message(self, *_: object) -> None:
        pass


def asked_of_the_hub(home: Path, files: dict[str, Path], *names: str) -> list[str]:
    """What a process of its own finds by each name: the hub's address is read when its library is imported."""
    Hub.files = files
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever)
    thread.start()
    code = (
        "import sys\nfrom nacre import NacreError\nfrom nacre.scenarios.given import find\nfor name in sys.argv[1:]:\n"
        "    try: print(dict(find(name).source.labels))\n    except NacreError as error: print(error)\n"
    )
    address = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    try:
        command = [sys.executable, "-c", code, *names]
        environment = {**os.environ, **address}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_data_set_of_the_hub_by_its_name_and_configuration(tmp_path: Path) -> None:
    train, test = parquet(tmp_path / "1.parquet", ["a", "b", "a", "b"]), parquet(tmp_path / "2.parquet", ["b", "a"])
    files = {f"main/{at}/train-0.parquet": train for at in ("small", "large")} | {"main/small/test-0.parquet": test}
    names = ("owner/flowers", "owner/flowers:small", "owner/flowers:tiny", "owner/trees")
    several, small, tiny, unknown = asked_of_the_hub(tmp_path / "home", files, *names)
    assert several == (
        "owner/flowers has several configurations: say which as owner/flowers:large; there are large, small"
    )
    assert small == "{'train': (0, 1, 0, 1), 'test': (1, 0)}"
    assert tiny.startswith("owner/flowers has no configuration 'tiny'; it has ")
    assert unknown.startswith("there is no folder owner/trees here, and the Hugging Face hub could not give a data set")


def test_a_data_set_of_the_hub_that_is_no_parquet_is_taken_as_the_hub_converted_it(tmp_path: Path) -> None:
    train, test = parquet(tmp_path / "1.parquet", ["a", "b", "a", "b"]), parquet(tmp_path / "2.parquet", ["b", "a"])
    branch = "refs/convert/parquet/default"
    files = {"main/flowers.zip": train, f"{branch}/train/0000.parquet": train, f"{branch}/test/0000.parquet": test}
    (found,) = asked_of_the_hub(tmp_path / "home", files, "owner/flowers")
    assert found == "{'train': (0, 1, 0, 1), 'test': (1, 0)}"


def test_a_hub_that_does_not_answer_is_said(tmp_path: Path) -> None:
    command = "from nacre.scenarios.given import find; find('owner/flowers')"
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=False)
    assert "NacreError: there is no folder owner/flowers here, and the Hugging Face hub could not give" in done.stderr
