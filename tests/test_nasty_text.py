"""Text of data, files, people and YAML is text wherever it is shown: no markup, no link, no control of a terminal.

Whatever is shown is filled with hostile text in each of its texts, keys included, whatever they will be called; and
each page is held against the same page filled with a plain word: the same elements, nothing else.
"""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import datetime
import enum
import functools
import io
import re
import subprocess
import sys
import types
import typing
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from pydantic import BaseModel
from rich.text import Text

from headway.data_contracts.report.quarantined_rows import QuarantineSample
from headway.data_contracts.rules.contract import load_contract
from headway.data_contracts.store import plain_text
from headway.data_contracts.store.documents import (
    ContractReceipt,
    Distribution,
    EvaluationReport,
    ExpectationVerdict,
    Snapshot,
)
from headway.flows.act import champion_moves, clean, compare, contract_check, reproduce
from headway.flows.ci import pages
from headway.flows.ci.pages import print_result
from headway.flows.ci.results import CiReport
from headway.flows.cli import decide
from headway.flows.console.console import plain_console
from headway.flows.deploy import deploying
from headway.flows.drill import report as drill_report
from headway.flows.monitoring.alert_delivery import Delivery, print_delivery
from headway.flows.periods.page import written as written_period
from headway.flows.periods.record import PeriodReport
from headway.flows.rehearse import report as rehearse_report
from headway.flows.report import failure_card, summary, written_report
from headway.flows.report.search_table import SearchTable
from headway.flows.report.terminal import NOTICES, JsonLines, Terminal
from headway.flows.show import (
    board_page,
    calendar,
    champion_history,
    cost,
    goodput,
    logs,
    plan,
    postmortem,
    scrub,
    shards,
    status,
    trace,
)
from headway.flows.show.board import Board
from headway.flows.tracing.spans import Trace
from headway.flows.trials import report as trials_report
from headway.flows.trials import search_page
from headway.flows.trials.summary import SearchSoFar, TrialsSummary
from headway.flows.triggers import report as triggers_report
from headway.tasks.core import artifacts
from headway.tasks.prove.scrub import ScrubReport
from headway.tasks.registry import evaluation_report
from headway.tasks.reports import comparison_page, evaluation_page
from headway.tasks.reports.comparison import Comparison
from headway.tasks.reports.evidence import Evidence, TrainingCurve
from headway.tasks.serving import prediction
from headway.training.evaluation.outputs import Outputs
from headway.training.launch.diagnosis.logs import LogLine

REPOSITORY = Path(__file__).resolve().parent.parent
PLAIN = "word"
NASTY = {
    "a closing tag of rich": "[/x] [bold]b[/bold]",
    "a link of rich": "[link=https://evil.example/]here[/link]",
    "a style that is none": "[@click=app.bell]x[/] [not a style]",
    "an emoji's code": ":smile: :100: :skull:",
    "colours and cursor": "\x1b[31mred\x1b[2J\x1b[1;1H\x9b31m",
    "a link of a terminal": "\x1b]8;;https://evil.example\x1b\\here\x1b]8;;\x1b\\",
    "a title and a bell": "\x1b]0;title\x07",
    "directions": "abc\u202edef\u2066ghi\u200f",
    "lines": "one\n# two\n\n- three\r\nfour\x0bfive\x85six\u2028seven\r",
    "a rule and a heading": "\n---\n",
    "null": "nul\x00nul",
    "half a surrogate": "half \udc80\ud800 of it",
    "elements": "<img src=x onerror=alert(1)><script>alert(1)</script></td></table></html><!--",
    "quotes": "' onmouseover='alert(1) \" x=\"",
    "a link": "[here](https://evil.example) [b][a] [a]: https://evil.example",
    "an image": "![x](https://evil.example/x.png)",
    "bare links": "https://evil.example www.evil.example ftp://x.example <https://evil.example> a@evil.example",
    "cells": "a|b|c\\|d",
    "code": "`x` ```y``` ~~~ `",
    "emphasis": "*a* **b** _c_ __d__ ~~e~~ \\*f\\*",
    "blocks": "# h",
    "a list": "- [ ] x",
    "a numbered list": "1. x",
    "a quote": "> x",
    "a mention": "@everybody",
    "entities": "&lt;b&gt; &#60; &amp;",
    "commands of GitHub": "::add-mask::word",
    "commands behind a line feed": "x\n::set-output name=a::b\n  ::error file=a::b",
    "commands of others": "##[group]x ##vso[task.setvariable variable=a]b ##teamcity[x]",
    "templates": "{{ x }} {% y %} ${z} %s {0}",
    "mathematics": "$x^2$ $$y$$",
    "XML": "]]> <![CDATA[ x",
    "very long": "[/x]`<b>" * 500,
}
SINKS = ("data_contracts/store/plain_text.py", "flows/console/console.py", "flows/console/output.py")
DIRECTIONS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


