"""Trackers: the curves of a run in TensorBoard, Weights & Biases or MLflow, through accelerate's."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nacre.errors import NacreError
from nacre.experiments.folder import flat
from nacre.training import Epoch

TrackerName = Literal["tensorboard", "wandb", "mlflow"]
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
_PROJECT = "nacre"


def check_tracker(name: str | None) -> None:
    """Refuses a tracker whose package is missing; accelerate itself would only warn."""
    if name is None:
        return
    if name not in _PACKAGES:
        raise NacreError(f"no tracker is called {name!r}; the trackers are {', '.join(_PACKAGES)}")
    if importlib.util.find_spec(_PACKAGES[name]) is None:
        raise NacreError(f"--track {name} needs a package that is not installed: pip install {_PACKAGES[name]}")


class Tracked:
    """What one seed of a run tells its tracker. A step is an epoch, counted on over the tasks."""

    def __init__(self, tracker: Any, tasks: Sequence[str], epochs: int) -> None:
        """epochs: of each task."""
        self._tracker, self._tasks, self._epochs = tracker, list(tasks), epochs

    def epoch(self, epoch: Epoch, _: object) -> None:
        """A callback of `learn`."""
        step = self._tasks.index(epoch.task) * self._epochs + epoch.epoch
        self._log({"loss": epoch.loss, "accuracy in training": epoch.accuracy, **epoch.measures}, step)

    def task(self, accuracies: Sequence[float], megabytes: float) -> None:
        """After a task was learnt: the accuracies of all tasks so far, their mean, the size."""
        values = {f"accuracy/{task}": accuracy for task, accuracy in zip(self._tasks, accuracies, strict=False)}
        step = len(accuracies) * self._epochs
        self._log({**values, "ACC": sum(accuracies) / len(accuracies), "MB": megabytes}, step)

    def _log(self, values: Mapping[str, float | None], step: int) -> None:
        self._tracker.log({name: float(value) for name, value in values.items() if value is not None}, step=step)


@contextlib.contextmanager
def tracking(
    name: str | None, folder: Path, config: Mapping[str, Any], tasks: Sequence[str], epochs: int
) -> Iterator[Tracked | None]:
    """A tracker for one seed, whose folder gives the tracker's run its name; none where none is wanted."""
    if name is None:
        yield None
        return
    check_tracker(name)
    tracker = _MAKERS[name](folder, f"{folder.parent.name}/{folder.name}")
    tracker.start()
    try:
        tracker.store_init_configuration({key: _plain(value) for key, value in flat(dict(config)).items()})
        yield Tracked(tracker, tasks, epochs)
    finally:
        tracker.finish()


def _tensorboard(folder: Path, _: str) -> Any:
    from accelerate.tracking import TensorBoardTracker

    return TensorBoardTracker("tensorboard", logging_dir=folder)


def _wandb(folder: Path, run: str) -> Any:
    from accelerate.tracking import WandBTracker

    return WandBTracker(_PROJECT, name=run, dir=str(folder))


def _mlflow(_: Path, run: str) -> Any:
    from accelerate.tracking import MLflowTracker

    return MLflowTracker(_PROJECT, run_name=run)


_MAKERS: dict[str, Callable[[Path, str], Any]] = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)
