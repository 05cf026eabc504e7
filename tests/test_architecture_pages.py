"""Pages name what exists: every relative link leads somewhere, and every module, file and test they name is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent
PACKAGES = ("flows", "tasks", "training", "data_contracts", "deployments", "benchmarks", "docs", "tests")
PAGES = [HOME / "README.md", HOME / "SECURITY.md", *sorted((HOME / "docs").rglob("*.md"))]
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
MODULE = re.compile(r"(?<![\w./@-])headway(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(r"(?<![\w./:-])[\w.-]+(?:/[\w.-]+)+\.py\b")
TEST = re.compile(r"(?<![\w./-])test_\w+\b(?!\.py)")
PLACE = re.compile(rf"(?<![\w./:-])(?:{'|'.join(PACKAGES)})/[\w./-]*\w")
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b")
"""As in `deployments/NAME.yaml`."""


@cache
def files() -> frozenset[str]:
    """Python files below the root, as they are named from there."""
    found = chain.from_iterable((HOME / package).rglob("*.py") for package in (*PACKAGES, "headway"))
    return frozenset(path.relative_to(HOME).as_posix() for path in found)


@cache
def named_tests() -> frozenset[str]:
    """Names of test functions and of the modules that hold them."""
    paths = list((HOME / "tests").rglob("test_*.py"))
    functions = (re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE) for path in paths)
    return frozenset(chain((path.stem for path in paths), chain.from_iterable(functions)))


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines at its top, and imports under a name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=as_name):
                names.add(as_name or name)
    return frozenset(names)


def is_there(dotted: str) -> bool:
    """Whether a dotted name is a package, a module or something that a module defines."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        place = HOME.joinpath(*parts[:length])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                return length == len(parts) or parts[length] in names_in(path)
    return False


def slug(heading: str) -> str:
    """As GitHub makes the anchor of a heading."""
    text = LINK.sub(r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    found: dict[str, int] = {}
    made = set()
    for heading in re.findall(r"^#{1,6} +(.*?)\s*#*$", FENCED.sub("", page.read_text()), re.MULTILINE):
        name = slug(heading)
        number = found.get(name, 0)
        found[name] = number + 1
        made.add(f"{name}-{number}" if number else name)
    return made


def links(page: Path) -> list[tuple[str, str]]:
    return [(text, target) for text, target in LINK.findall(FENCED.sub("", page.read_text())) if ":" not in target]


def ids(page: Path) -> str:
    return page.relative_to(HOME).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_relative_link_leads_to_a_file_or_heading_that_exists(page: Path) -> None:
    broken = []
    for _, target in links(page):
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_a_link_that_reads_as_a_file_leads_to_the_file_of_that_name(page: Path) -> None:
    wrong = [
        (text, target)
        for text, target in links(page)
        if re.fullmatch(r"`?[\w./-]+\.(py|md|svg)`?", text) and not f"/{target}".endswith(f"/{text.strip('`')}")
    ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_module_file_and_test_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    modules = [name for name in MODULE.findall(text) if not is_there(name)]
    bare = LINK.sub("", text)
    paths = [name for name in FILE.findall(bare) if not any(f"/{known}".endswith(f"/{name}") for known in files())]
    places = [name for name in PLACE.findall(bare) if not (HOME / name).exists() and not PLACEHOLDER.search(name)]
    missing = [name for name in TEST.findall(text) if name not in named_tests()]
    assert [*modules, *paths, *places, *missing] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("headway.training.engine.loop", True),
        ("headway.training.engine", True),
        ("headway.training.engine.loop.train", True),
        ("headway.retrain", True),
        ("headway.training.engine.lop", False),
        ("headway.training.engine.loop.trian", False),
        ("headway.trainig", False),
    ],
)
def test_a_name_is_there_only_as_it_is_written(name: str, expected: bool) -> None:
    assert is_there(name) is expected
