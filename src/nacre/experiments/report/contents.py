"""What stands on the page, from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nacre.errors import NacreError
from nacre.experiments.report import curves, details, heat, memory, results, scatter
from nacre.experiments.report.groups import Group, Labelled
from nacre.experiments.report.kept import kept
from nacre.experiments.report.page import Block
from nacre.experiments.report.stored import Spectra
from nacre.experiments.report.tables import Table
from nacre.experiments.report.text import slug, unique

READING = (
    "ACC is the mean test accuracy over all tasks after the last one; BWT how much the accuracy on earlier tasks "
    "changed since each was learnt (below 0: forgotten); MB are 1e6 bytes, 4 a number but where a method's name says "
    "int8 or bfloat16. Several seeds: mean(standard deviation). The number after a method is the weight of its "
    "sparsity penalty; a fraction is what a task may take of a dense network; single is one dense network a task, the "
    "paper's Baseline_UB."
)
COPIED = (
    "Of the numbers that the paper prints, HAT, PNN, A-GEM, ER-RES and ACL are copied from ACL's paper, where "
    "training had no augmentation, 85 % of the images and tasks of classes drawn at random: another protocol than "
    "the paper's own."
)


def blocks(groups: Sequence[Group], notes: Sequence[str]) -> list[Block]:
    """The header, then every group with its runs."""
    members = [(group, each) for group in groups for each in group.runs]
    stems = unique([slug(f"{group.title} {each.label}") for group, each in members])
    named = dict(zip([id(each) for _, each in members], stems, strict=True))
    found = [_header(groups, notes)]
    for group in groups:
        found.append(_group(group))
        found += [_run(each, named[id(each)]) for each in group.runs]
    return found


def _header(groups: Sequence[Group], notes: Sequence[str]) -> Block:
    warnings = list(notes)
    for group in groups:
        where = f"{group.title}, " if len(groups) > 1 else ""
        warnings += [f"{where}{warning}" for each in group.runs for warning in _warnings(each)]
    surroundings = results.surroundings(groups)
    shown = (results.overview(groups), *([surroundings] if surroundings else []))
    text = READING if surroundings else f"{READING} The runs recorded neither versions nor machine."
    return Block("nacre: report of runs", 1, text, tuple(warnings), shown)


def _warnings(each: Labelled) -> Iterator[str]:
    run = each.run
    if missing := run.unfinished():
        whose = "the finished seeds" if run.finished else "the seed that has come furthest"
        numbers = "Numbers and figures" if run.finished else "There is no result yet; figures"
        yield f"{each.label} is unfinished: {'; '.join(missing)}. {numbers} are of {whose}."
    yield from (f"{each.label}: {problem}" for problem in run.problems)
    yield from (f"{each.label}, seed {seed.seed}: {problem}" for seed in run.seeds for problem in seed.problems)


def _group(group: Group) -> Block:
    differences, apart, facts = group.differences(), results.apart(group), results.facts(group)
    warnings = [f"Not comparable with the paper's numbers: {difference}." for difference in differences]
    warnings += _duplicates(group)
    paper = group.benchmark
    text = "" if paper else "The paper prints no numbers for this scenario and network."
    if paper and any(row.source == "ACL's paper" for row in paper.rows):
        text = COPIED
    drawings = [drawing for drawing in (scatter.scatter(group), memory.growth(group)) if drawing]
    beside = kept(group)
    tables = (results.results(group), *([beside] if beside else []), *([apart] if apart else []))
    return Block(group.title, 2, text, tuple(warnings), tables, tuple(drawings), (facts,) if facts else ())


def _duplicates(group: Group) -> list[str]:
    """What the records say of test images that are training images too."""
    found: dict[str, int] = {}
    for each in group.runs:
        data = each.run.facts.get("data")
        for name, known in data.items() if isinstance(data, dict) else ():
            count = known.get("duplicates") if isinstance(known, dict) else None
            found |= {name: count} if isinstance(count, int) and count else {}
    return [f"{name}: {count} test images are training images too, pixel for pixel." for name, count in found.items()]


def _run(each: Labelled, stem: str) -> Block:
    after: Spectra = {}
    warnings = []
    try:
        after = each.run.shown[0].after() if each.run.shown else {}
    except NacreError as error:
        warnings.append(str(error))
    drawings = (
        heat.accuracy(each, stem),
        memory.by_task(each, stem),
        heat.ranks(each, stem),
        curves.training(each, stem),
        curves.spectra(each, stem, after),
    )
    tables: Iterator[Table] = details.tables(each, stem, after)
    text = "" if each.run.seeds else "Nothing has been learnt yet."
    return Block(each.label, 3, text, tuple(warnings), drawings=tuple(d for d in drawings if d), folded=tuple(tables))
