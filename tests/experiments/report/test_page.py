"""The page in a real browser, and as a file: whole, offline, the same bytes again."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.transforms import Bbox
from torch import nn

from nacre import NacreError
from nacre.experiments.report import write_report
from nacre.experiments.report.curves import spectra, training
from nacre.experiments.report.groups import group
from nacre.experiments.report.published import BENCHMARKS, Benchmark
from nacre.experiments.report.runs import read_runs
from nacre.experiments.report.scatter import scatter

MakeRun = Callable[..., Path]
ODD = ["a_b$x$ & <i>|%", "猫と犬", '"q"\\ ${', "</svg><script>alert(1)</script>"]
ENVIRONMENT = {
    "begun": "2026-11-19T06:00:00+00:00",
    "versions": {"nacre": "0.1.0"},
    "machine": {"cores": 2},
    "git": None,
}


@pytest.fixture(name="page", scope="module")
def _page(tmp_path_factory: pytest.TempPathFactory, make_run: MakeRun) -> Path:
    """A report of what is hard to show: names of any text, several seeds, an unfinished run, one without files."""
    folder = tmp_path_factory.mktemp("report")
    make_run(folder / "several", seeds=(0, 1, 2), done={2: 1}, environment=ENVIRONMENT)
    make_run(folder / "dense", method="single", environment=ENVIRONMENT)
    make_run(folder / "odd", ODD, scenario="mine <b>", spectra=False)
    make_run(folder / "nothing", done={0: -1}, scenario="cifar100")
    runs = [folder / name for name in ("several", "dense", "odd", "nothing")]
    return write_report(runs, folder / "out" / "my report.html")


@pytest.fixture(name="browser", scope="module")
def _browser() -> Iterator[Any]:
    chromium = next(filter(None, map(shutil.which, ("/usr/bin/chromium", "chromium"))), None)
    if chromium is None:
        pytest.skip("no chromium is installed, so the page cannot be opened: apt-get install chromium")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_a_browser_shows_every_figure_and_asks_for_nothing(page: Path, browser: Any, width: int, scheme: str) -> None:
    said: list[str] = []
    asked: list[str] = []
    shown = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(page.as_uri())
    boxes = shown.eval_on_selector_all("svg", "found => found.map(f => [f.clientWidth, f.clientHeight])")
    marks = shown.eval_on_selector_all("svg", "found => found.map(f => f.querySelectorAll('path, use, text').length)")
    assert len(boxes) == len(re.findall("<figure", page.read_text(encoding="utf-8"))) >= 14
    assert all(wide > 200 and high > 80 for wide, high in boxes)
    assert all(count > 10 for count in marks)
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
    ink = shown.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
    assert ink == ("rgb(27, 27, 31)" if scheme == "light" else "rgb(233, 234, 236)")
    shown.close()


def test_on_paper_every_table_is_as_wide_as_the_page_at_most(page: Path, browser: Any) -> None:
    """A sheet of A4 is as narrow as what a phone's rules are for: 182 mm between its margins are 688 pixels."""
    shown = browser.new_page(viewport={"width": 688, "height": 1000})
    shown.emulate_media(media="print")
    shown.goto(page.as_uri())
    assert shown.evaluate("document.documentElement.scrollWidth") <= 688
    shown.close()


def test_where_there_is_no_browser_the_end_of_the_tests_says_why_one_was_skipped(pytestconfig: pytest.Config) -> None:
    assert {"f", "E", "s"} <= set(pytestconfig.getoption("reportchars"))


