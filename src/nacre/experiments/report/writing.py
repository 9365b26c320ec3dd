"""Writes the report: the page, and beside it a folder with every figure and table as files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from nacre.errors import NacreError
from nacre.experiments.report import contents, style
from nacre.experiments.report.groups import group
from nacre.experiments.report.page import Block, render
from nacre.experiments.report.runs import read_runs
from nacre.experiments.report.svg import inline
from nacre.space.store import replace_file


def write(paths: Sequence[Path], out: Path) -> Path:
    """Reads, draws, writes; gives the page's path."""
    if out.is_dir():
        raise NacreError(f"{out} is a folder: the report is one page, give the name of a file with --out")
    runs, notes = read_runs(paths)
    folder = out.with_name(f"{out.stem}-files")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with style.styled():
            _write(contents.blocks(group(runs), notes), out, folder)
    except OSError as error:
        raise NacreError(f"the report could not be written to {out}: {error.strerror or error}") from error
    return out


def _write(blocks: Sequence[Block], out: Path, folder: Path) -> None:
    """The files first, then the page: a page that is there is whole. Last goes what the page before had."""
    before = _linked(out, folder)
    svgs: dict[str, str] = {}
    for drawing in (drawing for block in blocks for drawing in block.drawings):
        svg, png = style.written(drawing.figure)
        (folder / f"{drawing.name}.svg").write_bytes(svg)
        (folder / f"{drawing.name}.png").write_bytes(png)
        svgs[drawing.name] = inline(svg, f"f{len(svgs)}", drawing.title)
    for table in (table for block in blocks for table in (*block.tables, *block.folded)):
        for kind, text in (("csv", table.csv()), ("md", table.markdown()), ("tex", table.latex())):
            (folder / f"{table.name}.{kind}").write_text(text, encoding="utf-8", newline="")
    page = render(blocks[0].heading, blocks, svgs, folder.name)
    replace_file(out, page.encode("utf-8", errors="replace"))
    for name in before - _linked(out, folder):
        (folder / name).unlink(missing_ok=True)


def _linked(page: Path, folder: Path) -> set[str]:
    """The names of the files in the folder that a page links to; none where there is no page yet."""
    text = page.read_text(encoding="utf-8", errors="replace") if page.exists() else ""
    return {Path(unquote(link)).name for link in re.findall(rf'href="{re.escape(quote(folder.name))}/([^"]+)"', text)}
