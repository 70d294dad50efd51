"""Links and anchors of the documents have targets, and every command that they show exists as shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from evaluation.pages.markdown import block, whole_text
from evaluation.pages.published_rows import held_sentence
from pipeline.cli import app
from pipeline.commands.comparing_commands import two_points
from pipeline.paths import project_dir
from pipeline.question.question import expand

ROOT = project_dir()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("config/*.md"), *ROOT.glob("docs/**/*.md")])

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMANDS = ("steptime", "snakemake", "make", "python", "python3")
OUTSIDE = {"measure.py", "mlflow.py"}
"""Modules that pages name and that are not part of the project."""

NUMBERS = re.compile(r"(?<=gpu=)[\w-]+(?= )|(?<==)\d+\b")
"""What differs between commands of which one stands for all: a single GPU, and numbers."""

PLACEHOLDER = re.compile(r"=[^=]*\b(MY_\w+|GPU|NAME|\.\.\.)")


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def prose(text: str) -> str:
    return FENCE.sub("", text)


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub gives to headings, and those set by hand."""
    text = prose(page.read_text(encoding="utf-8"))
    found = set(re.findall(r'<a id="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", LINK.sub("", heading).lower()).strip()
        found.add(plain.replace(" ", "-"))
    return found


def commands(text: str) -> Iterator[str]:
    """Command lines of a page: in fences, indented blocks and inline code; comments and prompts taken off."""
    lines = [
        line for _, block in FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()
    ]
    rest = prose(text)
    lines += re.findall(r"^    (\S.*)$", rest, re.MULTILINE)
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", rest)]
    for line in lines:
        for part in line.removeprefix("$ ").split("  #")[0].split(" && "):
            words = part.split()
            if len(words) > 1 and words[0] in COMMANDS and "(" not in words[1]:
                yield part.strip()


def links(page: Path) -> Iterator[str]:
    return (
        link
        for link in LINK.findall(prose(page.read_text(encoding="utf-8")))
        if not link.startswith("http")
    )


@pytest.mark.parametrize("name", names(PAGES))
def test_links_lead_to_files_and_headings(name: str) -> None:
    page = ROOT / name
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{name}: {link}"


@pytest.mark.parametrize("name", names(PAGES))
def test_modules_that_a_page_names_exist(name: str) -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", prose((ROOT / name).read_text(encoding="utf-8"))))
    folders = ("pipeline", "evaluation", "soak", "workflow", "benchmarks", "tests")
    known = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    missing = {each for each in named if not any(path.match(each) for path in known)}
    assert not missing - OUTSIDE, name


def test_every_page_of_the_docs_is_reached_from_their_index() -> None:
    index = ROOT / "docs" / "README.md"
    reached = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert {page for page in PAGES if page.parts[-2] in ("docs", "notes")} - reached == {index}


def test_the_readme_repeats_how_many_published_steps_lie_inside() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    said = held_sentence(block(whole_text(ROOT / "docs" / "accuracy.md"), "published"))
    assert re.search(r"\d+ of \d+ lie inside p10 to p90", said) and said in readme


@pytest.mark.parametrize("name", names(PAGES))
def test_commands_have_the_options_that_are_shown(name: str) -> None:
    shown = {NUMBERS.sub("", each): each for each in commands((ROOT / name).read_text("utf-8"))}
    for command in shown.values():
        words = shlex.split(command)
        check = {"steptime": steptime, "snakemake": snakemake, "make": make}.get(words[0])
        assert check is None or check(words[1:]), f"{name}: {command}"


def steptime(words: list[str]) -> bool:
    """Subcommand, options and overrides."""
    command = typer.main.get_command(app)
    while words and hasattr(command, "commands") and (inner := command.get_command(None, words[0])):
        command, words = inner, words[1:]
    if command.name == "run":  # overrides and targets, then options of Snakemake
        given = words[
            : next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
        ]
        config = [word for word in given if "=" in word]
        return snakemake(["--", *(word for word in given if word not in config)]) and composes(
            config
        )
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    overrides = [word for word in words if re.match(r"\+?[a-z][\w.]*=", word)]
    if command.name == "diff":
        points = (
            expand(overrides) * 2
            if "--trace" in words
            else two_points(overrides)
            if overrides
            else []
        )
        return options(words) <= known and len(points) in (0, 2)
    whole = not hasattr(command, "commands") or (
        words and options(words) == set(words)
    )  # `steptime --version`
    return bool(whole) and options(words) <= known and composes(overrides)


def snakemake(words: list[str]) -> bool:
    """Targets and configuration."""
    at = words.index("--") if "--" in words else len(words)
    rules = set()
    for file in (ROOT / "Snakefile", *ROOT.glob("*/rules/*.smk")):
        rules |= set(re.findall(r"^rule (\w+):", file.read_text(encoding="utf-8"), re.MULTILINE))
    given = " ".join(word.removeprefix("overrides=") for word in words[:at] if "=" in word)
    return set(words[at + 1 :]) <= rules and composes(given.split())


def make(words: list[str]) -> bool:
    """Targets."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return all(
        re.search(rf"^{re.escape(word)}:", text, re.MULTILINE) for word in words if "=" not in word
    )


def options(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}


def composes(overrides: list[str]) -> bool:
    """Whether Hydra knows every name; placeholders, and a user's own files, are left out."""
    few = [each.replace("glob(*)", "glob(V*)") for each in overrides]  # 0.2 s for each GPU
    given = [each for each in few if not PLACEHOLDER.search(each) and "my_module" not in each]
    own = any("my_" in each or "my_module" in each for each in overrides)
    return own or not given or _points(tuple(given)) > 0


@lru_cache
def _points(overrides: tuple[str, ...]) -> int:
    return len(expand(overrides))


def help_pages(command: Any, *path: str) -> Iterator[tuple[str, str]]:
    """The name of each command, and its help page as a pipe gets it, lines joined."""
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from help_pages(command.get_command(None, name), *path, name)
    done = CliRunner().invoke(app, [*path, "--help"])
    assert done.exit_code == 0
    yield " ".join(("steptime", *path)), done.stdout


def test_the_help_of_every_command_ends_with_examples_that_work() -> None:
    pages = dict(help_pages(typer.main.get_command(app)))
    assert {"steptime", "steptime predict", "steptime kernels fit", "steptime run"} <= set(pages)
    for name, page in pages.items():
        shown = [
            line.strip().removeprefix("$ ")
            for line in page.partition("Examples:")[2].splitlines()
            if line.strip()
        ]
        assert shown, name
        for command in shown:
            assert command.startswith(name), (
                f"{command}: does not fit on a line of 80 characters, or is of another command"
            )
            assert steptime(shlex.split(command)[1:]), command


@pytest.mark.parametrize(
    ("command", "check"),
    [
        ("predict gpu=V100 model=dlrm_default model.no_such=1", steptime),
        ("predict --no-such", steptime),
        ("run no_such_target gpu=V100", steptime),
        ("nothing", make),
    ],
)
def test_a_wrong_command_is_noticed(command: str, check) -> None:
    try:
        assert not check(shlex.split(command))
    except Exception as error:
        assert "no_such" in str(error)
