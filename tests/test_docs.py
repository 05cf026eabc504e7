"""The documentation names what exists and all that exists, its links lead somewhere, and its site needs no network."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

import headway
from docs.reference import pages as reference
from headway.data_contracts.store.errors import HeadwayError
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.flows.cli.command_line import app
from headway.flows.config.pipeline_spec import PipelineSpec
from tests.pages import HOME, PAGES, blocks

README_BYTES = 10_000
MAX_WORDS = 25
PREFECT_STATES = ("Cancelled", "Completed", "Crashed", "Failed", "Paused", "Scheduled")
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
PROSE = [page for page in PAGES if page.parent.name not in ("reference", "architecture") and page.name != "faults.md"]
"""Pages that are written, not made by a script."""


def name_of(page: Path) -> str:
    return str(page.relative_to(HOME))


@cache
def text_of(page: Path) -> str:
    """Without its blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", reference.pages())
def test_a_reference_page_is_that_of_the_code(name: str) -> None:
    """With it every command, option, key, error class and document is on a page, and none is that does not exist."""
    assert (reference.FOLDER / name).read_text() == reference.pages()[name], "`python -m docs.reference` writes it anew"


def test_every_reference_page_is_made_of_the_code() -> None:
    assert {path.name for path in reference.FOLDER.glob("*.md")} == set(reference.pages())


def test_every_field_of_a_document_has_a_meaning() -> None:
    empty = re.findall(r"^\| `.*\|  \|$", reference.documents_page(), re.MULTILINE)
    assert empty == [], "a string below the field says what it means"


def test_every_public_field_and_method_has_a_meaning_and_every_returned_class_a_section() -> None:
    page, empty = reference.python_page(), []
    for name, made in reference.python_classes():
        empty += [f"{name}.{field}" for field in reference.fields_without_meaning(made)]
        assert re.search(rf"^class {name}\b", page, re.MULTILINE)
    assert empty == []
    assert {"RetrainSummary", "TableModel", "TextModel"} <= {name for name, _ in reference.python_classes()}


def test_every_error_class_is_on_the_page_of_exit_codes() -> None:
    """The page finds them in the source; here by what they are at run time, in all modules that are loaded."""
    below, named = [HeadwayError], set(re.findall(r"^\| \d+ \| `(\w+)`", reference.exit_codes_page(), re.MULTILINE))
    for each in below:
        below += each.__subclasses__()
    ours = {each.__name__ for each in below[1:] if each.__module__.startswith("headway.")}
    # One that is private stays in its file, and is caught there or passes for what it is a kind of.
    assert {name for name in ours if not name.startswith("_")} <= named
    assert {"BlockMissing", "SmallerMicroBatch", "UnparsableRow"} <= named


def test_every_state_of_ours_has_a_meaning_and_no_other() -> None:
    assert set(reference.STATES) == reference.state_names()


def test_no_state_is_named_in_the_code_that_is_on_no_page() -> None:
    """Names that are written where the state is made; those that come in a variable are in the lists of the page."""
    named = set()
    for path in (path for package in ("flows", "tasks") for path in (HOME / package).rglob("*.py")):
        calls = (node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call))
        makers = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id in PREFECT_STATES)
        values = (keyword.value for call in makers for keyword in call.keywords if keyword.arg == "name")
        named |= {value.value for value in values if isinstance(value, ast.Constant)}
    assert named <= reference.state_names()


def test_every_environment_variable_has_a_meaning_and_no_other() -> None:
    assert {**reference.SET_BY_PEOPLE, **reference.SET_BY_HEADWAY}.keys() == reference.variables_in_code()


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert (HOME / "README.md").stat().st_size <= README_BYTES


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    wrong = []
    for link in LINK.findall(text_of(page)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_sentences_are_short(page: Path) -> None:
    long = [sentence for sentence in sentences(page) if len(sentence.split()) > MAX_WORDS]
    assert long == []


def sentences(page: Path) -> list[str]:
    """Of paragraphs and lists; tables, headings and comments are none."""
    lines = [line for line in text_of(page).splitlines() if not line.lstrip().startswith(("|", "#", "<", "!["))]
    # A piece of code, or a link, is one word.
    plain = re.sub(r"`[^`]*`", "code", re.sub(LINK, "link", "\n".join(lines)))
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", plain)
    parts = (re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph.split())) for paragraph in paragraphs)
    return [sentence for part in parts for sentence in part]


