"""The page of who owns what names files and tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent
NAMED = sorted(
    set(re.findall(r"`([a-z_]+/[\w/]+\.py(?:::\w+)?)`", (HOME / "docs/architecture/ownership.md").read_text()))
)


@pytest.mark.parametrize("named", NAMED)
def test_what_the_page_names_is_there(named: str) -> None:
    path, _, test = named.partition("::")
    assert (HOME / path).is_file()
    found = {node.name for node in ast.parse((HOME / path).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert not test or test in found


def test_every_row_has_its_proof() -> None:
    rows = [row for row in (HOME / "docs/architecture/ownership.md").read_text().splitlines() if row.startswith("| ")]
    assert len(rows) > 20
    assert all("`tests/" in row for row in rows if not row.startswith("| who against whom"))
