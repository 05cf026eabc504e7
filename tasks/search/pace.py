"""What starts and steps take on this machine, by what runs have written down: whether a rung is worth its starts, and
what trials have taken so far."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.stages import StageRecord
from headway.tasks.core.stage_records import newest_record, newest_record_of
from headway.tasks.search.budget import TrialProgress, Worked
from headway.tasks.search.rungs import WHERE, AttemptPace, too_short
from headway.tasks.search.trials_spec import TrialsSpec
from headway.training.checkpoint.layout import run_folder
from headway.training.config.training_spec import TrainingSpec
from headway.training.launch.base.gang import attempt_folder
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import RECORDS_NAME, AttemptRecord, AttemptRecords
from headway.training.observe.ledger import SpoolTail


def require_worthwhile(workspace: Workspace, pipeline: str, spec: TrialsSpec, training: TrainingSpec) -> None:
    """Before anything is spent: refuse rungs that are none, or that cost more to start than they train.

    What a start takes is known once this machine has trained a run of the pipeline. A search that has begun is
    continued, whatever is known by then.

    Args:
        training: its length in steps; passes over rows that are not counted yet are looked at once they are.

    Raises:
        ConfigError: with the arithmetic.
    """
    if spec.rungs is None or training.max_epochs is not None:
        return
    steps = spec.levels_of(training)
    if workspace.is_empty() or _has_started(workspace, pipeline, steps):
        return
    pace = last_pace(workspace, pipeline)
    if pace is not None and (why := too_short(steps, pace, spec.min_starts)):
        raise ConfigError(
            f"{why}.",
            where=WHERE,
            advice="Lay them further apart, or say trials.min_starts: 0 where that is meant.",
        )


def _has_started(workspace: Workspace, pipeline: str, steps: Sequence[int]) -> bool:
    """Whether trials of the pipeline have paused at the first of these rungs."""

    def is_at_first(record: StageRecord) -> bool:
        inputs = record.inputs
        is_ours = record.provenance.get("pipeline") == pipeline
        return is_ours and isinstance(inputs, dict) and inputs.get("step") == steps[0]

    return newest_record(workspace, "rung", is_at_first) is not None


def last_pace(workspace: Workspace, pipeline: str) -> AttemptPace | None:
    """Of the pipeline's newest run, where that was here."""
    last = newest_record_of(workspace, pipeline, "launch")
    return None if last is None else pace_of(workspace.local_path(run_folder(last.document)))


def pace_of(run_dir: Path) -> AttemptPace | None:
    """By the newest attempt of a run that took two steps; None: no such attempt was here."""
    for record in reversed(AttemptRecords(run_dir).all()):
        spool = AttemptFiles(attempt_folder(run_dir, record.attempt)).rank_spool(0)
        if record.end_unix_s is None or not spool.exists():
            continue
        # What a step took is no part of it that every line has.
        steps = [each for each in SpoolTail(spool).stream() if each["event"] == "step" and each.get("duration_s")]
        if len(steps) < 2:
            continue
        first_unix_s = float(steps[0]["unix_s"])
        end_unix_s = float(steps[-1]["unix_s"]) + float(steps[-1]["duration_s"])
        start_s = max(0.0, first_unix_s - record.start_unix_s) + max(0.0, record.end_unix_s - end_unix_s)
        first_s = float(steps[0]["duration_s"])
        step_s = max(end_unix_s - first_unix_s - first_s, 0.0) / (len(steps) - 1)
        # What the first takes beyond the others, such as for compiling, is part of every start.
        return AttemptPace(start_s=start_s + max(first_s - step_s, 0.0), step_s=step_s)
    return None


class ProgressReader:
    """What the attempts of runs have come to. A file that is what it was is read once: of many trials most are at rest.

    Args:
        flow_run: the one that asks: what of it has not ended goes on.
    """

    def __init__(self, flow_run: str) -> None:
        self._flow_run = flow_run
        self._read: dict[Path, tuple[tuple[int, int], list[AttemptRecord]]] = {}
        """By folder, the file's size and time, and its records."""

    def __call__(self, run_dir: Path) -> TrialProgress:
        try:
            stat = (run_dir / RECORDS_NAME).stat()
        except OSError:
            return _progress([], run_dir, self._flow_run)
        seen = stat.st_size, stat.st_mtime_ns
        if (known := self._read.get(run_dir)) is None or known[0] != seen:
            known = self._read[run_dir] = seen, AttemptRecords(run_dir).all()
        return _progress(known[1], run_dir, self._flow_run)


def _progress(records: Sequence[AttemptRecord], run_dir: Path, flow_run: str) -> TrialProgress:
    worked = []
    for record in records:
        end_unix_s = record.end_unix_s
        if end_unix_s is None:
            # Of one whose owner was lost: its last sign.
            end_unix_s = time.time() if record.scope == flow_run else _last_sign(run_dir, record.attempt)
        if record.start_unix_s > 0.0:
            worked.append(Worked(record.scope, record.start_unix_s, max(record.start_unix_s, end_unix_s)))
    return TrialProgress(
        step=max((record.step for record in records if record.step is not None), default=0),
        is_finished=any(record.state == "done" for record in records),
        worked=tuple(worked),
    )


def _last_sign(run_dir: Path, attempt: int) -> float:
    try:
        return AttemptFiles(attempt_folder(run_dir, attempt)).rank_spool(0).stat().st_mtime
    except OSError:
        return 0.0
