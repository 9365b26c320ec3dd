"""A grid on a Ray cluster of two nodes, started for real on this machine. As a script: that cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nacre import NacreError
from nacre.experiments.cluster import import_ray
from nacre.experiments.grid import Grid, compare
from nacre.experiments.protocols import Options
from nacre.space import verify

DEADLINE_S = 300
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def cluster() -> None:
    """Two nodes of one processor each, until standard input ends."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    print(nodes.address, flush=True)
    sys.stdin.read()
    nodes.shutdown()  # type: ignore[no-untyped-call]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.slow
def test_a_grid_is_learnt_on_two_nodes_and_comes_back(tmp_path: Path) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, __file__], env=ENVIRONMENT, **pipes) as started:  # its end closes the pipes
        assert started.stdout is not None
        address = started.stdout.readline().strip()
        command = ("compare", "digits", "--methods", "cacl", "single", "--seeds", "0", "1", "--epochs", "1")
        done = subprocess.run(
            [sys.executable, "-m", "nacre", *command, "--tasks", "1", "--ray", address, "--json"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(cell["cell"], cell["seeds"]) for cell in result["cells"]] == [("cacl", [0, 1]), ("single", [0, 1])]
    nodes = set()
    for name in ("cacl", "single"):
        run = tmp_path / "runs" / "digits-compare" / name
        assert read(run / "result.json")["acc"] == next(c["acc"] for c in result["cells"] if c["cell"] == name)
        nodes |= {session["node"] for session in read(run / "environment.json")["sessions"]}
        for seed in (0, 1):
            folder = run / f"seed-{seed}"
            assert verify(folder / "life.nacre") == []
            assert (folder / "epochs.jsonl").read_text().count("\n") == 1
            assert not (folder / "checkpoints").exists()
        assert not list(run.glob(".*.partial"))
    assert len(nodes) == 2


def test_without_ray_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(NacreError, match=r"--ray needs a package that is not installed: pip install 'nacre\[ray\]'"):
        import_ray()
    with pytest.raises(NacreError, match="--ray needs"):
        compare(Grid("digits", ("cacl",), (), Options(epochs=1)), tmp_path / "out", ray="auto")
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    command = ("compare", "digits", "--methods", "cacl", "--epochs", "1", "--ray", "127.0.0.1:1", "--out", "out")
    done = subprocess.run(
        [sys.executable, "-m", "nacre", *command],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("nacre: no Ray cluster could be reached at '127.0.0.1:1': ")


if __name__ == "__main__":
    cluster()
