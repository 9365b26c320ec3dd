"""The picture of a terminal in the README: runs the commands for real, and draws what they print.

python benchmarks/recording.py docs/terminal.svg  # a minute; the numbers are this machine's
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS, LINES = 112, 60
COMMANDS = (
    "nacre learn life.nacre round round --epochs 6",
    "nacre learn life.nacre straight straight --epochs 6 --budget 40KB",
    "nacre predict life.nacre round round/0/000.png round/8/008.png --top 2",
    "nacre inspect life.nacre",
    "nacre export life.nacre round --to onnx --with-preprocessing",
    "nacre drop life.nacre round",
)
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def write_digits(folder: Path) -> None:
    """The pictures of docs/in-the-field.md."""
    digits = importlib.import_module("sklearn.datasets").load_digits()
    for number, (pixels, digit) in enumerate(zip(digits.images[:600], digits.target[:600], strict=True)):
        if digit in (0, 1, 4, 6, 7, 8, 9):
            kind = folder / ("round" if digit in (0, 6, 8, 9) else "straight") / str(digit)
            kind.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 15.9375).astype("uint8")).save(kind / f"{number:03d}.png")


def printed(command: str, folder: Path) -> str:
    """What a terminal shows once a command is done: of a line that was written over, the last."""
    terminal, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    words = [sys.executable, "-m", *command.split()]
    running = subprocess.Popen(words, cwd=folder, env=environment, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    data = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while part := os.read(terminal, 4096):
            data += part
    os.close(terminal)
    running.wait()
    lines = data.decode().replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r")[2] for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder))
        for command in COMMANDS:
            console.print(Text("$ ", "green") + Text(command, "bold"))
            console.print(Text.from_ansi(printed(command, Path(folder)).rstrip("\n")), "", sep="\n")
    drawn = console.export_svg(title="nacre", theme=MONOKAI, unique_id="nacre")
    out.write_text(_FONT.sub("", drawn) + "\n", encoding="utf-8")  # no font is fetched


if __name__ == "__main__":
    main()
