"""The page: one file of HTML with everything in it, no script, no address of anything outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import quote

from nacre.experiments.report.inks import style_sheet
from nacre.experiments.report.style import Drawing
from nacre.experiments.report.tables import Table, bullets, escape

_TYPES = ("csv", "md", "tex")


@dataclass(frozen=True)
class Block:
    """A part of the page: a heading, what is to be warned of, tables, figures, folded tables."""

    heading: str
    level: int
    text: str = ""
    warnings: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    folded: tuple[Table, ...] = ()


def render(title: str, blocks: Sequence[Block], svgs: dict[str, str], folder: str) -> str:
    """The whole page. `svgs` holds the inline figures by name, `folder` the name of the folder of files beside it."""
    style = style_sheet() + files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(_block(block, svgs, quote(folder)) for block in blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _block(block: Block, svgs: dict[str, str], folder: str) -> str:
    parts = [f"<h{block.level}>{escape(block.heading)}</h{block.level}>"]
    parts += [f"<p>{escape(block.text)}</p>"] if block.text else []
    parts += [f'<div class="warning" role="note">{bullets(block.warnings)}</div>'] if block.warnings else []
    parts += [_table(table, folder) for table in block.tables]
    if block.drawings:
        figures = "\n".join(_figure(drawing, svgs[drawing.name], folder) for drawing in block.drawings)
        parts.append(f'<div class="figures">\n{figures}\n</div>')
    parts += [_folded(table, folder) for table in block.folded]
    return "\n".join(parts)


def _table(table: Table, folder: str) -> str:
    return f'<p class="muted">{escape(table.title)}. {_links(table.name, _TYPES, folder)}</p>\n{_scrolled(table)}'


def _folded(table: Table, folder: str) -> str:
    summary = f"<summary>Table: {escape(table.title)}</summary>"
    return f'<details>{summary}<p class="files">{_links(table.name, _TYPES, folder)}</p>{_scrolled(table)}</details>'


def _scrolled(table: Table) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">{table.html()}</div>'


def _figure(drawing: Drawing, svg: str, folder: str) -> str:
    wide = drawing.wide
    box = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(drawing.title)}">{svg}</div>'
        if wide
        else svg
    )
    links = _links(drawing.name, ("svg", "png"), folder)
    return (
        f"<figure{' class=wide' if wide else ''}>\n<h4>{escape(drawing.title)}</h4>\n{box}\n"
        f"<figcaption>{escape(drawing.caption)} {links}</figcaption>\n</figure>"
    )


def _links(name: str, types: Iterable[str], folder: str) -> str:
    return " ".join(f'<a href="{folder}/{quote(name)}.{kind}">{kind.upper()}</a>' for kind in types)
