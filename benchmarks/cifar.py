"""CIFAR-100 tasks of five consecutive classes, for the benchmarks: from the hub's parquet, or from one small file.

python benchmarks/cifar.py ../shared/data carry/cifar.safetensors --tasks 5
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

CLASSES = 5
MEAN, STD = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)

Part = tuple[Tensor, Tensor]


def tasks(source: Path, count: int) -> list[tuple[Part, Part]]:
    """(train, test) of the first tasks, normalised; labels 0 to 4 in each."""
    parts = {name: _part(source, name, count) for name in ("train", "test")}
    found = []
    for task in range(count):
        split = []
        for name in ("train", "test"):
            images, labels = parts[name]
            chosen = labels // CLASSES == task
            split.append((normalise(images[chosen]), labels[chosen] % CLASSES))
        found.append((split[0], split[1]))
    return found


def normalise(images: Tensor) -> Tensor:
    """uint8 images to numbers around 0."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (images / 255 - mean) / std


def holdout(part: Part, share: float = 0.15, seed: int = 0) -> tuple[Part, Part]:
    """A training set in two: what is trained on, and what choices are made on."""
    order = torch.randperm(len(part[1]), generator=torch.Generator().manual_seed(seed))
    cut = int(len(order) * share)
    return (part[0][order[cut:]], part[1][order[cut:]]), (part[0][order[:cut]], part[1][order[:cut]])


def _part(source: Path, name: str, count: int) -> Part:
    if source.is_file():
        stored = safetensors.torch.load_file(source)
        images, labels = stored[f"{name}/images"], stored[f"{name}/labels"]
    else:
        images, labels = _decode(next((source / "uoft-cs" / "cifar100").glob(f"{name}-*.parquet")))
    wanted = labels < count * CLASSES
    return images[wanted], labels[wanted]


def _decode(parquet: Path) -> Part:
    import numpy as np
    import pyarrow.parquet
    from PIL import Image

    table = pyarrow.parquet.read_table(parquet, columns=["img", "fine_label"]).to_pydict()
    pictures = [np.asarray(Image.open(io.BytesIO(picture["bytes"]))) for picture in table["img"]]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous(), torch.tensor(table["fine_label"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with uoft-cs/cifar100/*.parquet")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", type=int, default=5)
    given = parser.parse_args()
    stored: dict[str, Tensor] = {}
    for name in ("train", "test"):
        images, labels = _part(given.data, name, given.tasks)
        stored |= {f"{name}/images": images.contiguous(), f"{name}/labels": labels.contiguous()}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(stored, given.out)


if __name__ == "__main__":
    main()
