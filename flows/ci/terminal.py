"""What a person sees while `headway ci` works: a line a check, and the retrains' own lines below."""

from __future__ import annotations

from typing import TextIO

from flows.ci.child import Answer
from flows.ci.results import Report, Result
from flows.output import print_line
from flows.terminal import Terminal

WIDTH = 10


def print_result(result: Result, stream: TextIO) -> None:
    first, *more = result.reason.splitlines() or [""]
    print_line(f"{result.check:<{WIDTH}} {result.outcome:<8} {result.duration_s:>7.1f} s   {first}", stream)
    for line in (*more, *result.details):
        print_line(f"{'':<{WIDTH}}   {line}", stream)
    stream.flush()


def print_verdict(report: Report, stream: TextIO, *, interrupted: bool) -> None:
    said = "interrupted; temporary files are removed" if interrupted else report.verdict
    print_line(f"\n{report.pipeline}: {said}", stream)


class Progress:
    """Shows the events of a retrain as `headway retrain` does."""

    def __init__(self, stream: TextIO) -> None:
        self._terminal = Terminal(stream)

    def __call__(self, event: Answer) -> None:
        if event.get("event") != "summary":
            self._terminal(event)
