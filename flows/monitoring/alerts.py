"""What wakes a person, and what waits for the morning: each alert with its condition, words and runbook. Pure.

A page is what somebody has to act on now, and each has one root cause; a ticket is read on a working day. Conditions
name families of `families`, and totals that `rules` records. Those of a pipeline end when somebody holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from textwrap import indent
from typing import Literal, get_args

from headway.flows.accounts.objectives import CLASS_OBJECTIVES, LEAST_ETTR, LEAST_RECOVERIES, OBJECTIVES, Severity
from headway.flows.accounts.probe_records import LATE_INTERVALS, LATE_SLACK_S
from headway.flows.monitoring.burn_rates import BUDGET_WINDOW, burning
from headway.flows.monitoring.families import SEVERE_XIDS

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
Group = Literal["now", "state", "days"]
"""How soon an alert has to be seen, and so how often its condition is looked at."""

SILENCE_LIMIT_S = 36 * 3600
"""Of a pipeline that has no limit of its own: a nightly retrain, and half a day of patience."""
FULL_BYTES = 2_000_000_000
"""Fewer free bytes are a full disk: a checkpoint and its successor have to fit beside each other."""
NO_STEP_S = 900
"""Longer than hang detection, another attempt, its restore and the steps to make again take together."""
NO_SIGN_S = 600
"""Hang detection ends a silent rank after two minutes; whoever is silent for longer is not being watched."""
LEAST_DEVICE_S = 4 * 3600
"""Of a day's training, for its ratio to mean anything: starts are most of what a short run takes."""

OLDEST_CHECK_S = 30 * 86400
"""Since a file was last read again: a backup of a month ago is still there."""
SCRUB_SILENCE_S = 3 * 86400
"""Of a scrub that is daily."""
LEAST_COST_USD = 10
"""Of a day that may be out of line: less is not worth a ticket."""

_NOT_HELD = "unless on (pipeline, job, instance) headway_pipeline_held == 1"
_OF_PIPELINE = "on (pipeline, job, instance)"
_IS_TRAINING = 'and on (pipeline, job, instance) train_run_info{stage="launch"} == 1'


def _recoveries_take_long(of: str, limit_s: float) -> str:
    def of_a_day(part: str) -> str:
        family = f"train_recovery_duration_seconds_{part}"
        return f'sum without (stage) (increase({family}{{stage="total", job_class="{of}"}}[1d]))'

    return (
        f"histogram_quantile(0.95, {of_a_day('bucket')}) > {limit_s:g}\nand {of_a_day('count')} >= {LEAST_RECOVERIES}"
    )


def _checkpoint_is_old(of: str, limit_s: float) -> str:
    """A pipeline whose class nobody wrote down is a standard one."""
    others = "|".join(each for each in CLASS_OBJECTIVES if each != "standard")
    is_of_class = f'and {_OF_PIPELINE} headway_pipeline_info{{job_class="{of}"}}'
    if of == "standard":
        is_of_class = f'unless {_OF_PIPELINE} headway_pipeline_info{{job_class=~"{others}"}}'
    return (
        f"time() - train_checkpoint_last_durable_timestamp_seconds > {limit_s:g}\n"
        f"and {_OF_PIPELINE} time() - train_run_stage_since_timestamp_seconds > {limit_s:g}\n"
        f"{_IS_TRAINING}\n{is_of_class}"
    )


def _any_class(condition: Callable[[str, float], str], limits_s: Mapping[str, float]) -> str:
    return "\nor\n".join(f"(\n{indent(condition(*each), '  ')}\n)" for each in limits_s.items())


