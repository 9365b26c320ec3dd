"""The cells of a grid on a Ray cluster. Every node needs nacre and the data; the folders come back as bytes."""

from __future__ import annotations

import contextlib
import io
import shutil
import socket
import tempfile
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.experiments.cell import Cell, learn_cell, what_went_wrong
from nacre.experiments.environment import record_session
from nacre.experiments.folder import ENVIRONMENT, LOCK, RUN, locked, read_json, write_json
from nacre.experiments.plan import Json
from nacre.experiments.run import CHECKPOINTS, seed_folder

_REACHABLE_S = 10.0


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise NacreError("--ray needs a package that is not installed: pip install 'nacre[ray]'") from error
    return ray


def on_cluster(cells: Sequence[Cell], out: Path, address: str, jobs: int | None) -> Iterator[tuple[Cell, str | None]]:
    """Learns cells, and gives each as it ends with what went wrong, if anything did."""
    ray = import_ray()
    with _connected(ray, address):
        remote = ray.remote(**_share(ray, jobs))(learn_elsewhere)
        learning = {remote.remote(cell.to_json(), read_json(out / cell.name / RUN)): cell for cell in cells}
        while learning:
            (done, *_), _ = ray.wait(list(learning))
            cell = learning.pop(done)
            try:
                found = ray.get(done)
                if found["error"] is None:
                    _keep(found, out / cell.name, cell.seed)
                yield cell, found["error"]
            except (ray.exceptions.RayError, NacreError, OSError, zipfile.BadZipFile) as error:
                yield cell, f"on the cluster: {error}"


def learn_elsewhere(cell: Json, config: Json) -> Json:
    """Runs on a node, in a folder of its own: learns a cell and gives all that it wrote."""
    chosen = Cell.from_json(cell)
    with tempfile.TemporaryDirectory(prefix="nacre-") as made:
        out = Path(made) / chosen.name
        out.mkdir()
        write_json(out / RUN, config)
        try:
            learn_cell(chosen, out, progress=False)
        except Exception as error:  # whatever it is, the grid goes on
            return {"error": what_went_wrong(error)}
        environment = read_json(out / ENVIRONMENT) or {}
        session = {**environment["sessions"][-1], "node": import_ray().get_runtime_context().get_node_id()}
        return {"error": None, "session": session, "files": _pack(seed_folder(out, chosen.seed))}


def _pack(folder: Path) -> bytes:
    """The files of a seed's folder; what only an interrupted run needs is left out."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if path.is_file() and CHECKPOINTS not in inside.parts and LOCK not in inside.parts:
                archive.write(path, inside)
    return packed.getvalue()


def _keep(found: Json, out: Path, seed: int) -> None:
    """The folder of a seed appears whole or not at all."""
    folder = seed_folder(out, seed)
    made = out / f".{folder.name}.{uuid.uuid4().hex}.partial"
    try:
        with zipfile.ZipFile(io.BytesIO(found["files"])) as archive:
            archive.extractall(made)
        with locked(folder):
            pass  # nobody is learning there on this machine
        shutil.rmtree(folder)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    record_session(out, found["session"])


@contextlib.contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except Exception as error:  # ray has many, not all of them its own
        raise NacreError(
            f"no Ray cluster could be reached at {address!r}: {error}. If the cluster asks for a token, set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) here too"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()  # ends the cells that still run


def _check_reachable(address: str) -> None:
    """Ray itself goes on trying for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()) or "/" in host:  # "auto", ray://...: Ray's own to find
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACHABLE_S).close()
    except (OSError, OverflowError) as error:
        raise NacreError(f"no Ray cluster could be reached at {address!r}: {error}") from error


def _share(ray: Any, jobs: int | None) -> dict[str, float]:
    """What a cell may use of the cluster: an accelerator if there are any, else a node's processors."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    processors = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    accelerators = sum(node.get("GPU", 0) for node in nodes)
    if not processors:
        raise NacreError("the Ray cluster has no node with a processor to spare")
    jobs = jobs or int(accelerators) or len(processors)
    share: dict[str, float] = {"num_cpus": max(1, min(sum(processors) // jobs, *processors))}
    return {**share, "num_gpus": min(1.0, int(1000 * accelerators / jobs) / 1000)} if accelerators else share
