"""The documentation names what exists and all that exists, its links lead somewhere, and its site needs no network."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main
import yaml

import headway
from docs import front_page
from docs.reference import pages as reference
from headway.data_contracts.store import errors
from headway.data_contracts.store.errors import ConfigError, HeadwayError
from headway.data_contracts.types.strict_yaml import parse_yaml_model
from headway.flows.accounts import goodput
from headway.flows.act.editor_schemas import FileKind, schema_of
from headway.flows.act.explain import explain
from headway.flows.cli.command_line import EXIT_CODES, app
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.deploy import automations
from headway.flows.monitoring.alerts import ALERTS
from headway.training.observe.events import EVENTS
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
        source = path.read_text()
        if not any(f"{state}(" in source for state in PREFECT_STATES):
            continue  # most files; to parse is what takes time
        calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
        makers = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id in PREFECT_STATES)
        values = (keyword.value for call in makers for keyword in call.keywords if keyword.arg == "name")
        named |= {value.value for value in values if isinstance(value, ast.Constant)}
    assert named <= reference.state_names()


def test_every_automation_of_a_deployment_has_a_line_of_what_to_do_and_no_other() -> None:
    calls = (node for node in ast.walk(ast.parse(inspect.getsource(automations))) if isinstance(node, ast.Call))
    made = [call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "_automation"]
    names = [ast.literal_eval(name) for name in made]
    page = (HOME / "docs/operations/on-call.md").read_text()
    _, table = page.split("| automation | what it means |")
    rows = re.findall(r"^\| ([^|]+) \|((?: [^|]+ \|){4})$", table.partition("\n\n")[0], re.MULTILINE)
    assert sorted(name for name, _ in rows if name != "---") == sorted(names)
    assert len(names) == 8


def test_every_exit_code_of_an_error_says_what_to_do_first() -> None:
    told = {int(code) for codes, _ in reference.FIRST_STEPS for code in codes.split(", ")}
    codes = {each.exit_code for each in reference.error_classes()}
    assert codes <= told
    assert codes <= {int(code) for code in re.findall(r"(?:^|[:·]) ?(\d+) ", EXIT_CODES, re.MULTILINE)}, "in the help"
    tree = set(re.findall(r"[├└]── (\w+) +(\d+) ", errors.__doc__ or ""))
    # Few are of another module, and stand in the reference alone.
    own = [
        each for each in reference.error_classes() if each.__module__ == errors.__name__ and each is not HeadwayError
    ]
    assert tree == {(each.__name__, str(each.exit_code)) for each in own}


def test_every_environment_variable_has_a_meaning_and_no_other() -> None:
    assert {**reference.SET_BY_PEOPLE, **reference.SET_BY_HEADWAY}.keys() == reference.variables_in_code()


def test_what_the_readme_shares_with_the_site_is_made_of_its_pages() -> None:
    assert front_page.README.read_text() == front_page.written(), "`python -m docs.front_page` writes it anew"
    readme = front_page.README.read_text()
    assert front_page.flow() in readme
    assert front_page.promises() in readme


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


def keys_in(value: Any, above: str = "") -> Iterator[str]:
    """Dotted, of all depths; places in lists are left out, as `headway explain` takes them."""
    for each in value if isinstance(value, list) else ():
        yield from keys_in(each, above)
    for name, below in value.items() if isinstance(value, dict) else ():
        # A dot within a name, such as `nvidia.com/gpu`, stands only in maps that take any name.
        key = f"{above}{str(name).replace('.', '_')}"
        yield key
        yield from keys_in(below, f"{key}.")


@cache
def is_key(key: str, kind: FileKind) -> bool:
    try:
        explain(key, kind)
    except ConfigError:
        return False
    return True


def unknown_keys(text: str) -> list[str]:
    """Of a fragment, those that no kind of file has; of the kind that has most of them."""
    keys = list(keys_in(yaml.safe_load(text)))
    return min(([key for key in keys if not is_key(key, kind)] for kind in get_args(FileKind)), key=len)


@pytest.mark.parametrize("text", code_blocks("yaml"))
def test_every_key_of_yaml_exists_and_a_pipeline_file_is_one(text: str) -> None:
    value = yaml.safe_load(text)
    if isinstance(value, dict) and "pipeline" in value:
        parse_yaml_model(PipelineSpec, text, where="the page")
    assert unknown_keys(text) == [], "`headway explain` knows no such key"


def test_a_key_that_no_file_has_is_seen_at_any_depth() -> None:
    assert unknown_keys("training:\n  schedule: {kind: wsd, warmup: 3}") == ["training.schedule.warmup"]
    assert unknown_keys("launch: {ssh: {hosts: [{address: a, nam: b}]}}") == ["launch.ssh.hosts.nam"]
    assert unknown_keys("columns: {age: {type: int64, minimun: 0}}") == ["columns.age.minimun"]


@pytest.mark.parametrize("text", [each for each in code_blocks("python") if "reference" not in str(each.id)])
def test_python_compiles_and_what_it_imports_of_headway_is_there(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "headway":
            assert {each.name for each in node.names} <= set(headway.__all__)


@pytest.mark.parametrize("text", code_blocks("console"))
def test_every_command_and_option_in_a_console_exists(text: str) -> None:
    root: Any = typer.main.get_command(app)
    for line in re.findall(r"^(?:\$ )?(?:\S*/)?headway (.+)$", text, re.MULTILINE):
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


MODULES = frozenset({"headway", "mlflow", "model", "np", "prefect", "torch", "typer"})
"""What a dotted name may begin with beside a key, an event, a file or a folder."""
PARTS_OF_TIME = frozenset({"train.sync"})
"""Of the time account, whose names are put together as the code runs."""
FILE = re.compile(r".*\.(?:json|jsonl|md|py|safetensors|toml|txt|yaml)")


@cache
def key_names() -> frozenset[str]:
    """Of all depths of all kinds of files."""
    return frozenset(name for kind in get_args(FileKind) for name in names_below(schema_of(kind)))


def names_below(schema: Any) -> Iterator[str]:
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from names_below(each)
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        yield from schema["properties"]


@cache
def words_of_code() -> frozenset[str]:
    """All that the product's source spells."""
    files = (path for package in (*reference.PACKAGES, "docs", "benchmarks") for path in (HOME / package).rglob("*.py"))
    return frozenset(word for path in files for word in re.findall(r"\w+", path.read_text()))


