"""What a person sees while `headway ci` works: a line a check, and the retrains' own lines below."""

from __future__ import annotations

from typing import TextIO

from headway.flows.ci.child import JsonDocument
from headway.flows.ci.results import CiCheckResult, CiReport
from headway.flows.console.output import print_line
from headway.flows.report.terminal import Terminal

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
