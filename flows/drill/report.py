"""What drills came to: a document that carries its own digest, a page and lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictFloat, StrictInt
from rich.console import Console
from rich.table import Table

from headway.data_contracts.store.digests import sha256_of
from headway.data_contracts.types.report_text import count, length, moment
from headway.flows.console.console import headed, plain_console, print_table
from headway.flows.report import written_report
from headway.flows.report.written_report import Section, WrittenReport

FORMAT_VERSION = 1
DIGEST = "sha256"
"""The key of the document's digest, over its canonical JSON without that key. It proves no author."""

Figure = StrictBool | StrictInt | StrictFloat | None
"""None: it could not be measured."""


class EvaluatedObjective(BaseModel):
    """An objective, and what was measured."""

    figure: str
    text: str
    limit: float | None
    """None: a yes is wanted."""
    unit: str = ""
    measured: Figure
    is_met: bool


class AlertFigure(BaseModel):
    """What an alert looks at, before and after: whether it fires depends on its threshold, too."""

    alert: str
    severity: str
    family: str
    """Of metrics, with the labels that count."""
    before: float
    after: float
    raised: bool


class DrillResult(BaseModel):
    """What came of one failure mode."""

    mode: str
    """`F1` to `F10`."""
    title: str
    state: Literal["passed", "missed", "skipped"]
    reason: str = ""
    """Why it was skipped, or what kept it from being measured."""
    planted: str = ""
    """What was done, to whom, when."""
    detected: bool = False
    cause: str = ""
    """As ledger, account or failure card name it."""
    message: str = ""
    """Their words."""
    figures: dict[str, Figure] = {}
    objectives: list[EvaluatedObjective] = []
    alert: AlertFigure | None = None
    runbooks: list[str] = []
    exit_codes: list[int] = []
    """Of the commands that ran for it, in order."""
    took_s: float = 0.0


class DrillReport(BaseModel):
    """All drills of one command."""

    format_version: int = FORMAT_VERSION
    headway: str
    """Its version."""
    host: str
    launcher: str
    seed: int
    begin_unix_s: float
    end_unix_s: float
    kept: str = ""
    """Where the sandbox is; empty: it is gone."""
    drills: list[DrillResult] = Field(default_factory=list)

    @property
    def missed(self) -> list[DrillResult]:
        return [drill for drill in self.drills if drill.state == "missed"]

    @property
    def passed(self) -> list[DrillResult]:
        return [drill for drill in self.drills if drill.state == "passed"]


def document(report: DrillReport) -> dict[str, Any]:
    """As JSON, with its digest."""
    content = report.model_dump(mode="json")
    return {**content, DIGEST: sha256_of(content)}


def has_its_digest(value: dict[str, Any]) -> bool:
    """Whether a document is as it was written."""
    content = {name: part for name, part in value.items() if name != DIGEST}
    return bool(value.get(DIGEST) == sha256_of(content))


def shown(measured: Figure, unit: str = "") -> str:
    if measured is None:
        return "not measured"
    if isinstance(measured, bool):
        return "yes" if measured else "no"
    figure = f"{measured:,}" if isinstance(measured, int) else f"{measured:.3g}"
    return f"{figure} {unit}".rstrip()


def _limit(objective: EvaluatedObjective) -> str:
    return "yes" if objective.limit is None else f"at most {objective.limit:g} {objective.unit}".rstrip()


def _outcome(drill: DrillResult) -> str:
    if drill.state == "skipped":
        return drill.reason
    misses = [f"{each.text}: {shown(each.measured, each.unit)}" for each in drill.objectives if not each.is_met]
    return "; ".join([*filter(None, [drill.reason]), *misses]) or drill.planted


def print_report(report: DrillReport, console: Console | None = None) -> None:
    console = console or plain_console()
    console.print(headed(_word(report), f"  seed {report.seed}, launcher {report.launcher}"))
    console.print()
    table = Table("", "failure", "came to", "detected", "new step", "steps again", "same bits", "", box=None)
    for drill in report.drills:
        table.add_row(drill.mode, drill.title, drill.state, *_in_short(drill), _outcome(drill))
    print_table(console, table)
    if report.kept:
        console.print(f"\nkept     {report.kept}")


def _in_short(drill: DrillResult) -> list[str]:
    if drill.state == "skipped":
        return [""] * 4
    units = {"detect_s": "s", "recover_s": "s", "lost_steps": "", "equal_bits": ""}
    return [shown(drill.figures[name], unit) if name in drill.figures else "" for name, unit in units.items()]


def _word(report: DrillReport) -> str:
    skipped = len(report.drills) - len(report.passed) - len(report.missed)
    missed = f", {len(report.missed)} missed an objective" if report.missed else ""
    return f"{count(len(report.passed), 'drill')} passed{missed}" + (f", {skipped} skipped" if skipped else "")


def to_html(report: DrillReport) -> str:
    """One page that needs nothing else."""
    return written_report.to_html(written(report))


def written(report: DrillReport) -> WrittenReport:
    digest = document(report)[DIGEST]
    return WrittenReport(
        title="Headway: drills",
        kicker=f"{report.host}, launcher {report.launcher}, seed {report.seed}, {moment(report.begin_unix_s)} UTC",
        state="bad" if report.missed else "good" if report.passed else "warn",
        word=_word(report),
        lead=", ".join(f"{drill.mode} {drill.title}" for drill in report.missed)
        or "Each failure was planted in a sandbox, in front of the command as it is.",
        tiles=[
            (f"{len(report.passed)}", "passed"),
            (f"{len(report.missed)}", "missed an objective"),
            (f"{len(report.drills) - len(report.passed) - len(report.missed)}", "skipped"),
            (length(report.end_unix_s - report.begin_unix_s), "in all"),
        ],
        sections=[
            _overview(report.drills),
            *(_section(drill) for drill in report.drills),
            Section("Document", [f"Headway {report.headway}. The JSON beside this page has sha256 {digest}."]),
        ],
    )


def _overview(drills: Sequence[DrillResult]) -> Section:
    titles = ("", "Failure", "Came to", "Detected", "First new step", "Steps again", "Same bits", "Alert's figure")
    rows = [
        (drill.mode, drill.title, drill.state, *_in_short(drill), "" if drill.alert is None else _raised(drill.alert))
        for drill in drills
    ]
    return Section("All drills", table=written_report.Table(titles, rows, num_words=3))


def _raised(alert: AlertFigure) -> str:
    return "raised" if alert.raised else "not raised"


def _section(drill: DrillResult) -> Section:
    facts = [drill.reason, drill.planted and f"Planted: {drill.planted}.", drill.message and f"Said: {drill.message}"]
    if drill.alert is not None:
        alert = drill.alert
        facts.append(
            f"{alert.alert} ({alert.severity}) looks at {alert.family}: {alert.before:g}, then {alert.after:g}."
        )
    rows = [
        ("" if each.is_met else "missed", each.text, _limit(each), shown(each.measured, each.unit))
        for each in drill.objectives
    ]
    return Section(
        f"{drill.mode} {drill.title}: {drill.state}",
        [*filter(None, facts)],
        written_report.Table(("", "Objective", "Limit", "Measured"), rows, num_words=2),
        [f"Runbook: {place}" for place in drill.runbooks],
    )
