"""Where data are looked for, and what a user is told of data that are missing, incomplete or damaged."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nacre import NacreError
from nacre.scenarios import SCENARIOS, Choices

if TYPE_CHECKING:
    from tests.scenarios.conftest import Disk

REVISION = "aadb3af77e9048adbea6b47c21a81e47dd092ae5"  # of uoft-cs/cifar100
CLOSED = "http://127.0.0.1:9"  # the discard port: nobody listens
LOAD = """
import sys
from nacre import NacreError
from nacre.scenarios import SCENARIOS, Choices
for data in sys.argv[1:]:
    try:
        print(SCENARIOS["cifar100"](Choices(data=data if data != "-" else None)).facts["data"])
    except NacreError as error:
        print("NacreError:", error)
"""


def load(*data: Path | str, home: Path, hub: str = CLOSED) -> subprocess.CompletedProcess[str]:
    """Loads cifar100 from each of some folders in a process of its own; "-" stands for no folder."""
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(home), "OMP_NUM_THREADS": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    return subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, data)], env=environment, capture_output=True, text=True, check=True
    )


def test_without_a_network_one_sentence_says_what_to_do(disk: Disk, tmp_path: Path) -> None:
    disk.root.mkdir()
    done = load("-", disk.root, home=tmp_path)
    without, with_data = done.stdout.splitlines()
    assert without.startswith("NacreError: uoft-cs/cifar100 could not be downloaded from the Hugging Face hub (")
    assert "Connection refused" in without
    assert "give it with --data: DIR/uoft-cs/cifar100/train*.parquet" in without
    assert f"{disk.root} does not hold uoft-cs/cifar100, and uoft-cs/cifar100 could not be downloaded" in with_data
    assert done.stderr == ""  # and nothing was tried again and again


def test_what_the_hub_has_downloaded_before_needs_no_network(disk: Disk, tmp_path: Path) -> None:
    disk.cifar100()
    snapshot = tmp_path / "home/hub/datasets--uoft-cs--cifar100/snapshots" / REVISION / "cifar100"
    shutil.copytree(disk.root / "uoft-cs/cifar100", snapshot)
    done = load("-", home=tmp_path / "home")
    assert f"'revision': '{REVISION}'" in done.stdout
    assert "'train': 200" in done.stdout
    local = SCENARIOS["cifar100"](Choices(data=disk.root)).facts["data"]["uoft-cs/cifar100"]["sha256"]
    assert local in done.stdout  # the same contents, wherever they come from


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for the two files of one data set at one revision."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self.wfile.write(self._answer())

    def _answer(self) -> bytes:
        self.asked.append(f"{self.command} {self.path}")
        start = f"/datasets/uoft-cs/cifar100/resolve/{REVISION}/cifar100/"
        path = self.folder / self.path.removeprefix(start)
        known = self.path.startswith(start) and path.is_file()
        data = path.read_bytes() if known else b""
        self.send_response(200 if known or self.path == "/" else 404)
        self.send_header("Content-Length", str(len(data)))
        if known:
            self.send_header("X-Repo-Commit", REVISION)
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.end_headers()
        return data

    def log_message(self, *_: object) -> None:
        pass


def test_a_set_is_downloaded_at_its_revision_once(disk: Disk, tmp_path: Path) -> None:
    disk.cifar100()
    Hub.folder, Hub.asked = disk.root / "uoft-cs/cifar100", []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        done = load("-", "-", home=tmp_path, hub=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert done.stdout.count(f"'revision': '{REVISION}'") == 2, done.stdout
    assert f"downloading uoft-cs/cifar100 at revision {REVISION[:8]} from the Hugging Face hub" in done.stderr
    fetched = [path.rsplit("/", 1)[1] for path in Hub.asked if path.startswith("GET") and path.endswith(".parquet")]
    assert sorted(fetched) == ["test-00000-of-00001.parquet", "train-00000-of-00001.parquet"]


@pytest.mark.parametrize(
    ("name", "set_name", "folder"),
    [
        ("miniimagenet", "timm/mini-imagenet", "miniimagenet"),
        ("five-datasets", "anubhavmaity/notMNIST", "notmnist"),
    ],
)
def test_what_the_hub_does_not_hold_in_the_classic_form_must_be_given(
    name: str, set_name: str, folder: str, disk: Disk
) -> None:
    disk.ten_classes("uoft-cs/cifar10", 32, 3, "img")  # the others would be downloaded; the hub is not asked before
    with pytest.raises(NacreError) as caught:
        SCENARIOS[name](Choices(data=disk.root))
    assert f"hub does not hold {set_name} in the form that papers use" in str(caught.value)
    assert f"{disk.root}/{folder}/train/CLASS/PICTURE.png" in str(caught.value)


@pytest.mark.parametrize("where", ["uoft-cs/cifar100", "uoft-cs/cifar100/data", "uoft-cs/cifar100/cifar100"])
def test_parquet_may_lie_as_in_a_copy_of_the_hubs_repository(where: str, disk: Disk) -> None:
    disk.cifar100()
    (disk.root / "uoft-cs/cifar100").rename(disk.root / "aside")
    (disk.root / where).parent.mkdir(parents=True, exist_ok=True)
    (disk.root / "aside").rename(disk.root / where)
    for split in ("train", "test"):
        (disk.root / where / f"{split}-00000-of-00001.parquet").rename(disk.root / where / f"{split}.parquet")
    assert len(SCENARIOS["cifar100"](Choices(data=disk.root)).tasks) == 20


def test_a_set_in_several_files_is_read_in_their_order(disk: Disk) -> None:
    made = disk.cifar100()
    whole = SCENARIOS["cifar100"](Choices(data=disk.root)).tasks[3].train
    pixels, labels = made["train"]
    (disk.root / "uoft-cs/cifar100/train-00000-of-00001.parquet").unlink()
    for at in (0, 1):
        half = slice(100 * at, 100 * at + 100)
        path = disk.parquet("uoft-cs/cifar100", "train", pixels[half], {"img": [], "fine_label": labels[half]})
        path.rename(path.with_name(f"train-0000{at}-of-00002.parquet"))
    again = SCENARIOS["cifar100"](Choices(data=disk.root)).tasks[3].train
    assert all(one.equal(other) for one, other in zip(whole, again, strict=True))


def test_classes_of_a_folder_are_in_the_order_of_their_numbers(disk: Disk) -> None:
    for split, level in (("train", 0), ("test", 1)):
        for label in range(100):
            disk.picture(f"miniimagenet/{split}/{label}/p.JPG", np.full((84, 84, 3), 2 * label + level, dtype=np.uint8))
        disk.root.joinpath(f"miniimagenet/{split}/.DS_Store").write_bytes(b"")
        disk.root.joinpath(f"miniimagenet/{split}/7/Thumbs.db").write_bytes(b"no picture")
    tasks = SCENARIOS["miniimagenet"](Choices(data=disk.root)).tasks
    assert tasks[2].classes == ("10", "11", "12", "13", "14")
    levels = ((tasks[2].train[0][:, 0, 0, 0] * 0.229 + 0.485) * 255).round().int().tolist()
    assert levels == [20, 22, 24, 26, 28]


# mistakes


def no_folder(disk: Disk) -> None:
    pass


def a_file(disk: Disk) -> None:
    disk.root.write_text("")


def no_test_split(disk: Disk) -> None:
    disk.cifar100()
    (disk.root / "uoft-cs/cifar100/test-00000-of-00001.parquet").unlink()


def no_such_column(disk: Disk) -> None:
    disk.parquet("uoft-cs/cifar100", "test", np.zeros((1, 32, 32, 3), np.uint8), {"image": [], "label": [0]})
    disk.parquet("uoft-cs/cifar100", "train", np.zeros((1, 32, 32, 3), np.uint8), {"image": [], "label": [0]})


def a_class_too_many(disk: Disk) -> None:
    disk.cifar100()
    labels = [*range(99), 100]
    disk.parquet("uoft-cs/cifar100", "test", np.zeros((100, 32, 32, 3), np.uint8), {"img": [], "fine_label": labels})


def a_class_too_few(disk: Disk) -> None:
    disk.cifar100()
    labels = [*range(99), 98]
    disk.parquet("uoft-cs/cifar100", "test", np.zeros((100, 32, 32, 3), np.uint8), {"img": [], "fine_label": labels})


def another_size(disk: Disk) -> None:
    disk.cifar100()
    pixels = np.zeros((100, 32, 31, 3), np.uint8)
    disk.parquet("uoft-cs/cifar100", "test", pixels, {"img": [], "fine_label": range(100)})


def half_a_file(disk: Disk) -> None:
    disk.cifar100()
    path = disk.root / "uoft-cs/cifar100/train-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damaged_pages(disk: Disk) -> None:
    disk.cifar100()
    path = disk.root / "uoft-cs/cifar100/train-00000-of-00001.parquet"
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (no_folder, r"--data takes a folder; .*data does not exist"),
        (a_file, r"--data takes a folder; .*data is none"),
        (no_test_split, r"holds train-00000-of-00001\.parquet, but no test\*\.parquet"),
        (no_such_column, r"has the columns image, label; uoft-cs/cifar100 has img and fine_label too"),
        (a_class_too_many, r"the test pictures in .* have the labels 0 to 100; uoft-cs/cifar100 has 0 to 99"),
        (
            a_class_too_few,
            r"the test pictures in .* are of 99 classes, uoft-cs/cifar100 has 100: none has the label 99",
        ),
        (another_size, r"row 0 of .*test.* has 31 x 32 pixels; uoft-cs/cifar100 has 32 squared"),
        (half_a_file, r"train-00000-of-00001\.parquet is no parquet file that can be read"),
        (damaged_pages, r"train-00000-of-00001\.parquet is damaged|is no p"),
    ],
    ids=lambda part: part.__name__ if callable(part) else "",
)
def test_a_mistake_with_parquet_is_named(mistake: Callable[[Disk], None], message: str, disk: Disk) -> None:
    mistake(disk)
    with pytest.raises(NacreError, match=message):
        SCENARIOS["cifar100"](Choices(data=disk.root))


def no_training_pictures(disk: Disk) -> None:
    shutil.rmtree(disk.root / "miniimagenet/train")


def the_few_shot_split(disk: Disk) -> None:
    for label in range(64):
        shutil.rmtree(disk.root / f"miniimagenet/test/n{label:08d}")
    for label in range(64, 100):
        shutil.rmtree(disk.root / f"miniimagenet/train/n{label:08d}")


def no_picture(disk: Disk) -> None:
    (disk.root / "miniimagenet/test/n00000007/test.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")


def half_a_picture(disk: Disk) -> None:
    path = disk.root / "miniimagenet/test/n00000007/test.png"
    path.write_bytes(path.read_bytes()[:9000])


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (no_training_pictures, r"miniimagenet/train holds no pictures: put them into .*train/CLASS/PICTURE.png"),
        (the_few_shot_split, r"of the same classes; 100 classes are in one of them only, such as n00000000"),
        (no_picture, r"n00000007/test\.png is no picture that Pillow reads"),
        (half_a_picture, r"n00000007/test\.png is no picture that Pillow reads"),
    ],
    ids=lambda part: part.__name__ if callable(part) else "",
)
def test_a_mistake_with_a_folder_of_images_is_named(mistake: Callable[[Disk], None], message: str, disk: Disk) -> None:
    disk.miniimagenet()
    mistake(disk)
    with pytest.raises(NacreError, match=message):
        SCENARIOS["miniimagenet"](Choices(data=disk.root))
