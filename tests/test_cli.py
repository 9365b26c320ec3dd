"""The command as a user has it: real processes, what they print, how they end. Runs are shared by the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NACRE = str(Path(sys.executable).with_name("nacre"))
DEADLINE_S = 120
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # as many threads in every process, so that bits can be compared


def start(*arguments: object, cwd: Path, **more: Any) -> subprocess.Popen[str]:
    given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT, **more}
    return subprocess.Popen([NACRE, *map(str, arguments)], cwd=cwd, text=True, encoding="utf-8", **given)


@pytest.mark.slow
def test_on_the_digits_cacl_is_as_good_as_one_network_a_task_in_half_the_space(tmp_path: Path) -> None:
    """The defaults; both methods at the same time."""
    runs = {
        method: start("run", "--json", "--method", method, "--seeds", 0, 1, 2, cwd=tmp_path)
        for method in ("cacl", "single")
    }
    said = {method: child.communicate(timeout=1800) for method, child in runs.items()}
    assert [child.returncode for child in runs.values()] == [0, 0], said
    cacl, single = (json.loads(said[method][0]) for method in ("cacl", "single"))
    for ours, dense in [(cacl, single), *zip(cacl["runs"], single["runs"], strict=True)]:
        print({key: (ours[key], dense[key]) for key in ("acc", "bwt", "megabytes")}, ours.get("seconds"))
        assert ours["acc"] >= dense["acc"] - 2
        assert ours["megabytes"] <= dense["megabytes"] / 2
        assert ours["bwt"] == 0.0
    assert [run["seed"] for run in cacl["runs"]] == [run["seed"] for run in single["runs"]] == [0, 1, 2]
