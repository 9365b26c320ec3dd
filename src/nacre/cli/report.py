"""`nacre report`: one page of runs and grids."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional


def report(runs: Positional[tuple[Path, ...]], /, *, out: Path = Path("report.html")) -> None:
    """Make one page of runs: tables with the paper's numbers beside ours, figures, all of it also as files.

    Args:
        runs: Folders of runs (--out of nacre run) or of grids (of nacre compare).
        out: The page; figures and tables as files lie beside it.
    """
    from nacre.experiments.report import write_report

    print(write_report(runs, out))
