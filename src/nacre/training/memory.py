"""Keeps memory that a training step frees for the next step, where the C library would hand it back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

import torch

_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
_KEEP = 1 << 30
_USUAL = 1 << 25  # where glibc's own adjustment ends up once large blocks were freed


@contextlib.contextmanager
def freed_memory_kept(device: torch.device) -> Iterator[None]:
    """In this block, on a CPU under glibc, freed activations stay with the process.

    Otherwise each step asks the system for them anew and pays a page fault for every 4 KiB. What that costs is the
    machine's: nothing that could be seen on the last one (docs/results.md). The values of no computation change.
    """
    library = _glibc() if device.type == "cpu" else None
    if library is None:
        yield
        return
    library.mallopt(_MAP, _KEEP)
    library.mallopt(_TRIM, _KEEP)
    try:
        yield
    finally:
        library.mallopt(_MAP, _USUAL)
        library.mallopt(_TRIM, 2 * _USUAL)
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        _ = library.gnu_get_libc_version, library.mallopt, library.malloc_trim
    except (OSError, AttributeError):  # another C library
        return None
    return library
