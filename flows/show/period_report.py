"""`headway report`: a week, month or quarter of a workspace, beside the one before: what failed, what it cost, what to
decide.

Made of accounts and refs alone. Flow runs belong to the period in which they ended.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from pydantic import BaseModel

from headway.data_contracts.report.page import State
from headway.data_contracts.store.errors import ConfigError, HeadwayError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count, length, moment, size
from headway.flows.accounts.cost import JOULES_PER_KWH, OVERHEAD, PRODUCTIVE, CostLine, CostLines
from headway.flows.accounts.data_figures import DataFigures
from headway.flows.accounts.figures import WHOLE
from headway.flows.accounts.flow_account import PROBE, FlowAccount
from headway.flows.accounts.kept_accounts import all_accounts, settle
from headway.flows.accounts.objectives import (
    CHECKPOINTS,
    CLASS_OBJECTIVES,
    LEAST_ETTR,
    LEAST_RECOVERIES,
    ORDERLY,
    objectives_of,
)
from headway.flows.accounts.tally import JobClassTally, Tally, share
from headway.flows.config.profiles import HousekeepingSpec, PricesSpec
from headway.flows.report.written_report import Section, Table, WrittenReport
from headway.flows.show.champion_history import HistoryEntry, read_history
from headway.flows.show.status import KeptStatus, read_kept
from headway.tasks.retention import clean
from headway.tasks.retention.reachability import DAY_S

Period = Literal["week", "month", "quarter"]
MONTHS: dict[Period, int] = {"month": 1, "quarter": 3}
MOST_WASTE = 0.05
"""Of device-seconds in recoveries, above which somebody should decide about the cause."""
LONG_HOLD_S = 7 * 86400.0
SLOW_HOST = 1.1
"""Its steps take so many times those of the fastest host of the same pipeline."""
MANY_STALE_BYTES = 10_000_000_000
LEAST_STEPS = 100
"""Of a pipeline on a host, for its mean step to mean anything."""
MAX_FAILURES = 1000
YEARS = range(1970, 9000)
"""Whose months have ones before and after them in Python's calendar."""


class JobClassFigures(BaseModel):
    """Of a job class; None: there was nothing to measure."""

    success: float | None
    in_window: float | None
    """Of retrains that were started for a window those that were done before it closed."""
    num_recoveries: int
    recovery_p95_s: float | None


class Figures(BaseModel):
    """Of a period; None: there was nothing to measure."""

    num_flow_runs: int
    outcomes: dict[str, int]
    success: float | None
    """Of flow runs that neither a person nor data ended those that succeeded."""
    by_class: dict[str, JobClassFigures]
    """Those that had retrains, the most urgent first."""
    ettr: float | None
    """Of device-seconds in training those of steps that count."""
    num_recoveries: int
    recovery_p50_s: float | None
    recovery_p95_s: float | None
    num_checkpoints_verified: int
    num_checkpoints_bad: int
    num_tokens: int
    """Or rows, that count."""
    cost: CostLine


class FailedFlowRun(BaseModel):
    ended_unix_s: float
    pipeline: str
    flow_run: str
    stage: str
    cause: str
    host: str


class HostSteps(BaseModel):
    """How a host does beside the fastest one of the same pipeline."""

    host: str
    pipeline: str
    num_steps: int
    step_s: float
    ratio: float


class DeviceUse(BaseModel):
    """Of a kind of device on a host."""

    name: str
    device_hours: float
    """Paid for."""
    most_devices: int
    """That one flow run had."""
    in_use: float
    """Share of the period in which these were paid for, so far."""


class StaleFiles(BaseModel):
    """What housekeeping would remove with its defaults."""

    num_files: int
    size_bytes: int
    problem: str = ""
    """Why nobody knows."""


class ValidatedData(BaseModel):
    pipeline: str
    validated_unix_s: float
    """When the flow run ended."""
    figures: DataFigures


class ReportedMove(BaseModel):
    model: str
    entry: HistoryEntry


class PeriodReport(BaseModel):
    workspace: str
    period: Period
    begin: str
    """ISO 8601, in UTC."""
    end: str
    is_over: bool
    now: Figures
    before: Figures
    """Of the period before."""
    failed: list[FailedFlowRun]
    """The newest first."""
    causes: dict[str, int]
    by_pipeline: list[CostLine]
    by_cause: list[CostLine]
    devices: list[DeviceUse]
    """Those in use for the longest first."""
    moves: list[ReportedMove]
    hosts: list[HostSteps]
    """The slowest first."""
    data: list[ValidatedData]
    """Of each pipeline, the newest that were validated."""
    kept: KeptStatus
    """Today, whatever the period."""
    stale: StaleFiles
    """Today."""
    decide: list[str]


