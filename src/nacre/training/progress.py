"""One line on standard error that says where training is and how long it will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

_TERMINAL_S, _LOG_S = 0.2, 30.0  # how often: a terminal's line is rewritten, a log gets a new one


class Progress:
    """Counts batches and writes; silent where it is not wanted, and for the first two seconds."""

    def __init__(self, task: str, phase: str, epochs: int, done: int, *, wanted: bool) -> None:
        self._name = task if phase == "train" else f"{task} ({phase})"
        self._epochs, self._first = epochs, done
        self._wanted = wanted and sys.stderr is not None
        self._live = self._wanted and sys.stderr.isatty()
        self._begun = time.monotonic()
        self._due = self._begun + 2
        self._images, self._width = 0, 0
        self._measures: Mapping[str, float] = {}

    def count(self, images: int) -> None:
        self._images += images

    def show(self, epoch: int, share: float, loss: float | None, accuracy: float | None) -> None:
        """Writes the line: `share` of the epoch is done."""
        self._write(self._line(epoch, share, loss, accuracy))

    def due(self) -> bool:
        """Whether it is time to write: only then is it worth asking the device for its loss."""
        return self._wanted and time.monotonic() >= self._due

    def epoch(self, measures: Mapping[str, float]) -> None:
        self._measures = measures

    def close(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()

    def _line(self, epoch: int, share: float, loss: float | None, accuracy: float | None) -> str:
        passed = time.monotonic() - self._begun
        done = epoch - self._first + min(share, 1.0)  # a sampler may draw more examples than there are
        left = passed * (self._epochs - self._first - done) / done if done else 0.0
        parts = [self._name, f"epoch {epoch + 1}/{self._epochs}"]
        parts += [f"loss {loss:.3f}"] if loss is not None else []
        parts += [f"accuracy {accuracy:.1f} %"] if accuracy is not None else []
        parts += [f"{name} {value:.4g}" for name, value in self._measures.items()]
        minutes, seconds = divmod(round(left), 60)
        return "  ".join([*parts, f"{self._images / passed:.0f} images/s", f"{minutes}:{seconds:02d} left"])

    def _write(self, line: str) -> None:
        self._due = time.monotonic() + (_TERMINAL_S if self._live else _LOG_S)
        if self._live:
            sys.stderr.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
