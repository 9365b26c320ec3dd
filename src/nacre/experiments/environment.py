"""Where a run was made: versions, machine, state of the checkout. For the record; never compared."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nacre.experiments.folder import ENVIRONMENT, locked, read_json, write_json

_PACKAGES = ("torch", "numpy", "safetensors", "accelerate", "scikit-learn", "datasets", "pillow", "ray")
_GIT_S = 10.0
Json = dict[str, Any]


def describe_session() -> Json:
    """This process, as one of the sessions of a run."""
    return {
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        "machine": _machine(),
        "git": _git(Path(__file__).parent),
    }


def record_session(out: Path, session: Json) -> None:
    """Writes down the first session of a run, and adds each that went on with it."""
    path = out / ENVIRONMENT
    with locked(out):  # several processes may work on the seeds of one run
        known = read_json(path)
        earlier = (known or {}).get("sessions", [])
        write_json(path, {**(known or session), "sessions": [*earlier, session]})


def _versions() -> dict[str, str | None]:
    from nacre import __version__

    return {"nacre": __version__, "python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _machine() -> Json:
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory_gib(),
        "accelerator": _accelerator(),
    }


def _processor() -> str:
    """The processor's name; Linux tells it in a file only."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):  # no such question on this system
        return None


def _accelerator() -> Json | None:
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        return None
    name = torch.cuda.get_device_name(0) if device.type == "cuda" else device.type
    return {"type": device.type, "name": name, "count": torch.accelerator.device_count()}


def _git(folder: Path) -> Json | None:
    """The commit of the checkout that this code is run from; None where it is not tracked by one."""
    if _ask_git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    commit, changes = _ask_git(folder, "rev-parse", "HEAD"), _ask_git(folder, "status", "--porcelain")
    return {"commit": commit, "dirty": bool(changes)} if commit is not None and changes is not None else None


def _ask_git(folder: Path, *question: str) -> str | None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook
    try:
        told = subprocess.run(
            ["git", "-C", str(folder), *question],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()
