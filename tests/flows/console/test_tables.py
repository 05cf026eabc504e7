"""A table is a line a row where no person reads it, and ends its lines where their text ends."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.flows.console.console import ANY_WIDTH, plain_console, print_table

LONG = "of the rows that remain " * 10


def printed(*, terminal: bool, wrapped: bool | None = None) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=terminal, highlight=False, color_system=None)
    table = Table("rule", "expectation", "observed", box=None, padding=(0, 2, 0, 0))
    table.add_row("a", Text(LONG.strip()), "[bold]x[/bold]")
    table.add_row("b", Text("[kept]"), "")
    print_table(console, table, wrapped=wrapped)
    return stream.getvalue()


def test_in_a_pipe_a_row_is_one_line_of_any_length() -> None:
    header, first, second = printed(terminal=False).splitlines()
    assert header.split() == ["rule", "expectation", "observed"]
    assert first == f"a     {LONG.strip()}  x"
    assert second == "b     [kept]"


@pytest.mark.parametrize(("terminal", "wrapped"), [(True, None), (False, True)])
def test_in_a_terminal_it_keeps_to_the_width(terminal: bool, wrapped: bool | None) -> None:
    lines = printed(terminal=terminal, wrapped=wrapped).splitlines()
    assert len(lines) > 3 and max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)


def test_a_width_that_no_terminal_has_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000000000")
    assert plain_console(io.StringIO()).width == ANY_WIDTH
