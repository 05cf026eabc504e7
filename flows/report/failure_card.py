"""The failure card: one page that says what broke, where, what was tried, what happens next, and what a person does."""

from __future__ import annotations

from pydantic import BaseModel
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headway.data_contracts.store import plain_text
from headway.flows.console.console import print_table
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.retry_budget import AttemptRecord


class FailureCard(BaseModel):
    pipeline: str
    workspace: str
    flow_run: str
    unix_s: float
    stage: str
    """The stage that failed; empty where it was none."""
    failure: Failure
    """Its advice is what a person does about the cause, by a line each; what a rank wrote last is in `last_lines`."""
    ledger: str = ""
    """The folder with all that this flow run wrote down."""
    run: str = ""
    """Empty: it never came to training."""
    last_lines: list[str] = []
    """What that rank wrote last on stderr."""
    last_good_step: int | None = None
    """Of the newest checkpoint, which is verified once more before anything resumes from it."""
    failed_step: int | None = None
    """The newest step that any rank of the attempt that failed wrote down; None where none did, or none failed."""
    attempts: list[tuple[str, AttemptRecord]] = []
    """Of this flow run, each with what it was of: `train`, or `verify`, `evaluate`, `export`."""
    next: str
    """What starts by itself, and what a person mends and runs."""
    commands: dict[str, str]
    """What a person may type, and what for."""

    @property
    def title(self) -> str:
        return f"{self.pipeline} failed{f' in stage {self.stage}' if self.stage else ''}"

    @property
    def first(self) -> str:
        """Who failed first."""
        rank, host = self.failure.rank, self.failure.host
        return "" if rank is None else f"rank {rank}{f' on {host}' if host else ''}"


def markdown(card: FailureCard) -> str:
    """The card as a page."""
    facts = {name: value for name, value in {**_facts(card), "ledger": card.ledger}.items() if value}
    what = "  \n".join(map(plain_text.markdown, filter(str.strip, card.failure.what.splitlines())))
    parts = [f"# {plain_text.markdown(card.title)}", what, card.failure.advice and f"**{_cell(card.failure.advice)}**"]
    parts.append("\n".join(["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in facts.items())]))
    if card.last_lines:
        written = plain_text.code_block("\n".join(card.last_lines))
        parts.append(f"What {plain_text.markdown(card.first)} wrote last:\n\n{written}")
    if card.attempts:
        rows = [
            f"| {_cell(gang)} {attempt.attempt} | {_cell(attempt.state)} | {_or_none(attempt.step)} | "
            f"{_cell(attempt.failure.what)} |"
            for gang, attempt in card.attempts
        ]
        parts.append("\n".join(["## What was tried", "", "| attempt | ended | step | |", "|---|---|---|---|", *rows]))
    parts.append(f"## What happens next\n\n{_cell(card.next)}")
    typed = [f"- {plain_text.markdown(what)}: {plain_text.code(command)}" for what, command in card.commands.items()]
    parts.append("\n".join(["## What a person does", "", *typed]))
    return "\n\n".join(filter(None, parts)) + "\n"


def print_card(card: FailureCard, console: Console) -> None:
    """The card in a frame, and below it what a person copies: no frame breaks it over two lines."""
    table, copied = Table.grid(padding=(0, 2, 0, 0)), Table.grid(padding=(0, 2, 0, 0))
    facts = {"what": card.failure.what, "to do": card.failure.advice, **_facts(card), "next": card.next}
    for name, value in {"ledger": card.ledger, **card.commands}.items():
        copied.add_row(Text(f"  {name}", style="dim"), value)
    for name, value in facts.items():
        if value:
            table.add_row(Text(name, style="dim"), Text(plain_text.lines(value), overflow="fold"))
    for gang, attempt in card.attempts:
        state = f"{gang} {attempt.attempt} {attempt.state}, step {_or_none(attempt.step)}"
        text = plain_text.lines(f"{state}: {attempt.failure.what}".rstrip(": "))
        table.add_row(Text("tried", style="dim"), Text(text, overflow="fold"))
    for line in card.last_lines:
        table.add_row(Text("", style="dim"), Text(plain_text.one_line(line), style="dim", overflow="fold"))
    title = Text(plain_text.one_line(card.title), style="bold red")
    console.print(Panel(table, title=title, title_align="left"), soft_wrap=False)
    print_table(console, copied, wrapped=False)


def _facts(card: FailureCard) -> dict[str, str]:
    return {
        "cause": f"{card.failure.cause} ({card.failure.error}, exit code {card.failure.exit_code})",
        "where": card.failure.where,
        "first": card.first,
        "run": card.run,
        "failed at": "" if card.failed_step is None else f"step {card.failed_step:,}",
        "last good": ""
        if not card.run
        else f"checkpoint of step {card.last_good_step:,}"
        if card.last_good_step
        else "none",
    }


def _or_none(step: int | None) -> str:
    return "none" if step is None else f"{step:,}"


def _cell(text: str) -> str:
    """One cell of a table in Markdown."""
    return plain_text.markdown(" ".join(text.split()))
