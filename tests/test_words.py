"""Code speaks the field's terms (`docs/glossary.md`): retired words stay out of names, and one name means one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("flows", "tasks", "training", "data_contracts", "headway")
RETIRED = {
    "anew": "invalidated, again",
    "arrangement": "parallel strategy",
    "aside": "quarantined",
    "bearable": "tolerable",
    "began": "started",
    "begun": "started",
    "crown": "set_champion",
    "crowned": "champion detail",
    "elsewhere": "remote, rescheduled",
    "going_on": "is_running",
    "hasty": "impatient",
    "hear": "on_event, on_sigterm",
    "heard": "received, answered",
    "heart": "acknowledge",
    "held_back": "blocked, paused",
    "hopeless": "permanent",
    "judge": "evaluate, check, diagnose, decide",
    "judged": "evaluated",
    "kept_slots": "concurrency lease",
    "laid": "parallelized, formatted",
    "lateness": "hang detection",
    "lay_out": "parallelize",
    "learnt": "fitted",
    "leaves_out": "excludes",
    "left_out": "excluded",
    "made_up": "synthetic",
    "mandate": "fence",
    "muster": "host probe",
    "orphan": "worker watchdog",
    "pulse": "heartbeat",
    "said": "message",
    "say": "print, send",
    "spares": "recycled files, spare hosts",
    "stand_by": "watchdog",
    "standing": "status, history, current",
    "tell": "report, emit, notify",
    "telling": "naming",
    "tells": "emits",
    "told": "reported, notified",
    "tried": "attempts, results",
    "undividable": "require_shardable",
    "undivided": "unsharded",
    "vain": "failed",
    "who": "owner, current_user, by",
    "wholes": "full tensors",
    "whom": "recipient",
    "whose": "what it is",
    "yardstick": "metric set",
}
"""Words, as parts of names, and what is said instead."""
ANY_RETIRED = re.compile(f"(?<=_)(?:{'|'.join(map(re.escape, RETIRED))})(?=_)")
"""One look at a name for all of them: there are some fifty thousand names."""
KEPT = frozenset({"adopt_orphans"})
"""Names in which the word is the field's own."""


@cache
def trees() -> dict[str, ast.Module]:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in files}


@pytest.fixture(autouse=True, scope="module")
def parsed_once() -> None:
    """At no single test's cost."""
    all_names()


def names_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Of classes, functions, parameters, fields, attributes and constants; what is local to a function is its own."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case _:
                continue
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for statement in (each for body in bodies for each in body):
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from ((each.id, each.lineno) for each in targets if isinstance(each, ast.Name))


@cache
def all_names() -> list[tuple[str, str, int]]:
    """File, name and line of all, modules among them."""
    found = []
    for file, tree in trees().items():
        found += [(file, part, 1) for part in file.removesuffix(".py").split("/")]
        found += [(file, name, line) for name, line in names_of(tree)]
    return found


@cache
def in_parts(name: str) -> str:
    """`_AttemptFence` and `ATTEMPT_FENCE` as `_attempt_fence_`."""
    return f"_{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower().strip('_')}_"


@pytest.mark.parametrize(
    ("name", "parts"), [("_TheWords", "_the_words_"), ("IS_TOLD", "_is_told_"), ("_began_s", "_began_s_")]
)
def test_a_name_is_read_in_its_parts(name: str, parts: str) -> None:
    assert in_parts(name) == parts


def test_retired_words_stay_out_of_names() -> None:
    found = []
    for file, name, line in all_names():
        if name not in KEPT:
            found += [f"{file}:{line} {name}: {RETIRED[word]}" for word in ANY_RETIRED.findall(in_parts(name))]
    assert sorted(set(found)) == []


def test_no_public_class_is_called_like_another() -> None:
    places = defaultdict(list)
    for file, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(file)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_a_glossary_explains_its_terms_in_order() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    terms = [found[1] for line in lines if (found := re.match(r"- \*\*(.+?)\*\*: \S", line))]
    assert len(terms) > 40
    assert terms == sorted(terms, key=str.lower)
    assert all(len(line) <= 250 for line in lines if line.startswith("- "))