def _with_owner(expr: str) -> str:
    """The same condition, with owner and job class of its pipeline as labels where they are known."""
    return (
        f"(\n{indent(expr, '  ')}\n)\n* {_OF_PIPELINE} group_left (owner, job_class) headway_pipeline_info\n"
        f"or\n(\n{indent(expr, '  ')}\n)\nunless {_OF_PIPELINE} headway_pipeline_info"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    name: str
    """Its heading in the runbooks, too."""
    severity: Severity
    group: Group
    expr: str
    lasts: str = "0s"
    """How long its condition has to hold, in Prometheus's form."""
    summary: str
    """One line: what, and of what."""
    description: str
    """Where it can be seen, and the next step."""


PAGES = (
    Alert(
        name="RetrainFailed",
        severity="page",
        group="now",
        expr=f"headway_retrain_failed_timestamp_seconds\n{_NOT_HELD}",
        summary="{{ $labels.pipeline }}: a retrain failed, and none has finished since.",
        description=(
            "It failed in stage {{ $labels.stage }}, cause {{ $labels.cause }}. The champion stays. "
            "Run `headway status` on {{ $labels.instance }} and follow its failure card."
        ),
    ),
    Alert(
        name="RetrainsFailInARow",
        severity="page",
        group="state",
        expr=(
            "increase(pipeline:runs_failed:total[1d]) >= 3\n"
            "unless increase(pipeline:runs_succeeded:total[1d]) > 0\n"
            f"{_NOT_HELD}"
        ),
        summary="{{ $labels.pipeline }}: {{ $value | printf `%.0f` }} retrains failed within a day, and none finished.",
        description=(
            "Another try will fail in the same way. Run `headway status`, compare the failure cards, and hold the "
            "pipeline until the cause is mended."
        ),
    ),
    Alert(
        name="FailureCascade",
        severity="page",
        group="now",
        expr=(
            "count without (pipeline, stage, cause) (\n"
            "  max without (stage, cause) (time() - headway_retrain_failed_timestamp_seconds) < 3600\n"
            ") >= 3"
        ),
        summary="{{ $value }} pipelines of {{ $labels.instance }} failed within an hour.",
        description=(
            "They share something that broke: the disk, the registry, the Prefect server, the network or the machine. "
            "Run `headway doctor`, and look for one cause before you look at pipelines."
        ),
    ),
    Alert(
        name="CheckpointCorrupt",
        severity="page",
        group="now",
        expr="increase(workspace:checkpoints_corrupt:total[1h]) > 0",
        summary="{{ $value | printf `%.0f` }} checkpoints were quarantined within an hour on {{ $labels.instance }}.",
        description=(
            "Bytes differ from their digest, so the disk, its controller or memory may be failing. The run goes on "
            "from an older checkpoint. Run `headway logs` to see which file it was, and check the machine's disk."
        ),
    ),
    Alert(
        name="StoredFileDamaged",
        severity="page",
        group="now",
        expr="headway_scrub_damaged_files > 0",
        summary="{{ $value | printf `%.0f` }} stored files on {{ $labels.instance }} are gone or altered.",
        description=(
            "A champion, the one before it, or an unfinished run stands on them. Run `headway scrub` to see which and "
            "who needs them, and check the disk before anything is written there."
        ),
    ),
    Alert(
        name="ProcessStopped",
        severity="page",
        group="now",
        expr='train_process_problem{state="stopped"} == 1',
        summary="{{ $labels.pipeline }}: {{ $labels.role }} is stopped by a signal, and makes no step.",
        description=(
            "It does nothing and answers nobody, and the other ranks wait for it. `headway status` on "
            "{{ $labels.instance }} names its pid, and the command that continues it."
        ),
    ),
    Alert(
        name="RunWithoutProgress",
        severity="page",
        group="state",
        expr=(
            "(\n"
            f"  time() - train_run_last_step_timestamp_seconds > {NO_STEP_S}\n"
            "  and on (pipeline, job, instance)\n"
            f"  time() - train_run_stage_since_timestamp_seconds > {NO_STEP_S}\n"
            "  or\n"
            f"  time() - min without (rank) (train_rank_heartbeat_timestamp_seconds) > {NO_SIGN_S}\n"
            ")\n"
            f"{_IS_TRAINING}"
        ),
        lasts="1m",
        summary="{{ $labels.pipeline }}: no progress for {{ $value | humanizeDuration }}, and the run has not ended.",
        description=(
            "Hang detection should have ended the attempt by now. Run `headway status` on {{ $labels.instance }}, "
            "then `headway logs --follow`; stop the run if nobody writes."
        ),
    ),
    Alert(
        name="DeviceFails",
        severity="page",
        group="now",
        expr=(
            "count without (xid) (\n"
            f'  increase(train_device_xid_errors_total{{xid=~"{"|".join(SEVERE_XIDS)}"}}[1h]) > 0\n'
            ")\n"
            "or train_node_devices_answer == 0"
        ),
        lasts="1m",
        summary="{{ $labels.node }}: device {{ $labels.device }} failed, or its driver does not answer.",
        description=(
            "Its driver reported an error after which it is not to be used: memory beyond repair, NVLink, or off the "
            "bus. Run `headway status` to see which run is on it, and take the machine out before the next attempt."
        ),
    ),
    Alert(
        name="WorkspaceDiskFull",
        severity="page",
        group="now",
        expr=f"headway_workspace_free_bytes < {FULL_BYTES}",
        lasts="1m",
        summary="The disk of the workspace on {{ $labels.instance }} has {{ $value | humanize1024 }}B left.",
        description=(
            "The next checkpoint or shard may not fit, and then every retrain here fails. Run `headway clean` to see "
            "what nothing needs, and `headway clean --apply` to remove it."
        ),
    ),
    Alert(
        name="ScheduleSilent",
        severity="page",
        group="state",
        # A limit of its own is a series of this name, which the site records beside these rules.
        expr=(
            "(\n"
            "  time() - headway_retrain_finished_timestamp_seconds\n"
            "  > on (pipeline) group_left () headway:silence_limit:seconds\n"
            "  or\n"
            f"  time() - headway_retrain_finished_timestamp_seconds > {SILENCE_LIMIT_S}\n"
            "  unless on (pipeline) headway:silence_limit:seconds\n"
            "  or\n"
            "  headway:silence_limit:seconds\n"
            "  unless on (pipeline) headway_retrain_finished_timestamp_seconds\n"
            ")\n"
            "unless on (pipeline) headway_pipeline_held == 1"
        ),
        lasts="5m",
        summary="{{ $labels.pipeline }}: no retrain has finished for longer than its schedule allows.",
        description=(
            "Nothing need have failed: starts may be missed, or its file cannot be read. Run `headway windows "
            "{{ $labels.pipeline }}` and `headway status`, and look whether a worker is running."
        ),
    ),
    Alert(
        name="ProbeFailed",
        severity="page",
        group="state",
        expr="headway_probe_success == 0",
        summary="{{ $labels.instance }}: the newest probe of launcher {{ $labels.launcher }} failed.",
        description=(
            "A small retrain of made-up data did not come to its end, so pipelines may fail likewise. Run `headway "
            "board` to see in which stage, then `headway doctor` on the worker's machine."
        ),
    ),
    Alert(
        name="ProbeLate",
        severity="page",
        group="state",
        expr=(
            "time() - headway_probe_timestamp_seconds\n"
            f"> {LATE_INTERVALS} * headway_probe_interval_seconds + {LATE_SLACK_S}"
        ),
        lasts="1m",
        summary="{{ $labels.instance }}: the newest probe of {{ $labels.launcher }} is {{ $value | humanizeDuration }} "
        "old.",
        description=(
            "Nothing need have failed: no worker may be running, or the Prefect server is away, and then no schedule "
            "starts. Look at the work pool, and run `headway status`."
        ),
    ),
    Alert(
        name="ExporterDown",
        severity="page",
        group="state",
        expr='up{job="headway"} == 0\nor absent(up{job="headway"})',
        lasts="2m",
        summary="The exporter of Headway {{ $labels.instance }} is gone: nobody watches its workspace.",
        description=(
            "Training goes on without it, and no other alert of this workspace can fire or be trusted to be over. "
            "Start the exporter again, then run `headway status` on its machine."
        ),
    ),
    Alert(
        name="WorkspaceUnseen",
        severity="page",
        group="state",
        expr=(
            "time() - headway_status_timestamp_seconds > 300\n"
            'or absent(headway_status_timestamp_seconds{job="headway"})'
        ),
        lasts="5m",
        summary="The workspace of {{ $labels.instance }} was not looked at for more than five minutes.",
        description=(
            "The exporter answers, and its figures are old: its store may be away or slow. Run `headway status`; "
            "if that hangs too, look at the disk or object store."
        ),
    ),
)
"""The first of two alerts of one cause is the one that says more; `alertmanager.yaml` says which inhibits which."""

TICKETS = (
    Alert(
        name="WindowsStarve",
        severity="ticket",
        group="state",
        expr=f"headway_pipeline_starving == 1\n{_NOT_HELD}",
        summary="{{ $labels.pipeline }}: window after window closes before a run is finished.",
        description=(
            "Newer data wait. Run `headway windows {{ $labels.pipeline }} --next 14d`: lengthen or add windows, or "
            "make the run shorter."
        ),
    ),
    Alert(
        name="RequestUnanswered",
        severity="ticket",
        group="state",
        expr=f"time() - headway_retrain_asked_timestamp_seconds > {SILENCE_LIMIT_S}\n{_NOT_HELD}",
        lasts="5m",
        summary="{{ $labels.pipeline }}: a retrain was asked for {{ $value | humanizeDuration }} ago; none finished.",
        description=(
            "No window may have opened, or no worker takes it. Run `headway triggers {{ $labels.pipeline }}` and "
            "`headway windows {{ $labels.pipeline }}`."
        ),
    ),
    Alert(
        name="VersionWaits",
        severity="ticket",
        group="state",
        expr="headway_model_awaits_approval == 1",
        lasts="1d",
        summary="{{ $labels.model }}: a version has waited for approval for a day.",
        description=(
            "Until somebody decides, the older champion serves. Run `headway history {{ $labels.model }}`, then "
            "`headway promote` or `headway refuse`."
        ),
    ),
    Alert(
        name="GoodputLow",
        severity="ticket",
        group="days",
        expr=(
            "increase(workspace:effective_device_seconds:total[1d])\n"
            f"  / increase(workspace:training_device_seconds:total[1d]) < {LEAST_ETTR}\n"
            f"and increase(workspace:training_device_seconds:total[1d]) >= {LEAST_DEVICE_S}"
        ),
        lasts="10m",
        summary="{{ $labels.instance }}: {{ $value | humanizePercentage }} of a day's training were steps that count.",
        description=(
            "The rest was redone, waited or was started again. Run `headway goodput` on the newest runs: it names the "
            "states and recoveries that took the most."
        ),
    ),
    Alert(
        name="DeviceThrottled",
        severity="ticket",
        group="days",
        expr='min_over_time(train_device_throttled{why!="power_cap"}[15m]) == 1',
        lasts="15m",
        summary="{{ $labels.node }}: device {{ $labels.device }} is held back by {{ $labels.why }}.",
        description=(
            "A hot device, or one short of power, slows all ranks that wait for it. Run `headway status` to see "
            "whether a rank is slow, and look at fans, inlet temperature and power supplies."
        ),
    ),
    Alert(
        name="DataOutOfLine",
        severity="ticket",
        group="days",
        expr='headway_contract_broken_rules{rule_severity="warning"} > 0',
        summary="{{ $labels.pipeline }}: {{ $value | printf `%.0f` }} warning rules do not hold over the newest data.",
        description=(
            "The retrain went on, for these rules only warn: a distribution moved, or values are unusual. Run `headway "
            "report week` to see which, decide whether the world or the data changed, and mend the data or the rule."
        ),
    ),
    Alert(
        name="ManyInterruptions",
        severity="ticket",
        group="days",
        expr="increase(workspace:interruptions:total[1d]) >= 5",
        summary="{{ $value | printf `%.0f` }} attempts were interrupted within a day on {{ $labels.instance }}.",
        description=(
            "Runs go on by themselves, and lose steps and time. Run `headway status` and `headway logs`: one host or "
            "one cause is often behind most of them."
        ),
    ),
    Alert(
        name="RecoverySlow",
        severity="ticket",
        group="days",
        expr=_any_class(_recoveries_take_long, {name: each.recovery_p95_s for name, each in CLASS_OBJECTIVES.items()}),
        summary=(
            "Recoveries of {{ $labels.job_class }} pipelines on {{ $labels.instance }} take "
            "{{ $value | humanizeDuration }} at the 95th percentile."
        ),
        description=(
            "That is from the last new step to the next one, and more than the objective of the class. Run "
            "`headway goodput`: it says whether detection, start, restore or steps made again take it."
        ),
    ),
    Alert(
        name="CheckpointOld",
        severity="ticket",
        group="state",
        expr=_any_class(_checkpoint_is_old, {name: each.checkpoint_age_s for name, each in CLASS_OBJECTIVES.items()}),
        lasts="5m",
        summary="{{ $labels.pipeline }}: its newest checkpoint is {{ $value | humanizeDuration }} old.",
        description=(
            "A failure now costs all steps since. Run `headway status` and `headway logs`: saves may fail, or the "
            "interval is too long."
        ),
    ),
    Alert(
        name="NonFiniteSteps",
        severity="ticket",
        group="state",
        expr="increase(workspace:nonfinite_steps:total[1h]) > 0",
        summary="{{ $value | printf `%.0f` }} steps within an hour had a loss that is not finite.",
        description=(
            "The step guard stopped the run, skipped the batch or rolled back, as the pipeline file says. Run `headway "
            "logs` to see the steps; look at their rows, the learning rate and the precision."
        ),
    ),
    Alert(
        name="StepsUneven",
        severity="ticket",
        group="state",
        # Steps have no pipeline, so one run has to be alone for its p50 to be a run's. Bounds of buckets are up to 2.5
        # apart, so that a smaller ratio than 3 may be the histogram's alone.
        expr=(
            "histogram_quantile(\n"
            '  0.99, sum without (phase) (increase(train_step_duration_seconds_bucket{phase="step"}[30m]))\n'
            ") > 3 * histogram_quantile(\n"
            '  0.5, sum without (phase) (increase(train_step_duration_seconds_bucket{phase="step"}[30m]))\n'
            ")\n"
            'and sum without (phase) (increase(train_step_duration_seconds_count{phase="step"}[30m])) >= 1000\n'
            "and max_over_time(workspace:runs_at_work:count[30m]) == 1"
        ),
        lasts="30m",
        summary="{{ $labels.instance }}: the slowest steps take more than three times the median.",
        description=(
            "The 99th percentile is {{ $value | humanizeDuration }}. Run `headway goodput` and `headway profile RUN "
            "--steps 3`: a slow rank, waiting for data or checkpoints may be behind it."
        ),
    ),
    Alert(
        name="OutOfMemoryKills",
        severity="ticket",
        group="state",
        expr="increase(train_node_oom_kills_total[1h]) > 0",
        summary="The kernel ended {{ $value | printf `%.0f` }} processes of {{ $labels.node }} for want of memory.",
        description=(
            "They need not have been ours. Run `headway status` there: an attempt that ended with cause oom was hit. "
            "Make the micro-batch smaller, or take other work off the machine."
        ),
    ),
    Alert(
        name="MachineContended",
        severity="ticket",
        group="state",
        expr=(
            "(\n"
            '  rate(train_node_pressure_seconds_total{resource="cpu", share="some"}[10m]) > 0.8\n'
            "  or\n"
            '  rate(train_node_pressure_seconds_total{resource=~"memory|io", share="full"}[10m]) > 0.2\n'
            ")\n"
            "and on (job, instance) workspace:runs_at_work:count > 0"
        ),
        lasts="30m",
        summary="{{ $labels.node }}: {{ $value | humanizePercentage }} of time waits for {{ $labels.resource }}.",
        description=(
            "Training there is slower for all ranks, and no rank is to blame. Run `headway status` and `headway "
            "goodput`, and look what else works on the machine."
        ),
    ),
    Alert(
        name="CostOutOfLine",
        severity="ticket",
        group="days",
        # Runs count when they end, so the day of a large one is dear by itself: a week has such a day, too.
        expr=(
            "workspace:cost_usd:day > 1.5 * max_over_time(workspace:cost_usd:day[7d] offset 1d)\n"
            f"and workspace:cost_usd:day >= {LEAST_COST_USD}\n"
            "and workspace:cost_usd:day offset 8d"
        ),
        lasts="10m",
        summary="{{ $labels.instance }}: a day cost {{ $value | printf `%.0f` }} US dollars.",
        description=(
            "That is half as much again as the dearest day of the week before. Run `headway cost --by cause` and "
            "`headway cost --by pipeline` to see what for."
        ),
    ),
    Alert(
        name="ScrubOverdue",
        severity="ticket",
        group="days",
        expr=(
            f"time() - headway_scrub_oldest_check_timestamp_seconds > {OLDEST_CHECK_S}\n"
            f"or\ntime() - headway_scrub_timestamp_seconds > {SCRUB_SILENCE_S}"
        ),
        lasts="10m",
        summary="{{ $labels.instance }}: stored files were last read again {{ $value | humanizeDuration }} ago.",
        description=(
            "A bit that the disk lost since is noticed by nobody. Run `headway scrub`, and look whether the deployment "
            "`housekeeping` runs; `scrub_gb` of the profile says how much it reads a day."
        ),
    ),
    Alert(
        name="WorkspaceDiskFills",
        severity="ticket",
        group="days",
        expr="predict_linear(headway_workspace_free_bytes[6h], 2 * 86400) < 0",
        lasts="1h",
        summary="The disk of the workspace on {{ $labels.instance }} will be full within two days at this rate.",
        description=(
            "Run `headway clean` to see what nothing needs. Deploy housekeeping, or give the workspace a larger disk."
        ),
    ),
)


def _burn(name: str, severity: Severity) -> Alert | None:
    """Of all objectives that the alert speaks for; None: none of them has this severity."""
    of_alert = [each for each in OBJECTIVES if each.alert == name and severity in each.severities]
    if not of_alert:
        return None
    by_class = f" of class {_CLASS}" if of_alert[0].job_class else ""
    allowed = ", ".join(f"{1 - each.target:.1%} {each.job_class}".strip() for each in of_alert)
    return Alert(
        name=name,
        severity=severity,
        group="days",
        expr="\nor\n".join(burning(each, severity) for each in of_alert),
        summary=f"{{{{ $labels.instance }}}}: {of_alert[0].title}{by_class} spend their error budget too fast.",
        description=(
            f"{{{{ $value | humanizePercentage }}}} of them failed; {BUDGET_WINDOW} allow {allowed}. "
            f"{of_alert[0].advice}"
        ),
    )


_CLASS = "{{ $labels.job_class }}"
_BURN_NAMES = tuple(dict.fromkeys(objective.alert for objective in OBJECTIVES))
BURNS = tuple(alert for name in _BURN_NAMES for severity in SEVERITIES if (alert := _burn(name, severity)) is not None)
"""A fast burn is a page, a slow one a ticket; classes say which of them they want."""

OF_PIPELINES = frozenset(
    {
        *("RetrainFailed", "RetrainsFailInARow", "ProcessStopped", "RunWithoutProgress", "ScheduleSilent"),
        *("WindowsStarve", "RequestUnanswered", "CheckpointOld"),
    }
)
"""Routed by whom the pipeline belongs to, and by how urgent it is."""

ALERTS: tuple[Alert, ...] = tuple(
    replace(alert, expr=_with_owner(alert.expr)) if alert.name in OF_PIPELINES else alert
    for alert in (*PAGES, *BURNS, *TICKETS)
)
