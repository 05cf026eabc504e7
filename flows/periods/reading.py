"""A week, month or quarter of a workspace, read from accounts, refs and a listing of its files.

Flow runs belong to the period in which they ended.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

from headway.data_contracts.store.errors import ConfigError, HeadwayError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.cost import CostLines
from headway.flows.accounts.figures import WHOLE
from headway.flows.accounts.flow_account import PROBE, FlowAccount
from headway.flows.accounts.kept_accounts import all_accounts, settle
from headway.flows.accounts.tally import JobClassTally, Tally
from headway.flows.config.calendar_periods import Period, bounds_of
from headway.flows.config.profiles import HousekeepingSpec, PricesSpec
from headway.flows.periods.decisions import decisions
from headway.flows.periods.record import (
    DeviceUse,
    FailedFlowRun,
    Figures,
    HostSteps,
    JobClassFigures,
    PeriodReport,
    ReportedMove,
    StaleFiles,
    ValidatedData,
    urgency,
)
from headway.flows.show.champion_history import read_history
from headway.flows.show.status import KeptStatus, read_kept
from headway.tasks.retention import clean
from headway.tasks.retention.reachability import DAY_S

SLOW_HOST = 1.1
"""Its steps take so many times those of the fastest host of the same pipeline."""
LEAST_STEPS = 100
"""Of a pipeline on a host, for its mean step to mean anything."""
MAX_FAILURES = 1000
YEARS = range(1970, 9000)
"""Whose months have ones before and after them in Python's calendar."""


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
    if of is None:
        begin, _ = bounds_of(period, today)
        of = begin - datetime.timedelta(days=1)
    return bounds_of(period, of)


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
    return report.model_copy(update={"decide": list(decisions(report, time.time()))})


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
        return StaleFiles(num_files=0, size_bytes=0, problem=str(error))
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
        by_class={name: _class_figures(tally.by_class[name]) for name in sorted(tally.by_class, key=urgency)},
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
