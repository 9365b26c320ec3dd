"""Numbers in tables equal an independent computation; every format holds any text."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nacre import SharedSpace
from nacre.experiments.report import details, heat
from nacre.experiments.report.groups import Group, group
from nacre.experiments.report.numbers import Number
from nacre.experiments.report.published import BENCHMARKS
from nacre.experiments.report.results import apart, results, surroundings
from nacre.experiments.report.runs import read_runs
from nacre.experiments.report.scatter import scatter
from nacre.experiments.report.tables import Table

MakeRun = Callable[..., Path]
NASTY = ["a|b", "<b>x</b>", "$x^2$ & 50% {#_~}\\", 'say "q", twice', "two\nlines", "猫", "_under", "-"]


def rows_of(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.csv())))


def group_of(folder: Path) -> Group:
    [found] = group(read_runs([folder])[0])
    return found


def details_of(folder: Path) -> dict[str, Table]:
    """The tables of the one run in a folder, by name."""
    [each] = group_of(folder).runs
    return {table.name: table for table in details.tables(each, "run", each.run.seeds[0].after())}


def test_results_are_means_and_deviations_over_seeds_as_numpy_has_them(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run", seeds=(0, 1, 2))
    table = results(group_of(folder))
    [row] = rows_of(table)
    seeds = [folder / f"seed-{seed}" for seed in (0, 1, 2)]
    accs = [np.mean(json.loads((seed / "accuracy.json").read_text())[-1]) for seed in seeds]
    sizes = [SharedSpace.load(seed / "life.nacre").size().numbers * 4 / 1e6 for seed in seeds]
    assert float(row["ACC (%)"]) == pytest.approx(np.mean(accs), abs=1e-9)
    assert float(row["ACC (%) std"]) == pytest.approx(np.std(accs, ddof=1), abs=1e-9)
    assert float(row["size (MB)"]) == pytest.approx(np.mean(sizes), rel=1e-9)
    assert float(row["size (MB) std"]) == pytest.approx(np.std(sizes, ddof=1), rel=1e-9)
    assert f"| {np.mean(accs):.2f}({np.std(accs, ddof=1):.2f}) |" in table.markdown()


def test_sizes_in_fewer_bits_stand_beside_those_at_4_bytes_a_number(tmp_path: Path, make_run: MakeRun) -> None:
    folders = [make_run(tmp_path / dtype, dtype=dtype) for dtype in ("float32", "int8")]
    [both] = group(read_runs(folders)[0])
    plain, small = rows_of(results(both))
    spaces = [SharedSpace.load(folder / "seed-0" / "life.nacre") for folder in folders]
    assert [row["method"] for row in (plain, small)] == ["CACL 0.1", "CACL 0.1, int8"]
    for row, space in zip((plain, small), spaces, strict=True):
        assert float(row["size (MB)"]) == pytest.approx(space.size().bytes / 1e6, rel=1e-9)
        assert float(row["at 4 bytes a number (MB)"]) == pytest.approx(space.size().numbers * 4 / 1e6, rel=1e-9)
    assert float(small["size (MB)"]) < float(plain["size (MB)"])
    assert "at 4 bytes a number (MB)" not in results(group_of(folders[0])).headings
    drawing, without = scatter(both), scatter(group_of(folders[0]))
    assert drawing is not None
    assert without is not None
    sizes = (float(small["size (MB)"]), float(small["at 4 bytes a number (MB)"]))
    [axes] = drawing.figure.axes
    [dotted] = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert np.asarray(dotted.get_xdata(), dtype=float) == pytest.approx(sizes)
    assert "at 4 bytes a number, as the paper counts" in drawing.caption
    assert "4 bytes" not in without.caption
    memory = rows_of(details_of(folders[1])["run-memory"])
    assert sum(float(row["all (MB)"]) for row in memory) == pytest.approx(spaces[1].size().bytes / 1e6, rel=1e-9)


def test_the_cut_says_the_share_of_energy_that_is_gone(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run")
    before = json.loads((folder / "seed-0" / "spectra.json").read_text())
    space = SharedSpace.load(folder / "seed-0" / "life.nacre")
    rows = rows_of(details_of(folder)["run-spectra"])
    assert len(rows) == 3 * 2
    for row in rows:
        values = np.array(before[row["task"]][row["layer"]])
        kept = space.ranks(row["task"])[row["layer"]]
        assert (int(row["before"]), int(row["kept"])) == (len(values), kept)
        gone = (values[kept:] ** 2).sum() / (values**2).sum()
        assert float(row["energy cut"]) == pytest.approx(gone, rel=1e-6)


def test_ranks_and_memory_of_several_seeds_are_means_by_task(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run", seeds=(0, 1))
    spaces = [SharedSpace.load(folder / f"seed-{seed}" / "life.nacre") for seed in (0, 1)]
    tables = details_of(folder)
    for row in rows_of(tables["run-ranks"]):
        for layer in ("0", "2"):
            ranks = [space.ranks(row["task"])[layer] for space in spaces]
            assert float(row[layer]) == np.mean(ranks)
    for row in rows_of(tables["run-memory"]):
        sizes = [space.size(row["task"]).megabytes for space in spaces]
        assert float(row["all (MB)"]) == pytest.approx(np.mean(sizes), rel=1e-9)


def test_tasks_of_drawn_classes_are_means_by_place(tmp_path: Path, make_run: MakeRun) -> None:
    """Under each seed a name stands for other classes."""
    folder = make_run(tmp_path / "run", seeds=(0, 1), facts={"class_order": "random"})
    spaces = [SharedSpace.load(folder / f"seed-{seed}" / "life.nacre") for seed in (0, 1)]
    assert spaces[0].tasks != spaces[1].tasks
    for place, row in enumerate(rows_of(details_of(folder)["run-ranks"])):
        assert row["task"] == f"task {place + 1}"
        ranks = [space.ranks(space.tasks[place]) for space in spaces]
        assert [float(row[layer]) for layer in ("0", "2")] == [
            np.mean([r[layer] for r in ranks]) for layer in ("0", "2")
        ]
    [each] = group_of(folder).runs
    assert "by place in the order; each seed makes tasks of other classes" in heat.order_note(each)
    drawn = heat.accuracy(each, "run")
    assert drawn is not None
    assert "a seed draws the classes of the tasks" in drawn.caption


def test_an_unfinished_run_has_no_result_of_its_own(tmp_path: Path, make_run: MakeRun) -> None:
    [row] = rows_of(results(group_of(make_run(tmp_path / "run", done={0: 1}))))
    assert (row["ACC (%)"], row["size (MB)"], row["seeds"], row["from"]) == ("", "", "0 of 1", "this run, unfinished")


def test_a_label_says_no_more_than_what_tells_runs_apart(tmp_path: Path, make_run: MakeRun) -> None:
    for name, more in (
        *(("a", {}), ("b", {"protocol": "paper"})),  # another protocol is enough
        *(("c", {"method": "single"}), ("d", {"method": "single"})),  # the same protocol says nothing
        ("e", {"settings": {"sparsity": 0.4}}),
        ("f", {"settings": {"sparsity": 0.0, "share": 0.125}}),
        ("g", {"settings": {"sparsity": 0.0, "share": 0.3}}),
    ):
        make_run(tmp_path / name, ["only"], epochs=1, **more)
    [found] = group(read_runs(sorted(tmp_path.iterdir()))[0])
    assert [each.label for each in found.runs] == [
        "CACL 0.1, quick",
        "CACL 0.1, paper",
        "single, c",
        "single, d",
        "CACL 0.4",
        "CACL 1/8",
        "CACL 3/10",
    ]


def test_versions_are_told_by_folders_which_no_two_runs_share(tmp_path: Path, make_run: MakeRun) -> None:
    for name, scenario, version in (("a", "digits", "1"), ("b", "digits", "2"), ("c", "mine", "2")):
        environment = {"versions": {"torch": version}}
        make_run(tmp_path / name, ["only"], epochs=1, scenario=scenario, environment=environment)
    table = surroundings(group(read_runs(sorted(tmp_path.iterdir()))[0]))
    assert table is not None
    assert table.headings == ("", str(tmp_path / "a"), f"{tmp_path / 'b'}, {tmp_path / 'c'}")
    assert table.rows == (("versions", "torch 1", "torch 2"),)


# the paper's numbers


def paper_rows(folder: Path) -> list[dict[str, str]]:
    return [row for row in rows_of(results(group_of(folder))) if row["whose"] != "ours"]


def test_the_papers_numbers_stand_beside_twenty_tasks(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run", [str(at) for at in range(20)], scenario="cifar100")
    rows = paper_rows(folder)
    found = {row["method"]: (row["ACC (%)"], row["size (MB)"], row["whose"]) for row in rows}
    assert found["CACL 0.1"] == ("86.19", "8.68", "paper")
    assert found["Baseline_UB"] == ("89.2", "31.67", "paper")
    assert found["HAT"] == ("76.96", "27.2", "paper, copied")
    assert "85 % of the training images" in next(row["protocol"] for row in rows if row["method"] == "ACL")


@pytest.mark.parametrize(
    ("tasks", "more", "reason"),
    [
        (5, {}, "the paper learns 20 tasks, these runs 5"),
        (20, {"images": 250}, "250 images a task, the whole set has 2,500"),
        (20, {"facts": {"class_order": "superclass"}}, "has the classes of one superclass"),
    ],
)
def test_what_is_not_comparable_stands_apart_and_says_why(
    tmp_path: Path, make_run: MakeRun, tasks: int, more: dict[str, Any], reason: str
) -> None:
    folder = make_run(tmp_path / "run", [str(at) for at in range(tasks)], scenario="cifar100", **more)
    assert not paper_rows(folder)
    found = group_of(folder)
    alone = apart(found)
    assert alone is not None
    assert len(rows_of(alone)) == 10
    assert [reason in difference for difference in found.differences()] == [True]
    drawing = scatter(found)
    assert drawing is not None
    assert "points are left out" in drawing.caption
    assert reason in drawing.caption


def test_reduced_sets_among_the_five_are_not_comparable(tmp_path: Path, make_run: MakeRun) -> None:
    """Tasks of as many images as theirs; how many notMNIST has, everybody decides alone."""
    sets = ["svhn", "cifar10", "notmnist", "fashion-mnist", "mnist"]
    given: dict[str, Any] = {"scenario": "five-datasets", "epochs": 1}
    reduced = make_run(tmp_path / "reduced", sets, images=10_000, **given)
    assert [row["whose"] for row in rows_of(results(group_of(reduced)))] == ["ours"]
    [difference] = group_of(reduced).differences()
    assert "10,000 images a task, the whole set has 60,814" in difference  # the mean of 73,257, 50,000 and two 60,000
    assert len(paper_rows(make_run(tmp_path / "whole", sets, images=60_000, **given))) == 4
    seed = next(seed for seed in range(100) if np.random.default_rng(seed).permutation(5)[0] == 2)  # notMNIST first
    begun = make_run(tmp_path / "begun", sets, images=15_000, seeds=(seed,), done={seed: 1}, **given)
    assert len(paper_rows(begun)) == 4


def test_another_network_than_the_papers_has_no_numbers_of_the_papers(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(tmp_path / "run", scenario="cifar100", facts={"network": "resnet"})
    plan = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**plan, "network": "resnet"}))
    assert not paper_rows(folder)
    assert apart(group_of(folder)) is None


def test_a_number_is_printed_as_it_was_read() -> None:
    for row in (row for benchmark in BENCHMARKS for row in benchmark.rows):
        for number in (row.acc, row.megabytes, row.bwt):
            assert number is None or Number.printed(str(number)) == number


# any text


def nasty_table() -> Table:
    rows = tuple((name, Number(1.5, 0.25), None) for name in NASTY)
    return Table("nasty", "a title & more", ("name|x", "value (%)", "nothing"), rows)


def test_csv_gives_back_what_was_put_in() -> None:
    read = list(csv.reader(nasty_table().csv().splitlines(keepends=True)))
    assert read[0] == ["name|x", "value (%)", "value (%) std", "nothing"]
    assert [row[0] for row in read[1:]] == NASTY
    assert all(row[1:] == ["1.5", "0.25", ""] for row in read[1:])


def test_every_row_of_markdown_has_as_many_cells() -> None:
    lines = nasty_table().markdown().splitlines()
    assert len(lines) == 2 + len(NASTY)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}


def test_latex_leaves_no_sign_that_would_be_a_command() -> None:
    lines = nasty_table().latex().splitlines()
    assert lines[1] == r"\begin{tabular}{lrr}"
    for line in lines[3:4] + lines[5 : 5 + len(NASTY)]:
        plain = re.sub(r"\\(text[a-z]+\{\}|ldots\{\}|[&%$#_{}])", "", line.removesuffix(r" \\"))
        assert plain.count("&") == 2
        assert not set(plain) & set('\\%$#_{}~^<>|"')


def test_html_holds_names_as_text() -> None:
    written = nasty_table().html()
    assert "<b>" not in written
    assert "&lt;b&gt;x&lt;/b&gt;" in written
