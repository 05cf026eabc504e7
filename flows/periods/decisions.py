"""What somebody has to decide about after a period, the most urgent first. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from headway.data_contracts.types.report_text import count, length, size
from headway.flows.accounts.cost import OVERHEAD, PRODUCTIVE
from headway.flows.accounts.objectives import (
    CHECKPOINTS,
    LEAST_ETTR,
    LEAST_RECOVERIES,
    ORDERLY,
    objectives_of,
)
from headway.flows.accounts.tally import share
from headway.flows.periods.record import PeriodReport, percent

MOST_WASTE = 0.05
"""Of device-seconds in recoveries, above which somebody should decide about the cause."""
LONG_HOLD_S = 7 * 86400.0
MANY_STALE_BYTES = 10_000_000_000


def decisions(report: PeriodReport, now_unix_s: float) -> Iterator[str]:
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
                f"{percent(of_class.success)} of {name} retrains succeeded, {percent(target.success)} is the "
                f"objective: the most frequent cause of all is {most or 'unknown'}, {causes[most]:,} times."
            )
        in_window, wanted = of_class.in_window, target.in_window
        if in_window is not None and wanted is not None and in_window < wanted:
            yield (
                f"{percent(in_window)} of {name} retrains were done before their window closed, "
                f"{percent(wanted)} is the objective: lengthen windows, or make runs shorter."
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
            f"{percent(now.ettr)} of training time were steps that count, {percent(LEAST_ETTR)} is the objective: "
            "headway goodput says of a run what took the rest."
        )
    paid = now.cost.device_hours
    for line in report.by_cause:
        if line.name not in (PRODUCTIVE, OVERHEAD) and paid and line.device_hours / paid > MOST_WASTE:
            part = percent(line.device_hours / paid)
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
