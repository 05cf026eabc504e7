"""The account of a flow run: one small document of what its ledgers say, for whoever looks at many of them.

Made when a flow run ends, or by whoever looks first after one was killed, and kept when ledgers are cleaned away.
Metrics, boards, costs and reports add accounts up; none of them reads a ledger of a flow run that is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from headway.data_contracts.store.errors import RunBusy, StopReason
from headway.flows.accounts.data_figures import VERDICTS, DataFigures
from headway.flows.accounts.figures import AddedUp, Amount, Count, Moment, Step, Text, TrainingFigures
from headway.flows.accounts.goodput import Goodput, goodput_of, goodput_of_trials
from headway.flows.accounts.traces import COLUMNS, AttemptTrace, FlowTrace
from headway.training.launch.base.retry_budget import OWNER_WAS_LOST
from headway.training.observe.ledger import Event
from headway.training.observe.ledger_lines import LARGEST
from headway.training.observe.step_summary import finite

FORMAT_VERSION = 1
STANDARD = "standard"
"""The class of a pipeline that says none, as none could for a while."""
PROBE = "probe"
"""The class of Headway's own probes: they cost something, and no objective, trend or alert of pipelines counts them."""
WINDOW_CLOSED: StopReason = "window closed"
CURVE_POINTS = 100
"""Of loss and step time that are kept for a picture."""

Outcome = Literal["succeeded", "failed", "stopped", "lost"]
"""`lost`: it was killed, and wrote no last word."""


class StepCurve(AddedUp):
    """Means over stretches of steps, each at its last step."""

    step: list[Step]
    unix_s: list[Moment]
    loss: list[float | None]
    step_s: list[Amount]

    @model_validator(mode="after")
    def _has_points(self) -> Self:
        lengths = {len(self.step), len(self.unix_s), len(self.loss), len(self.step_s)}
        if len(lengths) != 1 or not 0 < len(self.step) <= CURVE_POINTS:
            raise ValueError("a curve has as many values of each kind, and not too many")
        return self


class ValidationCurve(AddedUp):
    """Figures of the rows apart that a run was validated on, each after its step."""

    metric: Text
    step: list[Step]
    value: list[Amount]

    @model_validator(mode="after")
    def _has_points(self) -> Self:
        if len(self.step) != len(self.value) or not 0 < len(self.step) <= CURVE_POINTS:
            raise ValueError("a curve has as many values as steps, and not too many")
        return self


class FlowAccount(AddedUp):
    """What a flow run did, and what came of it."""

    format_version: int = FORMAT_VERSION
    flow_run: Text
    pipeline: Text
    owner: Text = ""
    job_class: Text = STANDARD
    in_window: bool = False
    """Whether it was started for a window of its pipeline."""
    host: Text
    device: Text
    """The kind that it trained on, as its maker names it; `cpu` also where it trained nothing."""
    run: Text
    """Empty: it came to none, or to several, as trials do."""
    outcome: Outcome
    cause: Text
    """Of a failure, or why it was stopped."""
    stage: Text
    """The one that failed."""
    has_registered: bool
    begin_unix_s: Moment
    end_unix_s: Moment
    goodput: Goodput
    steps_per_epoch: Amount | None = None
    """In which each row is seen once; None: nobody wrote it down, or datasets are mixed."""
    figures: TrainingFigures
    interruptions: dict[Text, Count]
    """Attempts that ended before their last step, by cause."""
    resumes: dict[Text, Count]
    """Attempts that went on from a checkpoint, by outcome: `ok` came to a new step."""
    requeues: dict[Text, Count]
    """Starts after the first, by who asked: `attempt` of a supervisor, `job` of a scheduler."""
    curve: StepCurve | None
    validation: ValidationCurve | None = None
    """None: it was not validated while it trained."""
    data: DataFigures | None = None
    """None: it came to no verdict on data."""

    @property
    def window_outcome(self) -> Literal["", "done", "cut"]:
        """Whether it was done before its window closed; empty: it was for none, or something else ended it."""
        if self.in_window and self.outcome == "succeeded":
            return "done"
        return "cut" if self.in_window and (self.outcome, self.cause) == ("stopped", WINDOW_CLOSED) else ""


