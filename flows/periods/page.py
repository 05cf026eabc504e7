"""The report of a period for people: the same sections as a page and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headway.data_contracts.report.page import State
from headway.data_contracts.types.report_text import count, length, moment, size
from headway.flows.accounts.cost import JOULES_PER_KWH, OVERHEAD, PRODUCTIVE
from headway.flows.accounts.objectives import (
    LEAST_ETTR,
    objectives_of,
)
from headway.flows.periods.record import Figures, JobClassFigures, PeriodReport, percent, urgency
from headway.flows.report.written_report import Section, Table, WrittenReport


def written(report: PeriodReport, *, has_prices: bool) -> WrittenReport:
    """For people."""
    now = report.now
    name = f"{report.period} from {report.begin}"
    state: State = "good"
    if report.decide:
        state = "bad" if report.kept.failed or (report.kept.scrub and report.kept.scrub.damaged) else "warn"
    word = f"{count(len(report.decide), 'thing')} to decide" if report.decide else "Nothing to decide"
    until = "" if report.is_over else " So far: it is not over."
    lead = f"{count(now.num_flow_runs, 'flow run')} ended, {now.outcomes.get('succeeded', 0):,} of them well.{until}"
    return WrittenReport(
        title=f"Headway: {name}",
        kicker=f"{report.workspace}, {report.begin} to {report.end}, UTC",
        state=state,
        word=word,
        lead=lead,
        tiles=[
            (f"{now.num_flow_runs:,}", "flow runs that ended"),
            (percent(now.success), "succeeded, where neither a person nor data ended it"),
            (percent(now.ettr), "of training time were steps that count"),
            (f"{now.cost.device_hours:,.1f}", "device-hours paid for"),
            *([(f"{now.cost.usd:,.2f}", "USD")] if has_prices else []),
        ],
        sections=[
            Section("To decide", points=report.decide),
            _trends(report, has_prices=has_prices),
            _failures(report),
            _data(report),
            _spent(report, has_prices=has_prices),
            _champions(report),
            _machines(report),
            _stored(report),
        ],
    )


ROWS: tuple[tuple[str, Callable[[Figures], float | None], Callable[[float], str], str], ...] = (
    ("flow runs that ended", lambda of: of.num_flow_runs, "{:,.0f}".format, ""),
    ("retrains that succeeded", lambda of: of.success, percent, ""),
    ("training time of steps that count", lambda of: of.ettr, percent, percent(LEAST_ETTR)),
    ("recoveries", lambda of: of.num_recoveries, "{:,.0f}".format, ""),
    ("recovery, median", lambda of: of.recovery_p50_s, length, ""),
    ("recovery, 95th percentile", lambda of: of.recovery_p95_s, length, ""),
    ("checkpoints verified", lambda of: of.num_checkpoints_verified, "{:,.0f}".format, ""),
    ("checkpoints that failed verification", lambda of: of.num_checkpoints_bad, "{:,.0f}".format, ""),
    ("tokens or rows that count", lambda of: of.num_tokens, "{:,.0f}".format, ""),
    ("device-hours paid for", lambda of: of.cost.device_hours, "{:,.1f}".format, ""),
)


def _trends(report: PeriodReport, *, has_prices: bool) -> Section:
    rows: list[tuple[str, ...]] = []
    for name, figure, shown, target in ROWS:
        now, before = figure(report.now), figure(report.before)
        rows.append((name, "none" if now is None else shown(now), "none" if before is None else shown(before), target))
    for name in sorted({*report.now.by_class, *report.before.by_class}, key=urgency):
        rows += _class_rows(report, name)
    if has_prices:
        for name, part in (("cost", "usd"), ("of it productive", "productive_usd"), ("of it wasted", "wasted_usd")):
            both = [f"{getattr(of.cost, part):,.2f} USD" for of in (report.now, report.before)]
            rows.append((name, *both, ""))
    if report.now.cost.joules is not None:
        both = [f"{(of.cost.joules or 0.0) / JOULES_PER_KWH:,.2f} kWh" for of in (report.now, report.before)]
        rows.append(("energy, by the declared power of devices", *both, ""))
    titles = ("", f"this {report.period}", f"the {report.period} before", "objective")
    return Section("Figures", table=Table(titles, rows))


def _class_rows(report: PeriodReport, name: str) -> Iterator[tuple[str, ...]]:
    target, none = objectives_of(name), JobClassFigures()
    now, before = (of.by_class.get(name, none) for of in (report.now, report.before))
    yield (f"{name} retrains that succeeded", percent(now.success), percent(before.success), percent(target.success))
    if target.in_window is not None and (now.in_window, before.in_window) != (None, None):
        both = (percent(now.in_window), percent(before.in_window))
        yield (f"{name} retrains done before their window closed", *both, percent(target.in_window))
    both_s = (now.recovery_p95_s, before.recovery_p95_s)
    if both_s != (None, None):
        shown = ("none" if seconds is None else length(seconds) for seconds in both_s)
        yield (f"{name} retrains: recovery, 95th percentile", *shown, length(target.recovery_p95_s))


def _failures(report: PeriodReport) -> Section:
    if not report.failed:
        return Section("Failed flow runs", paragraphs=["None."])
    causes = ", ".join(f"{cause or 'unknown'} {number:,}" for cause, number in report.causes.items())
    rows = [
        (moment(each.ended_unix_s), each.pipeline, each.stage, each.cause or "unknown", each.host, each.flow_run)
        for each in report.failed
    ]
    titles = ("ended, UTC", "pipeline", "stage", "cause", "host", "flow run")
    return Section("Failed flow runs", paragraphs=[f"By cause: {causes}."], table=Table(titles, rows, len(titles)))


def _spent(report: PeriodReport, *, has_prices: bool) -> Section:
    rows = []
    for line in report.by_pipeline:
        usd = (f"{line.usd:,.2f}", f"{line.wasted_usd:,.2f}") if has_prices else ()
        rows.append((line.name, f"{line.num_flow_runs:,}", f"{line.device_hours:,.2f}", *usd))
    titles = ("pipeline", "flow runs", "device-hours", *(("USD", "of it wasted") if has_prices else ()))
    wasted = [
        f"{line.name or 'unknown'} {line.device_hours:,.2f} h"
        for line in report.by_cause
        if line.name not in (PRODUCTIVE, OVERHEAD)
    ]
    words = [f"Recoveries took, by cause: {', '.join(wasted)}."] if wasted else []
    return Section("What it took", paragraphs=words, table=Table(titles, rows))


def _data(report: PeriodReport) -> Section:
    rows = []
    for each in report.data:
        figures = each.figures
        broken = [f"{severity} {number:,}" for severity, number in figures.num_broken.items() if number]
        # Not the first: what is kept is sorted by name.
        most = max(figures.drift, key=lambda rule: figures.drift[rule], default="")
        rows.append(
            (
                each.pipeline,
                moment(each.validated_unix_s),
                f"{figures.num_rows:,}",
                percent(figures.quarantined_ratio),
                ", ".join(broken) or "none",
                f"{most} {figures.drift[most]:.2f}" if most else "not measured",
            )
        )
    titles = ("pipeline", "validated, UTC", "rows", "left out", "rules that do not hold", "largest drift (PSI)")
    words = [] if rows else ["No contract was asked."]
    return Section("Data", paragraphs=words, table=Table(titles, rows))


def _champions(report: PeriodReport) -> Section:
    rows = [
        (
            each.entry.when,
            each.model,
            each.entry.event,
            "" if each.entry.to_version is None else f"v{each.entry.to_version}",
            each.entry.by,
            each.entry.why,
        )
        for each in report.moves
    ]
    today = [
        f"{model.model}: v{model.champion} since {model.champion_since}"
        for model in report.kept.models
        if model.champion is not None
    ]
    titles = ("when, UTC", "model", "what", "version", "by", "why")
    words = [] if rows else ["No champion was moved, and none decided against."]
    return Section("Champions", paragraphs=words, table=Table(titles, rows, len(titles)), points=today)


def _machines(report: PeriodReport) -> Section:
    rows = [
        (use.name, f"{use.device_hours:,.2f}", f"{use.most_devices:,}", percent(use.in_use)) for use in report.devices
    ]
    slow = [
        f"{each.host}: {each.step_s * 1000:,.1f} ms a step of {each.pipeline}, {each.ratio:.2f} times the fastest "
        f"host's, over {each.num_steps:,} steps"
        for each in report.hosts
    ]
    titles = ("device", "device-hours", "most in one flow run", f"of the {report.period} in use")
    return Section("Machines", table=Table(titles, rows), points=slow)


def _stored(report: PeriodReport) -> Section:
    stale = report.stale
    if stale.problem:
        return Section("Stale files", paragraphs=[f"Nobody knows: {stale.problem}"])
    words = f"{count(stale.num_files, 'file')} of {size(stale.size_bytes)}" if stale.num_files else "None"
    return Section("Stale files", paragraphs=[f"{words}. headway clean names them, and removes them with --apply."])