def is_of_the_code(code: str) -> bool:
    """Whether a key, a state, an event or a class that a sentence names is there; other words pass."""
    if re.fullmatch(r"[a-z_]+(?:\.[a-z_]+)+", code) and not FILE.fullmatch(code):
        named = code in EVENTS or code in PARTS_OF_TIME or any(is_key(code, kind) for kind in get_args(FileKind))
        return named or code.partition(".")[0] in MODULES or (HOME / code.replace(".", "/")).is_dir()
    if key := re.match(r"([a-z_]+): ", code):
        return key[1] in key_names()
    if re.fullmatch(r"(?:[A-Z][a-z]+)+", code):
        states = {*reference.STATES, *PREFECT_STATES}
        named = code in states or code in {alert.name for alert in ALERTS}
        return named or code in reference.classes_in_code() or code in headway.__all__
    # Tests that a page names are held to those that there are by `test_architecture_pages.py`.
    if re.fullmatch(r"(?!test_)[a-z]+(?:_[a-z]+)+", code):
        return code in words_of_code()
    return True


def test_the_page_of_the_time_account_names_every_state() -> None:
    text = (HOME / "docs" / "concepts" / "time-account.md").read_text()
    table = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    assert {state for row in table for state in re.findall(r"`([a-z_]+)`", row)} >= set(goodput.STATES)


def test_no_key_state_event_or_class_is_named_in_a_sentence_that_does_not_exist() -> None:
    """A key is written in full, so that `headway explain` takes it as it stands there."""
    pages = (page for page in PAGES if page.parent.name != "reference")
    named = [(page.name, code) for page in pages for code in re.findall(r"`([^`\n]+)`", text_of(page))]
    assert [each for each in named if not is_of_the_code(each[1])] == []


@pytest.mark.parametrize(
    "code", ["encoder.fit_mb", "training.epochs", "shard.gruop", "Starved", "RankLost", "max_epoch", "lable: x"]
)
def test_a_name_that_is_not_in_the_code_is_seen(code: str) -> None:
    assert not is_of_the_code(code)


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


def test_who_takes_pictures_without_the_browsers_package_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    monkeypatch.delitem(sys.modules, "docs.screenshots", raising=False)
    with pytest.raises(SystemExit, match=re.escape("pip install 'headway[screenshots]'")):
        importlib.import_module("docs.screenshots")
