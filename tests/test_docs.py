"""The pages of the documentation: their Python runs, their commands are commands."""

from __future__ import annotations

import html
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nacre import cli
from nacre.experiments.run import Plan
from nacre.methods import METHODS, Finetune
from nacre.space import Weights
from tests.methods.problems import learner_of, points, short

PROJECT = Path(__file__).parent.parent
README, TUTORIAL, FIELD = "README.md", "docs/tutorial.md", "docs/in-the-field.md"
ADDING = "docs/adding-a-method.md"
PAGES = (
    README,
    TUTORIAL,
    ADDING,
    *(f"docs/{page}.md" for page in ("methods", "export", "file-format", "how-it-works", "paper-against-code")),
)
READS = ("inspect", "verify")  # commands that run for real, on the stores that a page has saved


def blocks(page: str, *languages: str) -> Iterator[tuple[int, str]]:
    """The fenced blocks of a page in some languages, each with the number of lines above it."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    for fence in re.finditer(r"^```([a-z]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if fence[1] in languages:
            yield text.count("\n", 0, fence.start(2)), fence[2]


def run_python(page: str) -> None:
    """Runs a page's Python in the current folder, all of it in one namespace."""
    namespace: dict[str, Any] = {"__name__": "documentation"}
    for above, block in blocks(page, "python"):
        lines = "\n" * above + block  # so that a traceback names the page's own
        exec(compile(lines, page, "exec", dont_inherit=True), namespace)


def commands(page: str) -> list[tuple[list[str], str]]:
    """The nacre commands of a page, each with what the page says they print."""
    found: list[tuple[list[str], list[str]]] = []
    for _, block in blocks(page, "console", "sh"):
        output: list[str] | None = None
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if line.startswith(("$ ", "nacre ")):
                output = []
                if words[:1] == ["nacre"]:
                    found.append((words[1:], output))
            elif output is not None:
                output.append(line)
    return [(words, "\n".join(lines)) for words, lines in found]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fresh folder; the pages seed torch, so its generator is put back."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_as_the_code_is(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_python(page)
    printed = capsys.readouterr().out
    for _, block in blocks(page, "python"):
        assert all(message in printed for message in re.findall(r"print\(error\) +# (.+)", block))
    for words, output in commands(page):
        printed = check_command(words, monkeypatch, capsys)
        assert not output or printed.strip() == output.strip(), words


def test_in_the_field_goes_its_whole_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block in its place: Python runs, commands run for real and print lines that begin as the page says."""
    monkeypatch.setenv("NACRE_CACHE", str(tmp_path / "cache"))
    namespace: dict[str, Any] = {"__name__": "documentation"}
    shown = set()
    for above, block in sorted([*blocks(FIELD, "python", "console")]):
        if not block.startswith("$ "):
            exec(compile("\n" * above + block, FIELD, "exec"), namespace)
            continue
        command, *output = block.splitlines()
        words = shlex.split(command.removeprefix("$ nacre "))
        capsys.readouterr()
        assert status(words, monkeypatch) == 0, words
        assert first_words(capsys.readouterr().out.splitlines()) == first_words(output), words
        shown.add(words[0])
    assert shown == {"learn", "predict", "inspect", "export", "verify", "drop"}


def first_words(lines: list[str]) -> list[str]:
    """How each line begins; numbers and rulers, which another machine may print otherwise, as a sign."""
    return [re.sub(r"[\d.,]+|─+", "#", (line.split() or [""])[0]) for line in lines]


def test_the_terminal_in_the_readme_shows_commands_that_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = (PROJECT / "docs/terminal.svg").read_text(encoding="utf-8")
    assert "docs/terminal.svg" in (PROJECT / README).read_text(encoding="utf-8")
    assert "@font-face" not in drawn  # a page that is read fetches nothing
    texts = [html.unescape(text).replace("\xa0", " ") for text in re.findall(r"<text [^>]*>([^<]*)</text>", drawn)]
    typed = [text.split()[1:] for text in texts if text.startswith("nacre ")]
    assert {words[0] for words in typed} == {"learn", "predict", "inspect", "export", "drop"}
    for command, *words in typed:
        assert status([command, "--help"], monkeypatch) == 0
        known = capsys.readouterr().out
        assert all(word in known for word in words if word.startswith("--")), (command, words)


def test_the_tutorial_shows_the_commands() -> None:
    assert len(list(blocks(TUTORIAL, "python"))) > 10
    shown = [words for words, _ in commands(TUTORIAL)]
    assert {words[0] for words in shown} >= {"run", *READS}


def test_a_method_is_added_in_less_than_sixty_lines() -> None:
    lines = [line for _, block in blocks(ADDING, "python") for line in block.splitlines() if line.strip()]
    assert 30 < len(lines) < 60


def test_the_method_that_is_added_holds_on_to_what_mattered() -> None:
    """More so the stronger it is; without strength it is finetuning."""
    namespace: dict[str, Any] = {"__name__": "documentation"}
    above, block = next(blocks(ADDING, "python"))
    exec(compile("\n" * above + block, ADDING, "exec", dont_inherit=True), namespace)
    moved = []
    for method in (Finetune(), *(namespace["SI"](strength) for strength in (0.0, 1.0, 100.0))):
        learner = learner_of(method)
        learner.learn("a", points(0, 100), recipe=short(8))
        assert isinstance(learner.knowledge, Weights)
        before = learner.knowledge.shared["0.weight"]
        learner.learn("b", points(1, 100), recipe=short(8))
        moved.append(float((learner.knowledge.shared["0.weight"] - before).square().sum()))
    assert moved[0] == moved[1] > moved[2] > moved[3]


def test_every_method_has_a_section_on_the_page_of_methods() -> None:
    sections = re.findall(r"^### `([a-z-]+)`", (PROJECT / "docs/methods.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == list(METHODS)


def test_an_option_that_does_not_exist_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError):
        check_command(["run", "--tusks", "2"], monkeypatch, capsys)


class Understood(Exception):
    """The command line of `nacre run` has become a plan."""


def check_command(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that only reads, and gives what it prints; of `run` all but the training; of any other looks
    whether its help knows the options."""
    if words[0] in READS:
        assert status(words, monkeypatch) == 0, words
    elif words[0] == "run":

        def stop(plan: Plan, out: Path, *, resume: bool = False, track: str | None = None) -> None:
            raise Understood

        with monkeypatch.context() as patched:
            patched.setattr("nacre.experiments.run.run", stop)
            with pytest.raises(Understood):
                assert status(words, patched) == 0, words
    else:
        assert status([words[0], "--help"], monkeypatch) == 0, words
        known = capsys.readouterr().out
        assert all(word.split("=")[0] in known for word in words if word.startswith("--")), words
    return capsys.readouterr().out


def status(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit status of the nacre command."""
    monkeypatch.setattr(sys, "argv", ["nacre", *words])
    try:
        cli.main()
    except SystemExit as exit:
        return exit.code
    return 0


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (PROJECT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    path = PROJECT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        found = path.parent / file if file else path
        assert found.exists(), f"{page} links to {target}"
        if heading:
            assert heading in headings(found), f"{page} links to {target}"


def headings(path: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