def test_the_page_needs_no_other_file(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert not re.search(r"url\((?!#)|@import|src=|http-equiv", text)
    assert set(re.findall(r'https?://[^\s"<]+', text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_ids_are_unique_and_what_refers_to_them_finds_them(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) > 100
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)


def test_every_link_leads_to_a_file_and_every_file_is_linked(page: Path) -> None:
    from urllib.parse import unquote

    links = {unquote(link) for link in re.findall(r'<a href="([^"]+)"', page.read_text(encoding="utf-8"))}
    files = {f"{page.stem}-files/{path.name}" for path in (page.parent / f"{page.stem}-files").iterdir()}
    assert links == files
    assert {Path(link).suffix for link in links} == {".svg", ".png", ".csv", ".md", ".tex"}
    for path in (page.parent / f"{page.stem}-files").glob("*.svg"):
        ElementTree.parse(path)
    for path in (page.parent / f"{page.stem}-files").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_what_is_unfinished_and_what_is_known_is_said(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "CACL 0.1 is unfinished: seed 2 has 1 of 3 tasks" in text
    assert "seed 0 has not begun" in text
    assert "Only what the cut has left" in text  # the odd run kept no spectra
    assert "nacre 0.1.0" in text
    assert "Nothing has been learnt yet." in text


def test_the_same_runs_give_the_same_bytes(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run", seeds=(0, 1))
    for name in ("one", "two"):
        write_report([folder], tmp_path / name / "report.html")
    for path in (path for path in (tmp_path / "one").rglob("*") if path.is_file()):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes(), path


def test_another_report_in_its_place_takes_away_the_files_of_the_one_before(tmp_path: Path, make_run: MakeRun) -> None:
    first, second = make_run(tmp_path / "a", ["only"]), make_run(tmp_path / "b", ["one", "two"], method="single")
    files = tmp_path / "my report-files"
    write_report([first], tmp_path / "my report.html")
    of_the_first = set(files.iterdir())
    (files / "notes.txt").write_text("mine")
    write_report([second], tmp_path / "my report.html")
    write_report([second], tmp_path / "fresh.html")
    left = {path.name for path in files.iterdir()}
    assert left == {path.name for path in (tmp_path / "fresh-files").iterdir()} | {"notes.txt"}
    assert of_the_first - set(files.iterdir())


def test_the_callers_matplotlib_is_left_alone(tmp_path: Path, make_run: MakeRun) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 31.0}):
        before = dict(mpl.rcParams)
        write_report([make_run(tmp_path / "run", ["only"], epochs=1)], tmp_path / "report.html")
        assert dict(mpl.rcParams) == before


def test_many_tasks_and_one(tmp_path: Path, make_run: MakeRun) -> None:
    many = make_run(tmp_path / "many", [f"t{at}" for at in range(26)], epochs=1, method="cacl-st")
    write_report([many, make_run(tmp_path / "one", ["only"])], tmp_path / "report.html")
    assert (
        "share of the layer" in (tmp_path / "report-files" / "digits-26-tasks-conv5-cacl-st-0.1-ranks.svg").read_text()
    )


def test_an_axis_of_epochs_has_whole_numbers(tmp_path: Path, make_run: MakeRun) -> None:
    for epochs, ticks in ((1, [1]), (3, [1, 2, 3])):
        [found] = group(read_runs([make_run(tmp_path / f"{epochs}", ["only"], epochs=epochs)])[0])
        drawing = training(found.runs[0], "run")
        assert drawing is not None
        *panels, _ = drawing.figure.axes
        for panel in panels:
            low, high = panel.get_xlim()
            assert [tick for tick in panel.get_xticks() if low <= tick <= high] == ticks
        assert all(tick == round(tick) for tick in panels[1].get_yticks())  # the rank


def test_the_lowest_panel_of_every_column_says_what_its_axis_is(tmp_path: Path, make_run: MakeRun) -> None:
    def three() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 10))

    [found] = group(read_runs([make_run(tmp_path / "run", network=three)])[0])
    [each] = found.runs
    drawing = spectra(each, "run", each.run.seeds[0].after())
    assert drawing is not None
    first, second, third, _ = drawing.figure.axes
    named = [panel.get_xlabel() for panel in (first, second, third)]
    assert named == ["", "number, from the largest", "number, from the largest"]


@pytest.mark.parametrize("paper", BENCHMARKS, ids=lambda paper: f"{paper.scenario}-{paper.network}")
def test_no_name_in_the_scatter_lies_on_a_point_an_error_bar_or_another_name(
    paper: Benchmark, tmp_path: Path, make_run: MakeRun
) -> None:
    tasks = [str(at) for at in range(paper.tasks)]
    run = make_run(tmp_path / "run", tasks, epochs=1, seeds=(0, 1), scenario=paper.scenario)
    plan = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**plan, "network": paper.network}))
    [found] = group(read_runs([run])[0])
    drawing = scatter(found)
    assert drawing is not None
    [axes] = drawing.figure.axes
    rows = [row for row in paper.rows if not row.repeated]
    names = [text.get_window_extent() for text in axes.texts]
    assert len(names) == len(rows)
    assert not any(one.overlaps(other) for one, other in combinations(names, 2))
    for row in rows:
        spread = row.acc.std or 0.0
        ends = [(row.megabytes.mean, row.acc.mean + sign * spread) for sign in (-1, 1)]
        (x, low), (_, high) = axes.transData.transform(ends)
        assert not any(name.overlaps(Bbox.from_extents(x - 3, low - 3, x + 3, high + 3)) for name in names), row.label


def test_a_damaged_task_of_the_store_is_told_on_the_page(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run")
    task = next((folder / "seed-0" / "life.nacre" / "tasks").iterdir())
    task.write_bytes(task.read_bytes()[:-1] + b"x")
    write_report([folder], tmp_path / "report.html")
    assert f"{task.name} is damaged" in (tmp_path / "report.html").read_text()


def test_a_folder_in_place_of_the_page_is_refused(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run")
    with pytest.raises(NacreError, match="give the name of a file"):
        write_report([folder], tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NacreError, match="could not be written"):
        write_report([folder], tmp_path / "file" / "report.html")