def flow_account(flow: FlowTrace, runs: Sequence[Sequence[AttemptTrace]], before: Goodput | None) -> FlowAccount:
    """The account of a flow run that is over, or so far.

    Args:
        runs: its own attempts at training, oldest first, of each run that it was at; trials are at several.
        before: of the run's flow run before it.
    """
    begin = next(flow.named("flow.begin"))
    outcome, cause, stage = end_of(flow)
    attempts = [attempt for of_one in runs for attempt in of_one]
    of_run = attempts if flow.run else ()
    steps = np.concatenate([attempt.steps for attempt in of_run]) if of_run else np.empty((0, len(COLUMNS)))
    column = {name: steps[:, place] for place, name in enumerate(COLUMNS)}
    figures = TrainingFigures()
    for attempt in attempts:
        figures.add(attempt.figures)
    for event in flow.events:
        figures.take(event)
    account = goodput_of_trials(flow, runs) if len(runs) > 1 else goodput_of(flow, of_run, before)
    return FlowAccount(
        flow_run=flow.flow_run,
        pipeline=flow.pipeline,
        owner=str(begin.get("owner") or ""),
        job_class=str(begin.get("job_class") or STANDARD),
        in_window=begin.get("in_window") is True,
        host=str(begin.get("host", "")),
        device=next((attempt.device for attempt in reversed(attempts) if attempt.device), "cpu"),
        run=flow.run,
        outcome=outcome,
        cause=cause,
        stage=stage,
        has_registered=flow.has_registered,
        begin_unix_s=flow.begin_unix_s,
        end_unix_s=account.end_unix_s,
        goodput=account,
        steps_per_epoch=_steps_per_epoch(flow) if flow.run else None,
        figures=figures,
        interruptions=_counted(each.record.failure.cause or each.record.state for each in attempts if _was_cut(each)),
        resumes=_counted("ok" if len(each.steps) else "failed" for each in attempts if _went_on(each)),
        requeues=_requeues(flow, attempts),
        curve=_curve(column) if len(steps) else None,
        validation=_validation_curve(event for attempt in of_run for event in _of(attempt, "validation")),
        data=next(filter(None, map(DataFigures.of_event, reversed(list(flow.named(VERDICTS))))), None),
    )


def end_of(flow: FlowTrace) -> tuple[Outcome, str, str]:
    """Outcome, cause and the stage that failed."""
    if flow.stopped_for:
        return "stopped", flow.stopped_for, ""
    failed = next(flow.named("flow.failed"), None)
    if failed is not None and failed.get("error") == RunBusy.__name__:
        return "stopped", "busy", ""
    if failed is not None:
        card = next(flow.named("flow.card"), {})
        failure = card.get("failure")
        cause = failure.get("cause") if isinstance(failure, dict) else None
        # What has no card, such as a cancellation, is known by its class alone.
        return "failed", str(cause or failed.get("error") or ""), str(card.get("stage") or "")
    return ("succeeded", "", "") if flow.has_ended else ("lost", OWNER_WAS_LOST.cause, _last_stage(flow))


def _steps_per_epoch(flow: FlowTrace) -> float | None:
    values = [value for event in flow.named("run.folder") if (value := finite(event.get("steps_per_epoch")))]
    return values[-1] if values and 0 < values[-1] < LARGEST else None


def _last_stage(flow: FlowTrace) -> str:
    begun = [str(event.get("task", "")) for event in flow.named("task.begin")]
    ended = {str(event.get("task", "")) for event in flow.named("task")}
    return next((stage for stage in reversed(begun) if stage not in ended), "")


def _of(attempt: AttemptTrace, name: str) -> Iterator[Event]:
    return (event for event in attempt.events if event["event"] == name)


def _was_cut(attempt: AttemptTrace) -> bool:
    return attempt.record.state != "done"


def _went_on(attempt: AttemptTrace) -> bool:
    """Whether it began from a checkpoint of its run."""
    return any(event.get("step") for event in _of(attempt, "restore"))


def _requeues(flow: FlowTrace, attempts: Sequence[AttemptTrace]) -> dict[str, int]:
    by_job = sum(1 for name in ("job.again", "job.requeue") for _ in flow.named(name))
    counts = {"attempt": max(len(attempts) - 1, 0), "job": by_job}
    return {who: count for who, count in counts.items() if count}


def _curve(column: Mapping[str, NDArray[np.float64]]) -> StepCurve:
    """Stretches are of equal length but for rounding."""
    num_steps = len(column["step"])
    stretches = np.array_split(np.arange(num_steps), min(CURVE_POINTS, num_steps))
    lasts = [int(places[-1]) for places in stretches]
    return StepCurve(
        step=[int(step) for step in column["step"][lasts]],
        unix_s=column["unix_s"][lasts].tolist(),
        loss=[_mean(column["loss"][places]) for places in stretches],
        step_s=[float(column["duration_s"][places].mean()) for places in stretches],
    )


def _validation_curve(events: Iterable[Event]) -> ValidationCurve | None:
    """Of many, some that lie evenly, with the last one."""
    # By step, the last record of each: an attempt that begins again makes them again.
    found = {
        int(step): (str(event.get("metric", "")), value)
        for event in events
        if (value := finite(event.get("value"))) is not None and abs(value) < LARGEST
        if (step := finite(event.get("step"))) is not None and 0 <= step < LARGEST
    }
    if not found:
        return None
    steps = sorted(found)
    chosen = sorted({steps[round(place)] for place in np.linspace(0, len(steps) - 1, min(CURVE_POINTS, len(steps)))})
    metric, _ = found[steps[-1]]
    return ValidationCurve(metric=metric, step=chosen, value=[found[step][1] for step in chosen])


def _mean(values: NDArray[np.float64]) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else None


def _counted(values: Iterable[str]) -> dict[str, int]:
    total: dict[str, int] = {}
    for value in values:
        total[value] = total.get(value, 0) + 1
    return dict(sorted(total.items()))
