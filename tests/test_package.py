"""The wheel: it builds, installs, and holds the library and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent


def python(*arguments: str, cwd: Path, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    python("-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), cwd=PROJECT)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_the_library_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    sources = {str(path.relative_to(PROJECT / "src")) for path in (PROJECT / "src").rglob("*.py")}
    outside = {name for name in names if not name.startswith("nacre-")}
    assert outside == sources | {"nacre/py.typed", "nacre/experiments/report/page.css"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_installed_wheel_imports_learns_and_has_the_command(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    python(
        "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel), cwd=tmp_path
    )
    code = (
        "import nacre, torch; from torch import nn; from importlib.metadata import entry_points, version\n"
        "space = nacre.SharedSpace(nn.Linear(4, 3)); space.append('a', space.expand(nn.Linear(3, 2)))\n"
        "commands = entry_points(group='console_scripts', name='nacre')\n"
        "print(nacre.__file__, version('nacre'), nacre.__version__, len(commands))"
    )
    where, installed, said, commands = python("-c", code, cwd=tmp_path, path=str(site)).split()
    assert Path(where).is_relative_to(site)
    assert installed == said
    assert int(commands) >= 1
    assert (site / "bin" / "nacre").exists()


def test_the_library_needs_only_the_core_packages() -> None:
    """Importing nacre pulls in none of what the extras bring, nor accelerate, which only several processes need."""
    code = (
        "import sys, nacre\n"
        "heavy = {'tyro', 'rich', 'sklearn', 'datasets', 'PIL', 'onnx', 'transformers', 'accelerate', 'ray'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert python("-c", code, cwd=PROJECT).strip() == "[]"
