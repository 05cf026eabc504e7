"""The trials of a search as they stand, for a terminal: those at work first, then those that came furthest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size

from headway.data_contracts.store import plain_text
from headway.data_contracts.types.report_text import count, figure
from headway.tasks.search.values import Settings, shown
from headway.training.observe.ledger import Event

MAX_ROWS = 10
GAP = "   "
ENDS = frozenset({"stage.finalists", "stage.verify", "flow.stopped", "flow.failed", "flow.end"})
"""What follows a search, whose ranking is told then."""


@dataclass(kw_only=True, slots=True)
class _Row:
    trial: str
    settings: Settings
    figures: dict[int, float] = field(default_factory=dict)
    """By the step of a rung."""
    now: str = ""
    is_at_work: bool = True


class SearchTable:
    """Made of a search's events; empty where there is none."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._greater_is_better = False

    def take(self, event: Event) -> bool:
        """Returns whether a line of it is another now."""
        name, trial = event["event"], str(event.get("trial", ""))
        if name in ENDS:
            self._rows.clear()
        elif name == "trial" and "settings" in event:
            row = self._rows.setdefault(trial, _Row(trial=trial, settings=event["settings"]))
            row.now, row.is_at_work = "starts", True
        elif name == "rung" and "values" in event:
            self._rank(event)
        elif (row_of := self._rows.get(trial)) is None:
            return False
        elif name == "step":
            row_of.now = f"step {int(event['step']):,} of {int(event.get('max_steps', 0)):,}"
            if "loss" in event:
                row_of.now += f", loss {event['loss']:.4g}"
            row_of.is_at_work = True
        elif "cause" in event:
            row_of.now, row_of.is_at_work = f"failed ({event['cause']})", False
        else:
            return False
        return True

    def _rank(self, event: Event) -> None:
        step, self._greater_is_better = int(event["step"]), bool(event["greater_is_better"])
        for row in self._rows.values():
            if row.is_at_work:
                row.now, row.is_at_work = "", False
        for number, value in zip(event["trials"], event["values"], strict=True):
            if (scored := self._rows.get(f"trial {number}")) is not None:
                scored.figures[step] = float(value)
                scored.now = "goes on" if number in event["promoted"] else ""

    def lines(self, width: int) -> list[str]:
        """None wider than so many cells."""
        if not self._rows:
            return []
        steps = sorted({step for row in self._rows.values() for step in row.figures})
        names = list(dict.fromkeys(name for row in self._rows.values() for name in row.settings))
        rows = sorted(self._rows.values(), key=self._place)
        texts = [["trial", *names, *(f"at {step:,}" for step in steps), ""]]
        texts += [list(_texts(row, names, steps)) for row in rows[:MAX_ROWS]]
        shown = [[plain_text.one_line(text) for text in row] for row in texts]
        widths = [max(map(cell_len, column)) for column in zip(*shown, strict=True)]
        made = [GAP.join(map(set_cell_size, row, widths)) for row in shown]
        if len(rows) > MAX_ROWS:
            made.append(f"and {count(len(rows) - MAX_ROWS, 'more trial')}")
        # Wider than the terminal, a line would take two of its own, and be erased by half.
        return [set_cell_size(line, width).rstrip() for line in made]

    def _place(self, row: _Row) -> tuple[bool, int, float]:
        furthest = max(row.figures, default=0)
        value = row.figures.get(furthest, 0.0)
        return not row.is_at_work, -furthest, -value if self._greater_is_better else value


def _texts(row: _Row, names: list[str], steps: list[int]) -> Iterator[str]:
    yield row.trial.removeprefix("trial ")
    for name in names:
        yield shown(row.settings[name]) if name in row.settings else ""
    for step in steps:
        yield figure(row.figures[step]) if step in row.figures else ""
    yield row.now
