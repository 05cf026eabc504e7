"""`events.md`, made from the ledger's declarations and their uses: `python -m docs.architecture.events` writes it."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headway.training.observe.events import BEGIN, EVENTS, OF_PROCESS, Declared

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = Path(__file__).with_suffix(".md")
PACKAGES = ("flows", "tasks", "training", "data_contracts")
RECORDING = ("event", "span", "elapsed", "_note", "_tell")
"""Methods that take an event's name first: the ledger's, and two that hand it on."""


class Site(NamedTuple):
    """A line that records an event."""

    path: Path
    line: int
    method: str
    event: str
    """Empty where it is made up as the code runs."""
    fields: frozenset[str]


@functools.cache
def nodes() -> tuple[tuple[Path, ast.AST], ...]:
    """Of the syntax of the whole product, which takes a second to parse, and to walk another."""
    paths = sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
    kept = (ast.Call, ast.Constant)
    trees = ((path, ast.parse(path.read_text())) for path in paths)
    return tuple((path, node) for path, tree in trees for node in ast.walk(tree) if isinstance(node, kept))


@functools.cache
def sites() -> tuple[Site, ...]:
    """Every line of the product that records an event."""
    return tuple(_sites())


def _sites() -> Iterator[Site]:
    for path, node in nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        method, name = node.func.attr, node.args[0]
        if method not in RECORDING or not _is_a_ledgers(node.func.value, method):
            continue
        event = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""
        fields = frozenset(keyword.arg for keyword in node.keywords if keyword.arg)
        yield Site(path.relative_to(REPOSITORY), node.lineno, method, event, fields)


def _is_a_ledgers(receiver: ast.expr, method: str) -> bool:
    text = ast.unparse(receiver)
    return text.endswith("ledger") or (text == "self" and method.startswith("_"))


def page() -> str:
    recorded = defaultdict[str, set[str]](set)
    for site in sites():
        recorded[site.event.removesuffix(BEGIN)].add(site.path.as_posix())
        recorded[site.event].add(site.path.as_posix())
    whose = ", ".join(f"`{name}`" for name in sorted(OF_PROCESS))
    rows = [_row(name, declared, recorded[name]) for name, declared in EVENTS.items()]
    return "\n".join(
        [
            "# Events of the ledger",
            "",
            "Made by `python -m docs.architecture.events` from `training/observe/events.py`, which declares them.",
            "Every process appends its events to a spool of its own, one JSON object a line.",
            f"Each has `event` and `unix_s`, and says whose it is: some of {whose}.",
            f"A span is recorded at its end with `duration_s` and `outcome`, and at its start as `NAME{BEGIN}`.",
            "",
            "| event | kind | fields | what it says | recorded in |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _row(name: str, declared: Declared, files: set[str]) -> str:
    kind = "span" if declared.is_span else "moment"
    fields = ", ".join(f"`{field}`" for field in sorted(declared.fields))
    where = ", ".join(f"`{path}`" for path in sorted(files))
    return f"| `{name}` | {kind} | {fields} | {declared.what} | {where} |"


if __name__ == "__main__":
    PAGE.write_text(page())
