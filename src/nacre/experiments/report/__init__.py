"""The report: run folders in, one page that works offline out, and its figures and tables as files for a paper."""

from collections.abc import Sequence
from pathlib import Path

from nacre.errors import NacreError


def write_report(paths: Sequence[Path], out: Path) -> Path:
    """The report of run folders and grid folders as one HTML page; gives its path.

    Beside it, in a folder named after it, every figure as SVG and PNG, every table as CSV, Markdown and LaTeX.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise NacreError("a report needs matplotlib: pip install 'nacre[bench]'") from error
    from nacre.experiments.report.writing import write

    return write([Path(path) for path in paths], Path(out))


__all__ = ["write_report"]
