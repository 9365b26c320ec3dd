"""Decoding happens once: later starts read the same pixels from a file, whatever happens to it in between."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nacre.scenarios import SCENARIOS, Choices
from nacre.scenarios.cache import cache_folder

if TYPE_CHECKING:
    from tests.scenarios.conftest import Disk

PROCESS = (
    "import sys, hashlib; sys.modules.update({name: None for name in sys.argv[2:]})\n"
    "from nacre.scenarios import SCENARIOS, Choices\n"
    "task = SCENARIOS['cifar100'](Choices(data=sys.argv[1])).tasks[0]\n"
    "print(hashlib.sha256(task.train[0].numpy().tobytes() + task.test[0].numpy().tobytes()).hexdigest())"
)


def pixels(disk: Disk) -> str:
    task = SCENARIOS["cifar100"](Choices(data=disk.root)).tasks[0]
    return hashlib.sha256(task.train[0].numpy().tobytes() + task.test[0].numpy().tobytes()).hexdigest()


def start(disk: Disk, *without: str) -> subprocess.Popen[str]:
    """The same in a process of its own, without some packages."""
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(disk.root), *without],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def kept() -> list[Path]:
    return sorted(cache_folder().glob("*.safetensors"))


def test_the_second_start_decodes_nothing_and_imports_nothing_that_could(disk: Disk) -> None:
    disk.cifar100()
    first = pixels(disk)
    said, wrong = start(disk, "PIL", "pyarrow", "datasets", "huggingface_hub").communicate(timeout=120)
    assert (said.strip(), wrong) == (first, "")


def test_it_is_keyed_by_what_the_files_hold_and_not_by_where_they_are(disk: Disk, tmp_path: Path) -> None:
    made = disk.cifar100()
    first = pixels(disk)
    (file,) = kept()
    stamp = file.stat().st_mtime_ns, file.stat().st_ino
    disk.root = disk.root.rename(tmp_path / "elsewhere")
    assert pixels(disk) == first
    assert kept() == [file]
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == stamp
    images, labels = made["test"]
    images[labels.index(2), 5, 5, 0] ^= 1
    disk.parquet("uoft-cs/cifar100", "test", images, {"img": [], "fine_label": labels})
    assert pixels(disk) != first
    assert len(kept()) == 2


def test_a_changed_picture_of_a_folder_is_seen_although_its_size_is_not(disk: Disk) -> None:
    disk.miniimagenet()

    def first_pixel() -> float:
        return float(SCENARIOS["miniimagenet"](Choices(data=disk.root)).tasks[0].train[0][0, 0, 0, 0])

    seen = set()
    for level in (10, 20, 30):
        path = disk.picture("miniimagenet/train/n00000000/train.png", np.full((84, 84, 3), level, dtype=np.uint8))
        os.utime(path, ns=(0, 0))
        seen.add(round((first_pixel() * 0.229 + 0.485) * 255))
    assert seen == {10, 20, 30}


def test_files_that_have_not_changed_are_not_hashed_again(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest() -> str:
        return str(SCENARIOS["cifar100"](Choices(data=disk.root)).facts["data"]["uoft-cs/cifar100"]["sha256"])

    disk.cifar100()
    first = digest()
    assert not list(cache_folder().glob("seen-*"))  # files as new as this may change again unseen
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60)
    assert digest() == first
    (memo,) = cache_folder().glob("seen-*")
    assert memo.read_text() == first
    memo.write_text("0" * 64)
    assert digest() == "0" * 64  # what is remembered is believed
    memo.write_text("damaged")
    assert digest() == first
    (disk.root / "uoft-cs/cifar100/test-00000-of-00001.parquet").touch()
    memo.write_text("0" * 64)
    assert digest() == first  # but not for files with other times


def cut_short(data: bytearray) -> bytearray:
    return data[:-100]


def emptied(data: bytearray) -> bytearray:
    return bytearray()


def one_bit_of_a_pixel(data: bytearray) -> bytearray:
    data[-5000] ^= 4
    return data


def a_class_renamed(data: bytearray) -> bytearray:
    return data.replace(b"fine_label 41", b"fine_label 14", 1)


def something_else(data: bytearray) -> bytearray:
    return bytearray(random.Random(0).randbytes(len(data)))


@pytest.mark.parametrize("damage", [cut_short, emptied, one_bit_of_a_pixel, a_class_renamed, something_else])
def test_a_damaged_file_is_made_again(
    damage: Callable[[bytearray], bytearray], disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.cifar100()
    first = pixels(disk)
    (file,) = kept()
    whole = file.read_bytes()
    file.write_bytes(damage(bytearray(whole)))
    assert file.read_bytes() != whole
    assert pixels(disk) == first
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"nacre: {file} is damaged (")
    assert said.endswith("uoft-cs/cifar100 is decoded again")
    assert file.read_bytes() == whole
    assert pixels(disk) == first
    assert capsys.readouterr().err == ""


def test_processes_that_start_at_once_get_the_same_pixels_and_leave_one_file(disk: Disk) -> None:
    disk.cifar100()
    children = [start(disk) for _ in range(2)]
    said = [child.communicate(timeout=120) for child in children]
    assert len({out for out, _ in said}) == 1, said
    assert all(child.returncode == 0 for child in children)
    assert len(kept()) == 1
    assert not list(cache_folder().glob("*.partial"))


def test_what_a_killed_process_left_is_in_nobodys_way(disk: Disk) -> None:
    disk.cifar100()
    first = pixels(disk)
    (file,) = kept()
    partial = file.with_name(file.name + ".partial")
    file.rename(partial)
    partial.write_bytes(partial.read_bytes()[:1000])
    assert pixels(disk) == first
    assert kept() == [file]
    assert not partial.exists()


def test_a_mapped_file_survives_being_replaced_and_written_on(disk: Disk) -> None:
    """Tensors are views of the file: nobody who changes them changes it."""
    disk.cifar100()
    task = SCENARIOS["cifar100"](Choices(data=disk.root)).tasks[0]
    (file,) = kept()
    whole = file.read_bytes()
    before = task.train[0].clone()
    task.train[0].zero_()
    file.unlink()
    assert task.train[0].equal(before)
    assert pixels(disk)
    assert kept()[0].read_bytes() == whole


def test_where_nothing_can_be_kept_it_is_said_and_works(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.cifar100()
    first = pixels(disk)
    (disk.root / "file").write_text("")
    monkeypatch.setenv("NACRE_CACHE", str(disk.root / "file" / "below"))
    assert pixels(disk) == first
    (said,) = capsys.readouterr().err.splitlines()
    assert "cannot be written" in said
    assert "NACRE_CACHE names another folder" in said


def test_a_disk_that_is_full_costs_the_cache_and_nothing_else(disk: Disk) -> None:
    """A process that may write no file of more than 100 kB has no room for a megabyte of pixels."""
    disk.cifar100()
    limited = "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    limited += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    command = [sys.executable, "-c", limited + PROCESS, str(disk.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "cannot be written" in done.stderr
    assert done.stderr.count("\n") == 1
    assert kept() == list(cache_folder().glob("*.partial")) == []
    assert done.stdout.strip() == pixels(disk)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"NACRE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/nacre"),
        ({"HOME": "/c"}, "/c/.cache/nacre"),
    ],
)
def test_the_folder_follows_the_environment(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NACRE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)
