"""The report of `headway ci` for a reviewer, as Markdown, and for a build server, as JUnit XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from flows.ci.results import Report, Result

MARKS = {"passed": "✅ passed", "failed": "❌ failed", "skipped": "➖ skipped"}
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_DETAILS = 100
"""A step summary holds a mebibyte."""


def markdown(report: Report) -> str:
    """A heading, a table of all checks, and the details of those that have some; failed ones are open."""
    return "\n".join([*_head(report), *(line for result in report.results for line in _details(result))]) + "\n"


def _head(report: Report) -> Iterator[str]:
    mark = "❌" if report.failed else "✅"
    yield f"## {mark} headway ci {_text(report.pipeline)}: {report.verdict}"
    yield ""
    if report.base:
        commit = f" (`{report.base_commit[:12]}`)" if report.base_commit else ""
        yield f"Compared with `{report.base}`{commit}."
        yield ""
    yield "| check | result | seconds | |"
    yield "|---|---|---:|---|"
    for result in report.results:
        reason = _text(" ".join(result.reason.split()))
        yield f"| {result.check} | {MARKS[result.outcome]} | {result.duration_s:.1f} | {reason} |"


def _details(result: Result) -> Iterator[str]:
    lines = [*(result.reason.splitlines() if "\n" in result.reason else ()), *result.details]
    if not lines:
        return
    more = len(lines) - MAX_DETAILS
    yield ""
    yield f"<details{' open' if result.outcome == 'failed' else ''}><summary>{result.check}</summary>"
    yield ""
    yield from (f"- {_text(line)}" for line in lines[:MAX_DETAILS])
    if more > 0:
        yield f"- and {more:,} more"
    yield ""
    yield "</details>"


def _text(text: str) -> str:
    """Text that no renderer takes for a table's edge, markup or a mention."""
    escaped = re.sub(r"([\\`*_\[\]|])", r"\\\1", text.strip()).replace("\n", " ")
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")


def junit_page(report: Report) -> str:
    """One test suite, one case for each check."""
    count = {
        "tests": str(len(report.results)),
        "failures": str(len(report.failed)),
        "errors": "0",
        "skipped": str(sum(result.outcome == "skipped" for result in report.results)),
        "time": f"{sum(result.duration_s for result in report.results):.3f}",
    }
    in_all = {name: number for name, number in count.items() if name != "skipped"}
    suites = ET.Element("testsuites", {"name": "headway ci", **in_all})
    suite = ET.SubElement(suites, "testsuite", {"name": f"headway ci {report.pipeline}", **count})
    for result in report.results:
        time = f"{result.duration_s:.3f}"
        case = ET.SubElement(suite, "testcase", classname=f"headway.ci.{report.pipeline}", name=result.check, time=time)
        _fill(case, result)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _fill(case: ET.Element, result: Result) -> None:
    first, text = _clean(result.reason.partition("\n")[0]), _clean("\n".join([result.reason, *result.details]))
    if result.outcome == "failed":
        ET.SubElement(case, "failure", message=first, type=result.cause).text = text
    elif result.outcome == "skipped":
        ET.SubElement(case, "skipped", message=first)
    else:
        ET.SubElement(case, "system-out").text = text


def _clean(text: str) -> str:
    return NOT_IN_XML.sub("�", text)
