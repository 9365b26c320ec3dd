"""Small data sets on disk, in the hub's schema or as folders of images, and a decoded-pictures cache of each test's."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NACRE_CACHE", str(tmp_path / "cache"))


class Disk:
    """A folder that --data can name."""

    coarse = tuple((7 * label) % 100 // 5 for label in range(100))  # a superclass for every class, five in each

    def __init__(self, root: Path) -> None:
        self.root = root

    def parquet(
        self, name: str, split: str, pixels: Pixels, columns: Mapping[str, Sequence[int]], *, names: bool = True
    ) -> Path:
        """One file as datasets writes it; the first column is the pictures'."""
        image, *labels = columns
        table: dict[str, Any] = {image: [{"bytes": encoded(picture), "path": None} for picture in pixels]}
        table |= {label: list(columns[label]) for label in labels}
        schema = pyarrow.schema(
            [
                (image, pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])),
                *[(label, pyarrow.int64()) for label in labels],
            ]
        )
        if names:
            known = {label: {"names": [f"{label} {at}" for at in range(1 + max(columns[label]))]} for label in labels}
            schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": known}})})
        path = self.root / name / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table(table, schema=schema), path)
        return path

    def cifar100(self, each: int = 2) -> dict[str, tuple[Pixels, list[int]]]:
        """`each` training images and one test image a class, shuffled."""
        made = {}
        for split, count, seed in (("train", 100 * each, 0), ("test", 100, 1)):
            draw = np.random.default_rng(seed)
            labels = draw.permutation(np.arange(count) % 100).tolist()
            pixels = draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
            columns = {"img": [], "fine_label": labels, "coarse_label": [self.coarse[label] for label in labels]}
            self.parquet("uoft-cs/cifar100", split, pixels, columns)
            made[split] = (pixels, labels)
        return made

    def ten_classes(self, name: str, side: int, channels: int, image: str = "image") -> dict[str, Pixels]:
        """Two training images and one test image a class, in the order of the classes."""
        made = {}
        for split, each, seed in (("train", 2, 0), ("test", 1, 1)):
            shape = (10 * each, side, side, 3)[: 3 + (channels == 3)]
            made[split] = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
            self.parquet(name, split, made[split], {image: [], "label": [at // each for at in range(10 * each)]})
        return made

    def five(self) -> dict[str, dict[str, Pixels]]:
        return {
            "svhn": self.ten_classes("ufldl-stanford/svhn", 32, 3),
            "cifar10": self.ten_classes("uoft-cs/cifar10", 32, 3, "img"),
            "notmnist": self.ten_classes("anubhavmaity/notMNIST", 28, 1),
            "fashion-mnist": self.ten_classes("zalando-datasets/fashion_mnist", 28, 1),
            "mnist": self.ten_classes("ylecun/mnist", 28, 1),
        }

    def picture(self, path: str, pixels: Pixels) -> Path:
        """One picture of a folder of images."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(encoded(pixels))
        return self.root / path

    def miniimagenet(self, side: int = 84) -> dict[str, Pixels]:
        """A folder of images: one for training and one for testing a class."""
        made = {}
        for split, seed in (("train", 0), ("test", 1)):
            made[split] = np.random.default_rng(seed).integers(0, 256, (100, side, side, 3), dtype=np.uint8)
            for label, pixels in enumerate(made[split]):
                self.picture(f"miniimagenet/{split}/n{label:08d}/{split}.png", pixels)
        return made


def encoded(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "data")
