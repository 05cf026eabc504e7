"""What a rehearsal came to: what each stage took, what the real run would take, and what would fail. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from headway.data_contracts.types.report_text import count
from headway.flows.console.console import headed, plain_console, print_table
from headway.flows.show.calendar import span
from headway.tasks.core.stage_records import STAGES
from headway.training.config.checkpoints import CheckpointSpec, most_kept
from headway.training.config.training_spec import TrainingSpec
from headway.training.observe.ledger import Event

OF_ALL_DATA = ("snapshot", "validate", "shard", "evaluate")
"""Stages whose time grows with the data; the others' does not."""
MIN_SHARE = 0.05
"""Of the data, to say what all of them would take: of less, what does not grow with them is most of it."""


class StageCost(BaseModel):
    stage: str
    rehearsed_s: float
    real_s: float | None
    """Of the real run; None where a part of the data does not tell."""
    how: str
    """What that stands on."""


class CheckpointCost(BaseModel):
    size_bytes: int
    """Of all ranks together."""
    stall_s: float
    """What one keeps the steps waiting."""
    durable_s: float | None
    """From its beginning until it is proved and published."""
    restore_s: float | None
    """For all ranks to load and verify it."""


class RehearsalReport(BaseModel):
    pipeline: str
    workspace: str
    kept: str
    """Where what was made lies; empty: it is gone."""
    launcher: str
    nodes: int
    ranks_per_node: int
    data: str
    share: float
    excluded: list[str]
    steps: int
    real_steps: int
    wall_s: float
    stages: list[StageCost]
    step_s: float | None
    """Median, without the first of each attempt, which allocates."""
    checkpoint: CheckpointCost | None
    real_training_s: float | None
    real_s: float | None
    """All stages; None where one is not known."""
    peak_memory_bytes: dict[int, int]
    """By rank: allocated on its GPU, or resident where it has none."""
    needed_bytes: int | None
    """Of shards and checkpoints of the real run."""
    free_bytes: int
    notes: list[str]
    """What went on otherwise than planned, and did not fail."""
    faults: list[str]
    """What would fail in the real run."""
    exit_code: int = 0


def of_stage(events: Iterable[Event]) -> dict[str, float]:
    """Seconds by stage, over all flow runs of the rehearsal."""
    found: dict[str, float] = {}
    for event in events:
        name = str(event["event"]).removeprefix("stage.")
        if str(event["event"]).startswith("stage.") and "duration_s" in event and name in STAGES:
            # What a second flow run found was made by the first.
            found[name] = found.get(name, 0.0) + (0.0 if event.get("found") else float(event["duration_s"]))
    return found


OF_TRAINING = ("step", "validation", "checkpoint")
"""Events of what a longer run has more of."""


def warm_step_s(attempts: Sequence[Sequence[Event]]) -> float | None:
    """The median step, without the first of each attempt where there are others.

    Args:
        attempts: of each, rank 0's steps.
    """
    warm = [step for steps in attempts for step in steps[1:]] or [step for steps in attempts for step in steps]
    return statistics.median(float(step["duration_s"]) for step in warm) if warm else None


def validation_s(events: Sequence[Event]) -> float | None:
    """What a validation takes, of rank 0's events; None where none was made."""
    made = [float(event["duration_s"]) for event in events if event["event"] == "validation" and "value" in event]
    return statistics.median(made) if made else None


def checkpoint_cost(events: Sequence[Event]) -> CheckpointCost | None:
    """Args:
    events: rank 0's, of all attempts.
    """
    saved = [event for event in events if event["event"] == "checkpoint"]
    durable = [event for event in events if event["event"] == "checkpoint.durable"]
    restored = [event for event in events if event["event"] == "restore" and event.get("step")]
    if not saved:
        return None
    return CheckpointCost(
        size_bytes=max(int(event.get("size_bytes", 0)) for event in (*saved, *durable)),
        stall_s=statistics.median(float(event["duration_s"]) for event in saved),
        durable_s=max((float(event["durable_s"]) for event in durable), default=None),
        restore_s=max((float(event["duration_s"]) for event in restored), default=None),
    )


def num_checkpoints(spec: CheckpointSpec, *, max_steps: int, step_s: float) -> int:
    """How many a run keeps on its way, its last included."""
    by_steps = 0 if spec.every_steps is None else max_steps // spec.every_steps
    by_time = 0 if spec.every_s is None else int(max_steps * step_s / spec.every_s)
    return max(1, by_steps, by_time)


def stage_costs(
    rehearsed: Mapping[str, float],
    before: Mapping[str, float],
    *,
    share: float,
    training_s: float | None,
) -> list[StageCost]:
    """What each stage took, and would take.

    Args:
        before: seconds of stages that this workspace has run, the newest of each.
        share: of the data that was rehearsed with.
        training_s: of the real run's stage *launch*.
    """
    costs = []
    for stage in STAGES:
        if stage not in rehearsed:
            continue
        took_s = rehearsed[stage]
        real_s: float | None = took_s
        how = ""
        if stage == "launch":
            real_s, how = training_s, "by the warm steps and their checkpoints"
        elif stage in OF_ALL_DATA and share < 1:
            if stage in before:
                real_s, how = before[stage], "what it took here the last time"
            elif share >= MIN_SHARE:
                real_s, how = took_s / share, f"at most: rehearsed with {100 * share:.0f} % of the data"
            else:
                real_s, how = None, "grows with the data"
        costs.append(StageCost(stage=stage, rehearsed_s=took_s, real_s=real_s, how=how))
    return costs


