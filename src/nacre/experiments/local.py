"""The cells of a grid in processes of this machine, a few at a time; they end with the command that started them."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import torch

from nacre.experiments.cell import Cell

_WORKER = (sys.executable, "-m", "nacre.experiments.cell")


def default_jobs() -> int:
    """One cell for each accelerator; one at a time on a machine without."""
    return max(1, torch.accelerator.device_count())


def in_processes(cells: Sequence[Cell], out: Path, jobs: int) -> Iterator[tuple[Cell, str | None]]:
    """Learns cells, and gives each as it ends with what went wrong, if anything did."""
    workers = _Workers(out, jobs)
    with ThreadPoolExecutor(jobs) as pool:
        learning = {pool.submit(workers.learn, cell): cell for cell in cells}
        try:
            for learnt in as_completed(learning):
                yield learning[learnt], learnt.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            workers.stop()


class _Workers:
    """At most `jobs` processes, each in a place of its own."""

    def __init__(self, out: Path, jobs: int) -> None:
        self._out, self._jobs = out, jobs
        self._places: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(jobs):
            self._places.put(place)
        self._running: set[subprocess.Popen[str]] = set()
        self._guard, self._stopped = threading.Lock(), False

    def learn(self, cell: Cell) -> str | None:
        place = self._places.get()
        try:
            child = self._start(place)
            return self._learn(child, cell) if child is not None else "stopped before it began"
        finally:
            self._places.put(place)

    def _start(self, place: int) -> subprocess.Popen[str] | None:
        with self._guard:
            if self._stopped:
                return None
            child = subprocess.Popen(
                _WORKER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **settings_of_place(place, self._jobs)},
                text=True,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the command, which ends its processes
            )
            self._running.add(child)
            return child

    def _learn(self, child: subprocess.Popen[str], cell: Cell) -> str | None:
        assert child.stdin is not None
        assert child.stdout is not None
        asked = {"cell": cell.to_json(), "out": str(self._out / cell.name), "progress": self._jobs == 1}
        with child:
            try:
                child.stdin.write(json.dumps(asked) + "\n")
                child.stdin.flush()
            except BrokenPipeError:  # it ended before it read; its status says how
                pass
            said = child.stdout.read()  # its standard input stays open until it has ended
            child.wait()
        with self._guard:
            self._running.discard(child)
        return _error(child.returncode, said)

    def stop(self) -> None:
        """Ends what still runs: a cell may be stopped at any moment and goes on from its last epoch."""
        with self._guard:
            self._stopped = True
            for child in self._running:
                child.kill()


def settings_of_place(place: int, jobs: int) -> dict[str, str]:
    """The share of the machine that a place has, as environment variables: threads, and an accelerator of its own."""
    if jobs == 1:
        return {}
    threads = max(1, torch.get_num_threads() // jobs)
    settings = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}
    if torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = visible.split(",") if visible else [str(at) for at in range(torch.cuda.device_count())]
        settings["CUDA_VISIBLE_DEVICES"] = devices[place % len(devices)]
    return settings


def _error(status: int, said: str) -> str | None:
    if status < 0:
        return f"its process was ended by signal {-status}; standard error may say more"
    try:
        error: str | None = json.loads(said.splitlines()[-1])
    except (ValueError, IndexError):
        return f"its process ended with status {status} and did not say why; standard error may say more"
    return error