def code_blocks(language: str) -> list[Any]:
    return [
        pytest.param(text, id=f"{name_of(page)}-{number}")
        for page in PAGES
        for number, (name, text) in enumerate(blocks(page))
        if name == language
    ]


@pytest.mark.parametrize("text", code_blocks("yaml"))
def test_yaml_is_yaml_and_a_pipeline_file_is_one(text: str) -> None:
    value = yaml.safe_load(text)
    if isinstance(value, dict) and "pipeline" in value:
        parse_yaml_model(PipelineSpec, text, where="the page")
    elif isinstance(value, dict):
        known = set(PipelineSpec.model_fields) | {"project", "profiles"}
        assert set(value) <= known, "a part of a pipeline file, or of profiles"


@pytest.mark.parametrize("text", [each for each in code_blocks("python") if "reference" not in str(each.id)])
def test_python_compiles_and_what_it_imports_of_headway_is_there(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "headway":
            assert {each.name for each in node.names} <= set(headway.__all__)


@pytest.mark.parametrize("text", code_blocks("console"))
def test_every_command_and_option_in_a_console_exists(text: str) -> None:
    root: Any = typer.main.get_command(app)
    for line in re.findall(r"^\$ (?:\S*/)?headway (.+)$", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        command = root
        while words and (below := getattr(command, "commands", {}).get(words[0])) is not None:
            command, words = below, words[1:]
        assert command is not root or words[0].startswith("--"), line
        options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        given = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert given <= options, line


OF_OTHERS = re.compile(r"(?:prefect|pip|mlflow|docker|kubectl|git|s?batch|python|gh|srun|salloc)\b")
NOT_OURS = frozenset({"--app-name", "--array", "--exclude", "--gpus-per-node", "--peers", "--stop-"})
"""Options of MLflow's server, of Slurm and of `benchmarks/`; and a word for all that begin so."""


def test_no_variable_command_or_option_is_named_in_a_sentence_that_does_not_exist() -> None:
    root: Any = typer.main.get_command(app)
    options, variables = {"--help", *options_of(root)}, {**reference.SET_BY_PEOPLE, **reference.SET_BY_HEADWAY}
    wrong = []
    for page in PAGES:
        for code in re.findall(r"`([^`\n]+)`", text_of(page)):
            named = re.findall(r"\bHEADWAY_[A-Z_]+", code)
            wrong += [(page.name, each) for each in named if each not in variables]
            command = re.match(r"headway ([a-z][a-z-]*)", code)
            if command is not None and command[1] not in root.commands:
                wrong.append((page.name, code))
            given = () if OF_OTHERS.match(code) else re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)
            wrong += [(page.name, each) for each in given if each not in options | NOT_OURS]
    assert wrong == []


def options_of(command: Any) -> Iterator[str]:
    """Of a command and of all below it."""
    yield from (option for each in command.params for option in (*each.opts, *each.secondary_opts))
    for below in getattr(command, "commands", {}).values():
        yield from options_of(below)


@pytest.mark.process
def test_the_site_builds_strictly_and_no_page_of_it_loads_anything_from_elsewhere(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site"))
    # A proxy that is not there: what asks the network fails.
    away = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=HOME, env={**os.environ, **away}, check=True)
    made = list((tmp_path / "site").rglob("*.html"))
    assert len(made) > 40
    loads = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"(?:https?:)?//|<link[^>]*\shref=\"(?:https?:)?//")
    assert [path.name for path in made if loads.search(path.read_text())] == []
    styles = (path.read_text() for path in (tmp_path / "site").rglob("*.css"))
    assert not any(re.search(r"url\(['\"]?(?:https?:)?//", style) for style in styles)
    assert list((tmp_path / "site").rglob("*.py")) == []