def day(text: str) -> datetime.date:
    """Raises `ConfigError`: no date."""
    with contextlib.suppress(ValueError):
        found = datetime.date.fromisoformat(text)
        if found.year in YEARS:
            return found
    raise ConfigError(f"{text!r} is no date of this age.", where="--of", advice="Write it as 2026-11-26.")


def bounds(period: Period, of: datetime.date | None, today: datetime.date) -> tuple[datetime.date, datetime.date]:
    """First day, and the first one after it.

    Args:
        of: a day of the period; None: the last one that is over.
    """
    day = of
    if day is None:
        begin, _ = bounds(period, today, today)
        day = begin - datetime.timedelta(days=1)
    if period == "week":
        begin = day - datetime.timedelta(days=day.weekday())
        return begin, begin + datetime.timedelta(days=7)
    months = MONTHS[period]
    begin = day.replace(month=(day.month - 1) // months * months + 1, day=1)
    number = begin.month - 1 + months
    return begin, begin.replace(year=begin.year + number // 12, month=number % 12 + 1)


def read_period(
    workspace_uri: str, period: Period, prices: PricesSpec, of: datetime.date | None = None
) -> PeriodReport:
    """
    Args:
        of: a day of the period, in UTC; None: the last one that is over.

    Raises:
        EnvironmentProblem: there is no workspace.
    """
    workspace = Workspace.existing(workspace_uri)
    settle(workspace)
    today = datetime.datetime.now(datetime.UTC).date()
    begin, end = bounds(period, of, today)
    earlier, _ = bounds(period, begin - datetime.timedelta(days=1), today)
    collected = _Collected(prices)
    now, before = Tally(), Tally()
    for account in all_accounts(workspace):
        if _unix_s(earlier) <= account.end_unix_s < _unix_s(begin):
            before.take(account, prices)
        elif _unix_s(begin) <= account.end_unix_s < _unix_s(end):
            now.take(account, prices)
            collected.take(account)
    kept = read_kept(workspace)
    report = PeriodReport(
        workspace=workspace.uri,
        period=period,
        begin=begin.isoformat(),
        end=end.isoformat(),
        is_over=end <= today,
        now=_figures(now),
        before=_figures(before),
        failed=sorted(collected.failed, key=lambda each: -each.ended_unix_s)[:MAX_FAILURES],
        causes=dict(now.causes.most_common()),
        by_pipeline=collected.by_pipeline.all(),
        by_cause=collected.by_cause.all(),
        devices=collected.devices((min(_unix_s(end), time.time()) - _unix_s(begin)) / 3600),
        moves=list(_moves(workspace, kept, begin.isoformat(), end.isoformat())),
        hosts=slow_hosts(collected.steps),
        data=[collected.data[pipeline] for pipeline in sorted(collected.data)],
        kept=kept,
        stale=_stale(workspace),
        decide=[],
    )
    return report.model_copy(update={"decide": list(_decide(report, time.time()))})


class _Collected:
    """What a tally does not tell apart."""

    def __init__(self, prices: PricesSpec) -> None:
        self.by_pipeline, self.by_cause = CostLines("pipeline", prices), CostLines("cause", prices)
        self._by_device: dict[str, CostLines] = defaultdict(lambda: CostLines("pipeline", prices))
        self._most_devices: dict[str, int] = defaultdict(int)
        self.failed: list[FailedFlowRun] = []
        self.steps: dict[tuple[str, str], tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        self.data: dict[str, ValidatedData] = {}

    def take(self, account: FlowAccount) -> None:
        for lines in (self.by_pipeline, self.by_cause, self._by_device[_device(account)]):
            lines.take(account)
        most = max(self._most_devices[_device(account)], account.goodput.devices)
        self._most_devices[_device(account)] = most
        if account.job_class == PROBE:
            return
        if account.outcome in ("failed", "lost"):
            self.failed.append(
                FailedFlowRun(
                    ended_unix_s=account.end_unix_s,
                    pipeline=account.pipeline,
                    flow_run=account.flow_run,
                    stage=account.stage,
                    cause=account.cause,
                    host=account.host,
                )
            )
        known = self.data.get(account.pipeline)
        if account.data is not None and (known is None or account.end_unix_s > known.validated_unix_s):
            self.data[account.pipeline] = ValidatedData(
                pipeline=account.pipeline, validated_unix_s=account.end_unix_s, figures=account.data
            )
        steps = account.figures.steps
        if WHOLE in steps.durations_s:
            num_steps, sum_s = self.steps[account.pipeline, account.host]
            at = (num_steps + steps.num_steps, sum_s + steps.durations_s[WHOLE].sum_s)
            self.steps[account.pipeline, account.host] = at

    def devices(self, hours: float) -> list[DeviceUse]:
        """
        Args:
            hours: of the period, so far.
        """
        uses = []
        for name, lines in self._by_device.items():
            device_hours = sum(line.device_hours for line in lines.all())
            there_hours = self._most_devices[name] * hours
            in_use = device_hours / there_hours if there_hours > 0 else 0.0
            most = self._most_devices[name]
            uses.append(DeviceUse(name=name, device_hours=device_hours, most_devices=most, in_use=in_use))
        return sorted(uses, key=lambda use: -use.device_hours)


def _device(account: FlowAccount) -> str:
    return f"{account.device} on {account.host}" if account.host else account.device


def _stale(workspace: Workspace) -> StaleFiles:
    policy = HousekeepingSpec()
    try:
        found = clean.plan(workspace, older_than_s=policy.older_than_days * DAY_S, keep_last=policy.keep_last)
    except HeadwayError as error:  # a report has all else
        return StaleFiles(num_files=0, size_bytes=0, problem=error.what)
    return StaleFiles(num_files=len(found.files), size_bytes=sum(each.size_bytes for each in found.files))


def _unix_s(day: datetime.date) -> float:
    return datetime.datetime.combine(day, datetime.time(), datetime.UTC).timestamp()


def _figures(tally: Tally) -> Figures:
    seconds = sorted(each.total_s for each in tally.recoveries)
    whole, bad = tally.checkpoints
    return Figures(
        num_flow_runs=tally.num_flow_runs,
        outcomes=dict(tally.outcomes),
        success=tally.success,
        by_class={name: _class_figures(tally.by_class[name]) for name in sorted(tally.by_class, key=_urgency)},
        ettr=tally.ettr,
        num_recoveries=len(seconds),
        recovery_p50_s=_quantile(seconds, 0.5),
        recovery_p95_s=_quantile(seconds, 0.95),
        num_checkpoints_verified=whole + bad,
        num_checkpoints_bad=bad,
        num_tokens=tally.cost.num_tokens,
        cost=tally.cost,
    )


def _class_figures(tally: JobClassTally) -> JobClassFigures:
    return JobClassFigures(
        success=tally.success,
        in_window=tally.in_window,
        num_recoveries=len(tally.recoveries_s),
        recovery_p95_s=_quantile(sorted(tally.recoveries_s), 0.95),
    )


def _urgency(job_class: str) -> tuple[int, str]:
    known = list(map(str, CLASS_OBJECTIVES))
    return (known.index(job_class) if job_class in known else len(known), job_class)


def _quantile(ascending: list[float], q: float) -> float | None:
    """The smallest value that so many of them do not exceed."""
    return ascending[max(math.ceil(q * len(ascending)) - 1, 0)] if ascending else None


def _moves(workspace: Workspace, kept: KeptStatus, begin: str, end: str) -> Iterator[ReportedMove]:
    for model in kept.models:
        with contextlib.suppress(IntegrityError):  # `headway verify` names it; a report has the other models
            for entry in read_history(workspace.uri, model.model).entries:
                if begin <= entry.when < end:
                    yield ReportedMove(model=model.model, entry=entry)


def slow_hosts(steps: Mapping[tuple[str, str], tuple[int, float]]) -> list[HostSteps]:
    """
    Args:
        steps: by pipeline and host, how many there were and what they took in all, in seconds.
    """
    means = {at: sum_s / number for at, (number, sum_s) in steps.items() if number >= LEAST_STEPS}
    fastest: dict[str, float] = {}
    for (pipeline, _), step_s in means.items():
        fastest[pipeline] = min(step_s, fastest.get(pipeline, step_s))
    slow = [
        HostSteps(host=host, pipeline=pipeline, num_steps=steps[pipeline, host][0], step_s=step_s, ratio=ratio)
        for (pipeline, host), step_s in means.items()
        if fastest[pipeline] > 0 and (ratio := step_s / fastest[pipeline]) >= SLOW_HOST
    ]
    return sorted(slow, key=lambda each: -each.ratio)


def _decide(report: PeriodReport, now_unix_s: float) -> Iterator[str]:
    """What somebody has to decide about, the most urgent first."""
    kept, now = report.kept, report.now
    held = {hold.pipeline for hold in kept.held}
    for damaged in kept.scrub.damaged if kept.scrub else ():
        yield f"{damaged.path} is damaged, and {damaged.needed_by} needs it: bring it back from a copy."
    for failed in (each for each in kept.failed if each.pipeline not in held):
        yield f"{failed.pipeline}: its newest retrain failed ({failed.failure.cause}). Mend it, or hold the pipeline."
    for waiting in (each for each in kept.waiting if each.starving):
        yield f"{waiting.pipeline}: its windows close before a run is finished. Lengthen them, or make the run shorter."
    for model in (each for each in kept.models if each.waits is not None):
        yield f"{model.model}: version {model.waits} waits for headway promote or headway refuse."
    for hold in kept.held:
        if hold.since and now_unix_s - datetime.datetime.fromisoformat(hold.since).timestamp() > LONG_HOLD_S:
            yield f"{hold.pipeline}: {hold.by} holds it since {hold.since}. Release it, or take it out of the schedule."
    for name, of_class in now.by_class.items():
        target = objectives_of(name)
        if of_class.success is not None and of_class.success < target.success:
            causes = {cause: number for cause, number in report.causes.items() if cause not in ORDERLY}
            most = max(causes, key=lambda cause: causes[cause])
            yield (
                f"{_percent(of_class.success)} of {name} retrains succeeded, {_percent(target.success)} is the "
                f"objective: the most frequent cause of all is {most or 'unknown'}, {causes[most]:,} times."
            )
        in_window, wanted = of_class.in_window, target.in_window
        if in_window is not None and wanted is not None and in_window < wanted:
            yield (
                f"{_percent(in_window)} of {name} retrains were done before their window closed, "
                f"{_percent(wanted)} is the objective: lengthen windows, or make runs shorter."
            )
        slow_s = of_class.recovery_p95_s
        if slow_s is not None and of_class.num_recoveries >= LEAST_RECOVERIES and slow_s > target.recovery_p95_s:
            yield (
                f"Recoveries of {name} retrains took {length(slow_s)} at the 95th percentile, "
                f"{length(target.recovery_p95_s)} is the objective: headway goodput says of a run what took them."
            )
    whole = share(now.num_checkpoints_verified - now.num_checkpoints_bad, now.num_checkpoints_verified)
    if whole is not None and whole < CHECKPOINTS.target:
        yield f"{count(now.num_checkpoints_bad, 'checkpoint')} of {now.num_checkpoints_verified:,} failed verification."
    if now.ettr is not None and now.ettr < LEAST_ETTR:
        yield (
            f"{_percent(now.ettr)} of training time were steps that count, {_percent(LEAST_ETTR)} is the objective: "
            "headway goodput says of a run what took the rest."
        )
    paid = now.cost.device_hours
    for line in report.by_cause:
        if line.name not in (PRODUCTIVE, OVERHEAD) and paid and line.device_hours / paid > MOST_WASTE:
            part = _percent(line.device_hours / paid)
            yield f"Recoveries from {line.name or 'unknown'} took {part} of what was paid for."
    for each in report.data:
        if warned := each.figures.broken.get("warning"):
            number = each.figures.num_broken.get("warning", len(warned))
            yield (
                f"{each.pipeline}: {count(number, 'rule')} of its contract warned of the newest data, first "
                f"{warned[0]}. Mend the data, or the rule."
            )
    if report.stale.size_bytes > MANY_STALE_BYTES:
        yield (
            f"{count(report.stale.num_files, 'file')} that nothing needs take {size(report.stale.size_bytes)}: "
            "run headway clean, or let a profile's housekeeping do it."
        )
    for slow in report.hosts[:3]:
        yield f"{slow.host} takes {slow.ratio:.2f} times as long for a step of {slow.pipeline} as the fastest host."


def _percent(part: float | None) -> str:
    return "none" if part is None else f"{100 * part:.1f} %"


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
            (_percent(now.success), "succeeded, where neither a person nor data ended it"),
            (_percent(now.ettr), "of training time were steps that count"),
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
    ("retrains that succeeded", lambda of: of.success, _percent, ""),
    ("training time of steps that count", lambda of: of.ettr, _percent, _percent(LEAST_ETTR)),
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
    for name in sorted({*report.now.by_class, *report.before.by_class}, key=_urgency):
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
    target, none = objectives_of(name), _class_figures(JobClassTally())
    now, before = (of.by_class.get(name, none) for of in (report.now, report.before))
    yield (f"{name} retrains that succeeded", _percent(now.success), _percent(before.success), _percent(target.success))
    if target.in_window is not None and (now.in_window, before.in_window) != (None, None):
        both = (_percent(now.in_window), _percent(before.in_window))
        yield (f"{name} retrains done before their window closed", *both, _percent(target.in_window))
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
                _percent(figures.quarantined_ratio),
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
        (use.name, f"{use.device_hours:,.2f}", f"{use.most_devices:,}", _percent(use.in_use)) for use in report.devices
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