hints_of = functools.cache(functools.partial(typing.get_type_hints, include_extras=True))
"""Asked for thousands of times."""


def filled(kind: Any, text: str) -> Any:
    """A value of a type, with a text in place of each of its strings, and of each key."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return filled(arguments[0], text)
    if origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return filled(next(each for each in arguments if each is not type(None)), text)
    if origin in (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable):
        if origin is tuple and arguments[-1] is not ...:
            return tuple(filled(each, text) for each in arguments)
        return (list if origin is collections.abc.Sequence else origin)([filled(arguments[0], text)])
    if origin in (dict, collections.abc.Mapping):
        return {filled(arguments[0], text): filled(arguments[1], text)}
    if origin is collections.Counter:
        return collections.Counter({filled(arguments[0], text): 3})
    if kind is Any:
        return text
    if kind is type(None):
        return None
    if kind is Path:
        return Path(text.replace("\0", ""))
    if kind is datetime.datetime:
        return datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)
    if kind is datetime.date:
        return datetime.date(2026, 11, 23)
    if issubclass(kind, enum.Enum):
        return next(iter(kind))
    for simple, value in ((bool, True), (int, 3), (float, 1.5), (str, text)):
        if issubclass(kind, simple):
            return value
    hints = hints_of(kind)
    if issubclass(kind, BaseModel):
        return kind.model_construct(**{name: filled(hints[name], text) for name in kind.model_fields})
    if dataclasses.is_dataclass(kind):
        return kind(**{each.name: filled(hints[each.name], text) for each in dataclasses.fields(kind) if each.init})
    if issubclass(kind, tuple):
        return kind(**{name: filled(hints[name], text) for name in kind._fields})
    raise AssertionError(f"a value of {kind} is not known here")


def evaluation(text: str) -> EvaluationReport:
    report: EvaluationReport = filled(EvaluationReport, text)
    named = {"metrics": {text: next(iter(report.metrics.values()))}, "metric": text, "gate_baseline": text}
    return report.model_copy(update={**named, "incomparable": None})


def retrained(text: str) -> summary.RetrainSummary:
    made: summary.RetrainSummary = filled(summary.RetrainSummary, text)
    return made.model_copy(
        update={"workspace": "/w", "reports": dict.fromkeys(("evaluation", "contract", "card"), text)}
    )


def searched(text: str) -> TrialsSummary:
    made: TrialsSummary = filled(TrialsSummary, text)
    return made.model_copy(update={"best": retrained(text)})


def compared(text: str) -> TrialsSummary:
    """Of two trials: one alone is not drawn."""
    made = searched(text)
    rows = [
        made.trials[0].model_copy(update={"settings": {text: value}, "rungs": {made.levels[0]: 1.0}})
        for value in (text, 1)
    ]
    return made.model_copy(update={"trials": rows})


def told_events(text: str, stream: io.StringIO) -> None:
    terminal = Terminal(stream)
    for name in NOTICES:
        terminal({"event": name, "message": text, "trial": text})
    terminal({"event": "stage.x", "duration_s": 1.0, "outcome": "ok", "shown": text})
    terminal({"event": "restore", "outcome": "ok", "step": 3, "trial": text})
    step = {"step": 1, "max_steps": 1, "loss": 1.0, "lr": 0.1, "duration_s": 1.0, "sync_s": 0.1, "tokens": 1}
    terminal({"event": "step", "trial": text, **step})
    terminal({"event": "flow.card", **filled(failure_card.FailureCard, text).model_dump()})
    table = SearchTable()
    table.take({"event": "trial", "trial": text, "settings": {text: text}})
    table.take({"event": "trial", "trial": text, "cause": text})
    stream.write("\n".join(table.lines(1000)))


def reported(text: str) -> written_report.WrittenReport:
    return written_period(filled(PeriodReport, text), has_prices=True)


def checked(text: str) -> contract_check.CheckResult:
    contract = load_contract(REPOSITORY / "data_contracts" / "contracts" / "digits.yaml")
    bins = {"num_requested": 20, "counts": (1, 1), "num_nulls": 0, "num_nans": 0}
    distribution = Distribution(column=text, of="values", categories=(text,), **bins)
    return contract_check.CheckResult(
        contract=contract.model_copy(update={"columns": {text: next(iter(contract.columns.values()))}}),
        snapshot=filled(Snapshot, text),
        receipt=filled(ContractReceipt, text).model_copy(update={"distributions": (distribution,)}),
        quarantine=filled(QuarantineSample, text),
        evaluated_now=(filled(ExpectationVerdict, text),),
        warning=text,
    )


LABELS = np.array([0, 1, 1])
EVIDENCE = Evidence(
    outputs=Outputs(
        label=LABELS,
        predicted=LABELS,
        confidence=np.full(3, 0.9, dtype=np.float32),
        probability_rows=np.arange(3),
        probability=np.full((3, 2), 0.5, dtype=np.float32),
    )
)


def scaled(text: str) -> goodput.GoodputReport:
    """On two numbers of devices: one alone is not shown."""
    report = filled(goodput.GoodputReport, text)
    assert isinstance(report, goodput.GoodputReport)
    report.scaling *= 2
    return report


PRINTED: dict[str, Callable[[str, Any], object]] = {
    "events of a retrain": lambda text, stream: told_events(text, stream),
    "a retrain": lambda text, stream: Terminal(stream).summary(retrained(text)),
    "a failure": lambda text, stream: failure_card.print_card(
        filled(failure_card.FailureCard, text), plain_console(stream, width=80)
    ),
    "status": lambda text, stream: status.print_status(filled(status.Status, text), plain_console(stream)),
    "shards": lambda text, stream: shards.print_shards(filled(shards.ShardTable, text), plain_console(stream)),
    "clean": lambda text, stream: clean.print_clean(filled(clean.CleanReport, text), plain_console(stream)),
    "windows": lambda text, stream: calendar.print_calendar(filled(calendar.Calendar, text), plain_console(stream)),
    "rehearse": lambda text, stream: rehearse_report.print_report(
        filled(rehearse_report.RehearsalReport, text), plain_console(stream)
    ),
    "drills": lambda text, stream: drill_report.print_report(
        filled(drill_report.DrillReport, text), plain_console(stream)
    ),
    "trials": lambda text, stream: trials_report.print_ranking(filled(TrialsSummary, text), plain_console(stream)),
    "deploy": lambda text, stream: deploying._print(filled(deploying.DeployReport, text), plain_console(stream), ()),
    "ci": lambda text, stream: [print_result(each, stream) for each in filled(CiReport, text).results],
    "contract check": lambda text, stream: contract_check.print_checked(
        checked(text), plain_console(stream), report=text
    ),
    "cost": lambda text, stream: cost.print_cost(filled(cost.CostReport, text), plain_console(stream)),
    "goodput": lambda text, stream: goodput.print_goodput(scaled(text), plain_console(stream)),
    "scrub": lambda text, stream: scrub.print_scrub(filled(ScrubReport, text), plain_console(stream)),
    "a trace": lambda text, _: trace.print_traces([filled(Trace, text)]),
    "a test of alerts": lambda text, _: print_delivery(filled(Delivery, text)),
    "logs": lambda text, _: logs._Printer()(filled(LogLine, text)),
    "promote": lambda text, _: champion_moves.print_move(filled(champion_moves.MoveReport, text)),
    "refuse": lambda text, _: champion_moves.print_refusal(filled(champion_moves.RefusalReport, text)),
    "compare": lambda text, _: compare.print_compared(filled(compare.CompareReport, text)),
    "history": lambda text, _: champion_history.print_history(filled(champion_history.History, text)),
    "plan": lambda text, _: plan.print_plan(filled(plan.Plan, text)),
    "reproduce": lambda text, _: reproduce.print_reproduction(filled(reproduce.ReproductionReport, text)),
    "triggers": lambda text, _: triggers_report.print_report(filled(triggers_report.TriggersReport, text)),
}
MARKDOWN: dict[str, Callable[[str], str]] = {
    "a failure": lambda text: failure_card.markdown(filled(failure_card.FailureCard, text)),
    "a retrain": lambda text: summary.markdown(retrained(text)),
    "an evaluation": lambda text: evaluation_report.render_markdown(
        evaluation(text), filled(evaluation_report.ReportContext, text)
    ),
    "ci": lambda text: pages.markdown(filled(CiReport, text)),
    "a report": lambda text: written_report.to_markdown(reported(text)),
    "a postmortem": lambda text: written_report.to_markdown(postmortem.written(filled(postmortem.Postmortem, text))),
}
HTML: dict[str, Callable[[str], str]] = {
    "a comparison": lambda text: comparison_page.render_html(
        filled(Comparison, text), [(text, filled(TrainingCurve, text))] * 2, 0.0
    ),
    "an evaluation": lambda text: evaluation_page.render_html(
        evaluation(text),
        filled(evaluation_report.ReportContext, text),
        EVIDENCE,
        filled(evaluation_page.PageFacts, text),
    ),
    "a contract": lambda text: checked(text).report(),
    "a board": lambda text: board_page.render_html(boarded(text)),
    "a report": lambda text: written_report.to_html(reported(text)),
    "a postmortem": lambda text: written_report.to_html(postmortem.written(filled(postmortem.Postmortem, text))),
    "drills": lambda text: drill_report.to_html(filled(drill_report.DrillReport, text)),
    "a search": lambda text: search_page.render_html(compared(text), 0.0),
    "a search that goes on": lambda text: search_page.render_html(
        SearchSoFar.model_construct(**dict(compared(text))), 0.0, text
    ),
    "a retrain in a notebook": lambda text: retrained(text)._repr_html_(),
    "trials in a notebook": lambda text: searched(text)._repr_html_(),
    "a model in a notebook": lambda text: prediction._card(prediction.ModelVersion(text, text, text), {text: text}),
}


def boarded(text: str) -> Board:
    board = filled(Board, text)
    for histogram in board.tally.figures.steps.durations_s.values():
        histogram.counts = [1] * (len(histogram.bounds_s) + 1)
    # One number of devices alone is not shown.
    board.scaling = {pipeline: 2 * lines for pipeline, lines in board.scaling.items()}
    return board


COMMANDS = re.compile(r"(?m)^\s*::\w[^\n]*::|##\w*\[")


@pytest.mark.parametrize("what", PRINTED)
def test_a_terminal_is_sent_printable_characters_alone(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in NASTY.items():
        for width in (None, 40):
            stream = io.StringIO()
            if width is not None:
                stream.isatty = lambda: True  # type: ignore[method-assign]
            PRINTED[what](text, stream)
            message = stream.getvalue() + capsys.readouterr().out
            message.encode()
            plain = COLOUR.sub("", message).replace("\r\x1b[K", "")
            strange = {each for each in plain if not each.isprintable() and each != "\n"}
            assert not strange and not DIRECTIONS.search(plain), (name, strange)
            assert width is not None or not COMMANDS.search(plain), name


def markdown_elements(page: str) -> list[str]:
    """What a renderer makes of a page, but for its text."""
    shown = []
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(page):
        for each in token.children or [token]:
            if each.type.startswith("html"):
                shown.append(each.content)
            elif each.type not in ("text", "text_special", "hardbreak"):
                shown.append(f"{each.type} {each.info}")
    # Bare links, mentions and emoji's codes are found by some renderers in what is no code.
    bare = re.sub(r"(?s)(`+)(?!`).*?(?<!`)\1(?!`)", "", page)
    assert not re.search(r"(?i)\w://|www\.|@|:[\w+-]*[a-z][\w+-]*:", bare), bare[:500]
    assert not re.search(r"\$\S[^\n]*\S\$|\$\$", bare), "set as mathematics"
    assert not DIRECTIONS.search(page) and all(each.isprintable() or each == "\n" for each in page)
    return shown


@pytest.mark.parametrize("what", MARKDOWN)
def test_a_page_in_markdown_has_no_element_but_its_own(what: str) -> None:
    usual = markdown_elements(MARKDOWN[what](PLAIN))
    for name, text in NASTY.items():
        found = markdown_elements(MARKDOWN[what](text))
        # An error's message may have several lines; then there are more elements, of the same kinds.
        assert found == usual or ("\n" in text and set(found) == set(usual)), name


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.found.append((f"/{tag}",))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment",))


def html_elements(page: str) -> list[tuple[str, ...]]:
    parser = Elements()
    parser.feed(page.encode().decode())
    parser.close()
    assert not DIRECTIONS.search(page) and all(each.isprintable() or each == "\n" for each in page)
    return parser.found


@pytest.mark.parametrize("what", HTML)
def test_a_page_in_html_has_no_element_or_attribute_but_its_own(what: str) -> None:
    usual = html_elements(HTML[what](PLAIN))
    for name, text in NASTY.items():
        if text.isascii() or text.encode(errors="ignore").decode() == text:  # a document's text is UTF-8
            assert html_elements(HTML[what](text)) == usual, name


def test_a_build_server_is_given_xml_of_the_same_elements() -> None:
    def elements(text: str) -> list[tuple[str, ...]]:
        root = ET.fromstring(pages.junit_page(filled(CiReport, text)).encode())
        return [(each.tag, *each.attrib) for each in root.iter()]

    for name, text in NASTY.items():
        assert elements(text) == elements(PLAIN), name


def test_a_program_is_given_json_of_one_line_in_ascii() -> None:
    for text in NASTY.values():
        stream = io.StringIO()
        JsonLines(stream).summary(retrained(text))
        assert stream.getvalue().isascii() and stream.getvalue().count("\n") == 1 and stream.getvalue().isprintable


def test_prefect_is_given_tables_links_and_descriptions_that_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect import artifacts as prefect_artifacts

    given: dict[str, Any] = {}
    monkeypatch.setattr(artifacts, "current_flow_run", object)
    for name in ("create_table_artifact", "create_link_artifact", "create_markdown_artifact"):
        monkeypatch.setattr(prefect_artifacts, name, lambda **named: given.update(named))
    for name, text in NASTY.items():
        artifacts.show_table("key", [{text: text}], text)
        artifacts.show_link("key", f"http://127.0.0.1/{text.encode(errors='replace').decode()}", text, text)
        link = f"[{given['link_text']}]({given['link']})"  # as Prefect writes it
        assert given["link"].isprintable() and not set('()<>[] \\`|"') & set(given["link"]), name
        assert MarkdownIt("commonmark").render(link).count("<a ") == 1, name
        ((key, cell),) = given["table"][0].items()
        assert key.isprintable() and cell.isprintable(), name
        assert set(markdown_elements(given["description"])) <= {"paragraph_open ", "inline ", "paragraph_close "}, name
        artifacts.show_markdown("key", lambda: 1 / 0, "what cannot be made fails nothing")  # type: ignore[arg-type]


@pytest.mark.process
def test_an_argument_that_is_no_utf_8_or_steers_the_terminal_is_refused_as_text() -> None:
    command = [sys.executable, "-m", "headway", "promote", "tiny"]
    ended = subprocess.run([*command, "1", "--why", b"a\xff\x1b[31m"], cwd=REPOSITORY, capture_output=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"headway: argument 5, a\\udcff\\x1b[31m: not UTF-8.")
    ended = subprocess.run([*command, "--x\x1b[31m"], cwd=REPOSITORY, capture_output=True)
    assert ended.returncode == 2 and b"No such option: --x\\x1b[31m" in ended.stderr and b"\x1b" not in ended.stderr


def test_text_stays_what_it_is_where_nothing_is_meant_by_it() -> None:
    for text in (
        "region = north",
        "0.9 [0.8, 0.95]",
        "a_b",
        "C:\\x",
        "Grüße, 世界 🎉",
        "12:30:45",
        "-0.5",
        "a::b",
        "::1",
    ):
        assert plain_text.one_line(text) == text
    for text in ("region = north", "0.9000 [0.8000, 0.9500]", "petal_width", "Grüße, 世界 🎉", "12:30:45", "-0.5"):
        assert plain_text.markdown(text) == text


def test_a_console_takes_no_text_for_markup_however_it_is_given() -> None:
    stream = io.StringIO()
    console = plain_console(stream)
    console.print("[/x] :smile:", Text("\x1b[31m[bold]"), "\u202e", end="|")
    assert stream.getvalue() == "[/x] :smile: \\x1b[31m[bold] \\u202e|"


@pytest.mark.process
def test_only_one_module_makes_a_console_and_only_one_prints() -> None:
    """So that nobody has to remember to escape."""
    found = []
    for path in (each for room in ("flows", "tasks", "data_contracts") for each in (REPOSITORY / room).rglob("*.py")):
        relative = path.relative_to(REPOSITORY).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and relative not in SINKS:
                called = ast.unparse(node.func)
                if called in ("print", "Console", "rich.print", "typer.echo", "typer.secho", "click.echo"):
                    found.append(f"{relative}:{node.lineno}: {called}")
                if called in ("Text.from_markup", "Text.from_ansi", "escape"):
                    found.append(f"{relative}:{node.lineno}: {called}")
            if isinstance(node, ast.ImportFrom) and relative not in SINKS:
                module = node.module or ""
                if module in ("html", "rich", "rich.markup", "rich.markdown", "rich.emoji", "xml.sax.saxutils"):
                    found.append(f"{relative}:{node.lineno}: {module}")
    # Child processes that hand an answer to the one that started them.
    children = ("tasks/registry/timed_graph.py", "tasks/prove/registered_copy.py")
    assert [each for each in found if not each.startswith(children)] == []


def test_what_only_shows_what_was_done_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such style")

    made = filled(champion_moves.MoveReport, PLAIN)
    monkeypatch.setattr(champion_moves, "promote", lambda *_, **__: made)
    monkeypatch.setattr(champion_moves, "print_move", broken)
    decide.promote("tiny", "1", why="x", workspace="/w")
    assert capsys.readouterr().err == (
        "headway: the result could not be shown (ValueError: no such style); what it is about was done.\n"
    )
