"""What `headway ci` shows: lines while it works, and its report as Markdown and JUnit XML."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import TextIO

from headway.data_contracts.store import plain_text
from headway.flows.ci.child import JsonDocument
from headway.flows.ci.results import CiCheckResult, CiReport
from headway.flows.console.output import print_line
from headway.flows.report.terminal import Terminal

MARKS = {"passed": "✅ passed", "failed": "❌ failed", "skipped": "➖ skipped"}
MAX_DETAILS = 100
"""A step summary holds a mebibyte."""


def markdown(report: CiReport) -> str:
    """A heading, a table of all checks, and the details of those that have some; failed ones are open."""
    return "\n".join([*_head(report), *(line for result in report.results for line in _details(result))]) + "\n"


def _head(report: CiReport) -> Iterator[str]:
    mark = "❌" if report.failed else "✅"
    yield f"## {mark} headway ci {plain_text.markdown(report.pipeline)}: {report.verdict}"
    yield ""
    if report.base:
        commit = f" ({plain_text.code(report.base_commit[:12])})" if report.base_commit else ""
        yield f"Compared with {plain_text.code(report.base)}{commit}."
        yield ""
    yield "| check | result | seconds | |"
    yield "|---|---|---:|---|"
    for result in report.results:
        reason = plain_text.markdown(" ".join(result.reason.split()))
        yield f"| {result.check} | {MARKS[result.outcome]} | {result.duration_s:.1f} | {reason} |"


def _details(result: CiCheckResult) -> Iterator[str]:
    lines = [*(result.reason.splitlines() if "\n" in result.reason else ()), *result.details]
    if not lines:
        return
    more = len(lines) - MAX_DETAILS
    yield ""
    yield f"<details{' open' if result.outcome == 'failed' else ''}><summary>{result.check}</summary>"
    yield ""
    yield from (f"- {plain_text.markdown(line)}" for line in lines[:MAX_DETAILS])
    if more > 0:
        yield f"- and {more:,} more"
    yield ""
    yield "</details>"


def junit_page(report: CiReport) -> str:
    """One test suite, one case for each check."""
    count = {
        "tests": str(len(report.results)),
        "failures": str(len(report.failed)),
        "errors": "0",
        "skipped": str(sum(result.outcome == "skipped" for result in report.results)),
        "time": f"{sum(result.duration_s for result in report.results):.3f}",
    }
    pipeline = plain_text.one_line(report.pipeline)
    # JUnit's outer element has no attribute for skipped cases.
    in_all = {name: number for name, number in count.items() if name != "skipped"}
    suites = ET.Element("testsuites", {"name": "headway ci", **in_all})
    suite = ET.SubElement(suites, "testsuite", {"name": f"headway ci {pipeline}", **count})
    for result in report.results:
        time = f"{result.duration_s:.3f}"
        case = ET.SubElement(suite, "testcase", classname=f"headway.ci.{pipeline}", name=result.check, time=time)
        _fill(case, result)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _fill(case: ET.Element, result: CiCheckResult) -> None:
    first = plain_text.xml(result.reason.partition("\n")[0])
    text = plain_text.xml("\n".join([result.reason, *result.details]))
    if result.outcome == "failed":
        ET.SubElement(case, "failure", message=first, type=result.cause).text = text
    elif result.outcome == "skipped":
        ET.SubElement(case, "skipped", message=first)
    else:
        ET.SubElement(case, "system-out").text = text


WIDTH = 10


def print_result(result: CiCheckResult, stream: TextIO) -> None:
    first, *more = result.reason.splitlines() or [""]
    print_line(f"{result.check:<{WIDTH}} {result.outcome:<8} {result.duration_s:>7.1f} s   {first}", stream)
    for line in (*more, *result.details):
        print_line(f"{'':<{WIDTH}}   {line}", stream)
    stream.flush()


def print_verdict(report: CiReport, stream: TextIO, *, interrupted: bool) -> None:
    message = "interrupted; temporary files are removed" if interrupted else report.verdict
    print_line(f"\n{report.pipeline}: {message}", stream)


class Progress:
    """Shows the events of a retrain as `headway retrain` does."""

    def __init__(self, stream: TextIO) -> None:
        self._terminal = Terminal(stream)

    def __call__(self, event: JsonDocument) -> None:
        if event.get("event") != "summary":
            self._terminal(event)
