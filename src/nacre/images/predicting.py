"""What is on pictures: a task's classes with their probabilities, for files of any size and mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.images.opened import Opened, open_store
from nacre.scenarios.given import files_below
from nacre.scenarios.progress import Counting
from nacre.scenarios.sources import PICTURES
from nacre.space.inspection import classes_of
from nacre.space.naming import as_path, check_known

_BATCH = 256


@dataclass(frozen=True)
class Answer:
    """A picture's most probable classes, the best first."""

    file: Path
    classes: tuple[tuple[str, float], ...]


def predict(
    store: str | Path, task: str, pictures: Sequence[str | Path], top: int = 1
) -> tuple[list[Answer], list[str]]:
    """Answers in the order of the files, those of a folder in the order of their names; and what could not be read."""
    if top < 1:
        raise NacreError(f"as many classes as are shown: a whole number from 1; got {top}")
    opened = open_store(store)
    check_known(task, opened.learner.tasks)
    names = classes_of(as_path(store), task)
    files = _files([as_path(path) for path in pictures])
    answers: list[Answer] = []
    broken: list[str] = []
    with Counting(f"predicting {task}", len(files)) as counting:
        for at in range(0, len(files), _BATCH):
            chosen = files[at : at + _BATCH]
            read, pixels = _decoded(chosen, opened, broken)
            if read:
                logits = opened.learner.predict(opened.preprocessing(torch.stack(pixels)), task=task)
                answers += _answers(read, logits, names, top)
            counting.add(len(chosen))
    return answers, broken


def _files(pictures: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in pictures:
        if not path.exists():
            raise NacreError(f"{path} does not exist: give pictures, or folders of them")
        below = [file for file in files_below(path) if file.suffix.lower() in PICTURES] if path.is_dir() else [path]
        if not below:
            raise NacreError(f"{path} holds no pictures, which end in {', '.join(PICTURES)}")
        files += below
    return files


def _decoded(files: Sequence[Path], opened: Opened, broken: list[str]) -> tuple[list[Path], list[Tensor]]:
    """The files that can be read, and their pixels; what is wrong with the others goes to `broken`."""
    read: list[Path] = []
    pixels: list[Tensor] = []
    for path in files:
        try:
            pixels.append(opened.pixels(path))
            read.append(path)
        except NacreError as error:
            broken.append(str(error))
    return read, pixels


def _answers(files: Sequence[Path], logits: Tensor, names: Sequence[str] | None, top: int) -> list[Answer]:
    probabilities, numbers = logits.double().softmax(1).topk(min(top, logits.shape[1]), dim=1)
    known = names if names is not None else [str(number) for number in range(logits.shape[1])]
    return [
        Answer(path, tuple((known[number], share) for number, share in zip(best, shares, strict=True)))
        for path, best, shares in zip(files, numbers.tolist(), probabilities.tolist(), strict=True)
    ]