def real_training_s(
    training: TrainingSpec,
    *,
    launch_s: float,
    trained_s: float,
    step_s: float | None,
    checkpoint: CheckpointCost | None,
    validation_s: float | None = None,
) -> float | None:
    """Seconds of the real run's stage *launch*.

    Args:
        launch_s: what the rehearsal's took, over all its attempts.
        trained_s: what steps, validations and checkpoints took of that; the rest is the start, which the real run pays
            once.
        validation_s: what one takes; None where none was made.
    """
    if step_s is None or checkpoint is None:
        return None
    saves = num_checkpoints(training.checkpoints, max_steps=training.max_steps, step_s=step_s)
    start_s = max(0.0, launch_s - trained_s)
    validated = 0 if training.validation is None else training.validation.count(training.max_steps)
    validations_s = validated * (validation_s or 0.0)
    return start_s + training.max_steps * step_s + validations_s + saves * checkpoint.stall_s


def needed_bytes(
    training: TrainingSpec, *, shard_bytes: int, share: float, step_s: float | None, checkpoint: CheckpointCost | None
) -> int | None:
    """What shards and checkpoints of the real run take on the workspace's storage."""
    if checkpoint is None or step_s is None:
        return None
    spec, max_steps = training.checkpoints, training.max_steps
    saved = num_checkpoints(spec, max_steps=max_steps, step_s=step_s)
    kept = most_kept(spec, max_steps=max_steps, num_saved=saved, validation=training.validation)
    return round(shard_bytes / share) + kept * checkpoint.size_bytes


def notices(events: Iterable[Event]) -> list[str]:
    """What went on otherwise than planned, in the events' own words."""
    notice_events = (
        "attempt.failed",
        "attempt.retry",
        "checkpoint.quarantined",
        "checkpoints.unpublished",
        "restore.inexact",
    )
    notes = [
        str(event.get("message") or event.get("what") or "") for event in events if event["event"] in notice_events
    ]
    return [*dict.fromkeys(filter(None, notes))]


def verdict(report: RehearsalReport) -> Literal["would run", "would fail"]:
    return "would fail" if report.faults else "would run"


def print_report(report: RehearsalReport, console: Console | None = None) -> None:
    console = console or plain_console()
    shape = f"{report.launcher}, nodes x ranks {report.nodes} x {report.ranks_per_node}"
    console.print()
    message = f" {verdict(report)}  {count(report.steps, 'step')} on {report.data}; {shape}"
    console.print(headed(report.pipeline, message))
    for line in report.excluded:
        console.print(f"  {line}")
    console.print()
    table = Table("stage", "rehearsed", "real", "", box=None, padding=(0, 2))
    for cost in report.stages:
        real = "not known" if cost.real_s is None else f"about {span(cost.real_s)}"
        table.add_row(cost.stage, f"{cost.rehearsed_s:.1f} s", real, cost.how)
    table.add_row("all", f"{report.wall_s:.1f} s", "" if report.real_s is None else f"about {span(report.real_s)}", "")
    print_table(console, table)
    console.print()
    for name, value in _figures(report).items():
        console.print(f"{name:<12} {value}")
    for name, lines in (
        ("otherwise", report.notes),
        ("would fail", report.faults),
        ("kept", filter(None, [report.kept])),
    ):
        for line in lines:
            console.print(f"{name:<12} {line}")


def _figures(report: RehearsalReport) -> dict[str, str]:
    figures = {}
    if report.step_s is not None:
        real = (
            "" if report.real_training_s is None else f"; {report.real_steps:,} steps in {span(report.real_training_s)}"
        )
        figures["steps"] = f"{1 / max(report.step_s, 1e-9):.3g} a second{real}"
    if report.checkpoint is not None:
        cost = report.checkpoint
        durable = "" if cost.durable_s is None else f", durable after {cost.durable_s:.2f} s"
        restored = "" if cost.restore_s is None else f", restored in {cost.restore_s:.2f} s"
        figures["checkpoint"] = f"{cost.size_bytes / 1e6:,.1f} MB, steps wait {cost.stall_s:.2f} s{durable}{restored}"
    if report.peak_memory_bytes:
        most = max(report.peak_memory_bytes, key=lambda rank: report.peak_memory_bytes[rank])
        sizes = ", ".join(f"{size / 1e6:,.0f}" for _, size in sorted(report.peak_memory_bytes.items())[:16])
        more = ", ..." if len(report.peak_memory_bytes) > 16 else ""
        figures["memory"] = (
            f"{report.peak_memory_bytes[most] / 1e6:,.0f} MB at most, of rank {most} (by rank: {sizes}{more})"
        )
    if report.needed_bytes is not None:
        figures["space"] = (
            f"about {report.needed_bytes / 1e9:,.2f} GB of {report.free_bytes / 1e9:,.1f} GB that are free"
        )
    return figures
