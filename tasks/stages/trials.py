"""Stage *trials*: each is a run, trained to a step or to its end. `search` beside this says which, and how far."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from headway.data_contracts.store import stages
from headway.data_contracts.store.documents import CheckpointManifest, Document, Link, RunSpec
from headway.data_contracts.store.errors import HeadwayError, IntegrityError, RunBusy, RunStopped
from headway.tasks.core.candidate import read_candidate, require_files
from headway.tasks.core.context import RunContext
from headway.tasks.core.devices import UnlimitedDevices
from headway.tasks.core.gangs import run_all_to_completion, run_side_by_side, run_to_completion
from headway.tasks.core.run_locks import lock_run, wait_for_other
from headway.tasks.core.run_result import checkpoint_at, furthest_step, is_model
from headway.tasks.core.slow_ranks import showing_slow_ranks
from headway.tasks.core.stage import StageOutput, find_intact, find_or_make, stage_task
from headway.tasks.ownership.current_run import is_permanent
from headway.tasks.ownership.lease_acquisition import observe_lease
from headway.tasks.reports.figures import EvaluationSpec
from headway.tasks.search.trials_spec import Trial
from headway.tasks.stages.launch import (
    describe_run,
    launch_inputs,
    num_steps_since,
    record_trained,
    train,
    watched_training,
)
from headway.tasks.stages.trial_scores import PlannedTrial, TrialResult, failed, inputs_at_rung
from headway.training.checkpoint import recycled_files
from headway.training.checkpoint.layout import committed_steps, run_folder
from headway.training.checkpoint.retention import discard_expired
from headway.training.config.shards import ShardSpec
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.jobs.follow import Watched
from headway.training.launch.supervise.room import Room, room_for

AT_ONCE = 4
"""Trials in a scheduler's queue that may run at a time, where the file says nothing."""


class Rung(Document):
    """How far a trial was when it was first compared at a rung."""

    kind: ClassVar[str] = "rung"
    checkpoint: Link
    """Its model there; its files go once the run goes on."""
    trained_step: int
    """The furthest step that its run had made."""
    is_finished: bool
    """Whether no step was left to make: it was at its end, or had converged."""


class Pause(NamedTuple):
    """Where trials wait for each other."""

    step: int
    evaluation: EvaluationSpec
    """What they are scored by there."""


def room_of(context: RunContext, planned: Sequence[PlannedTrial], spec: LaunchSpec, at_most: int) -> Room:
    """For gangs side by side where no scheduler has them, of trials like these."""
    trainings = [each.trial.training for each in planned]
    # Whoever counts devices has counted those of one gang.
    if not isinstance(context.devices, UnlimitedDevices):
        at_most = 1
    uses_gpus = not all(each.grows_trees for each in trainings)
    return room_for(spec, max(each.num_threads for each in trainings), at_most, uses_gpus=uses_gpus)


@stage_task(name="describe", task_run_name="describe trials of {context.pipeline}")
def describe_trials(
    context: RunContext,
    trials: Sequence[Trial],
    manifest_of: Callable[[ShardSpec], Link],
    beside: RunSpec | None = None,
) -> list[PlannedTrial]:
    """All at once, on the code and data of this moment: else an edit meanwhile would be compared as well.

    Args:
        manifest_of: the shards by their settings.
        beside: a run whose code and environment these are to have, and its start, where it has one.
    """
    described: list[PlannedTrial] = []
    with context.ledger.span("launch.freeze"):
        for trial in trials:
            settled = describe_run(context, trial.training, manifest_of(trial.shards), beside)
            # Without its start: a model that one of them made before is a start to the others.
            beside = beside or settled.run.model_copy(update={"start": None})
            described.append(PlannedTrial(trial, settled, context.workspace.publish_document(settled.run)))
    return described


@stage_task(name="trials", task_run_name="train trials of {context.pipeline}")
def train_trials(
    context: RunContext,
    planned: Sequence[PlannedTrial],
    spec: LaunchSpec,
    tracking_uri: str,
    at_once: int,
    evaluation: EvaluationSpec,
    to_step: int | None = None,
    room: Room | None = None,
    may_begin: Callable[[PlannedTrial], bool] | None = None,
) -> list[TrialResult]:
    """Every trial as a run, found or trained now; one that fails for good ends no other.

    Args:
        at_once: how many may train at a time where a scheduler has them.
        evaluation: what they are scored by where they pause.
        to_step: where that is; None: at their ends.
        room: for gangs side by side where no scheduler has them; None: they take turns.
        may_begin: asked of each that is not on record, just before it trains; those that may not have no result.

    Raises:
        RunStopped: a stop was asked for; the same command continues.
    """
    # No part of a run's key: what pauses goes on to the same bits.
    context = replace(context, stop=replace(context.stop, at_step=to_step))
    pause = None if to_step is None else Pause(to_step, evaluation)
    if spec.is_detached:
        return _Together(context, planned, spec, tracking_uri, pause, may_begin).run_as_jobs(at_once)
    if room is not None and len(room.slots) > 1 and len(planned) > 1:
        return _Together(context, planned, spec, tracking_uri, pause, may_begin).run_here(room)
    return [
        _train_one(context, each, spec, tracking_uri, pause)
        for each in planned
        if may_begin is None or _is_trained(context, each, pause) or may_begin(each)
    ]


def _train_one(
    context: RunContext, each: PlannedTrial, spec: LaunchSpec, tracking_uri: str, pause: Pause | None
) -> TrialResult:
    _report_trial(context, each, pause)
    context.at.run = each.run.sha256[:16]
    result = TrialResult(planned=each)
    try:
        return _trained(context, result, spec, tracking_uri, pause)
    except HeadwayError as error:
        if not is_permanent(error):
            raise
        return failed(context, result, error)


def _trained(
    context: RunContext, result: TrialResult, spec: LaunchSpec, tracking_uri: str, pause: Pause | None
) -> TrialResult:
    each, name = result.planned, result.trial.name
    if pause is None:
        train(context, each.trial.training, spec, each.settled, tracking_uri, name)
        return result
    # `train` says so itself, of a run that is found as well.
    context.ledger.event("run.named", run=each.run.sha256)
    _find_usable_rung(context, each, pause)
    link = find_or_make(
        context,
        "rung",
        _rung_inputs(each, pause.step),
        lambda: _rung(context, each, spec, tracking_uri, pause.step),
        shown=f"{name}, step {pause.step:,}",
        exclusive=True,
    )
    rung = context.workspace.load(link, Rung)
    return replace(
        result,
        checkpoint=rung.checkpoint,
        trained_step=rung.trained_step,
        model_step=context.workspace.load(rung.checkpoint, CheckpointManifest).step,
        is_finished=rung.is_finished,
    )


def _rung_inputs(each: PlannedTrial, step: int) -> dict[str, Any]:
    return {"run": each.run.sha256, "step": step}


def _find_usable_rung(context: RunContext, each: PlannedTrial, pause: Pause) -> Rung | None:
    """What is on record of a trial at a rung.

    A record whose checkpoint has no score by `pause.evaluation`, and can get none since its files are gone or damaged,
    is removed, so that the run's checkpoint of today takes its place.
    """
    if (record := find_intact(context, "rung", _rung_inputs(each, pause.step))) is None:
        return None
    rung = context.workspace.load(record.document, Rung)
    if (problem := _of_another(context, each, rung)) is not None:
        context.report_damage("rung", problem)
        context.workspace.remove(stages.record_path("rung", record.key))
        return None
    if find_intact(context, "score", inputs_at_rung(pause.evaluation, pause.step, rung.checkpoint)) is not None:
        return rung
    try:
        require_files(context, read_candidate(context.workspace, rung.checkpoint))
    except (IntegrityError, FileNotFoundError) as error:
        context.report_damage("rung", str(error))
        context.workspace.remove(stages.record_path("rung", record.key))
        return None
    return rung


def _of_another(context: RunContext, each: PlannedTrial, rung: Rung) -> str | None:
    """What a record says that cannot be of this trial; None: nothing."""
    try:
        run = context.workspace.load(rung.checkpoint, CheckpointManifest).run
    except (IntegrityError, FileNotFoundError) as error:
        return str(error)
    if run != each.run:
        return f"its checkpoint is of run {run.sha256[:16]}, and not of {each.run.sha256[:16]}"
    if not 0 < rung.trained_step <= each.trial.training.max_steps:
        return f"it says step {rung.trained_step:,} of {each.trial.training.max_steps:,}"
    return None


def _rung(context: RunContext, each: PlannedTrial, spec: LaunchSpec, tracking_uri: str, step: int) -> StageOutput:
    """How far a run is at a rung: its document alone, since the checkpoint's files go once the run goes on."""
    run_dir, since_unix_s = context.workspace.local_path(run_folder(each.run)), time.time()
    if (reached := checkpoint_at(context, each.run, step)) is None:
        trial = each.trial
        watched = watched_training(context, trial.training, spec, each.settled, tracking_uri, trial.name)
        try:
            # Left by the stop, so that it is shown as one.
            with showing_slow_ranks(context), watched as (gang, poll):
                try:
                    run_to_completion(context, spec, gang, poll)
                except RunStopped as stopped:
                    if _is_at_rung(context, each, step, stopped):
                        _pause(context, each, step, poll)
                    raise
        except RunStopped as stopped:
            if not _is_at_rung(context, each, step, stopped):
                raise
        reached = checkpoint_at(context, each.run, step)
    if reached is None:
        raise IntegrityError(f"no checkpoint of step {step:,} is left.", where=str(run_dir), advice="Run again.")
    context.workspace.publish_document(reached)
    is_finished = is_model(context, each.run, reached)
    trained_step = furthest_step(context.workspace, each.run) if is_finished else reached.step
    rung = Rung(checkpoint=reached.link, trained_step=trained_step, is_finished=is_finished)
    return StageOutput(document=rung, num_steps=num_steps_since(run_dir, since_unix_s))


def _is_at_rung(context: RunContext, each: PlannedTrial, step: int, error: RunStopped) -> bool:
    """Whether a run ended because it came to its rung: whatever else stopped it is meant for the whole search."""
    if error.reason != "step reached":
        return False
    reached = committed_steps(context.workspace.local_path(f"{run_folder(each.run)}/checkpoints"))
    return bool(reached) and reached[-1] >= step


def _pause(context: RunContext, each: PlannedTrial, step: int, poll: Callable[[], object]) -> None:
    """See all of a trial, and keep one checkpoint, which is then published: many pause, and few of them go on."""
    poll()  # for what the ranks wrote between the last look and their end
    training = each.trial.training
    checkpoints = context.workspace.local_path(f"{run_folder(each.run)}/checkpoints")
    one = {"keep_last": 1, "keep_every_steps": None, "keep_best": 0}
    has_best = training.validation is not None and training.validation.keep_best
    discard_expired(
        checkpoints, training.checkpoints.model_copy(update=one), known_good=(step,), has_best=bool(has_best)
    )
    recycled_files.drop(checkpoints)


class _Together:
    """Trials that train at a time, each on record as soon as it ends."""

    def __init__(
        self,
        context: RunContext,
        planned: Sequence[PlannedTrial],
        spec: LaunchSpec,
        tracking_uri: str,
        pause: Pause | None,
        may_begin: Callable[[PlannedTrial], bool] | None,
    ) -> None:
        self._context, self._spec, self._uri, self._pause = context, spec, tracking_uri, pause
        self._may_begin = may_begin
        self._results = {each.trial.label: TrialResult(planned=each) for each in planned}
        self._new = list[PlannedTrial]()
        for each in planned:
            if _is_trained(context, each, pause):
                self._find(each)
            else:
                self._new.append(each)
        # All claims are looked at before the first is waited for, so that leases run out side by side.
        self._seen = [observe_lease(context.workspace, each.settled.run.link) for each in self._new]
        self._running: dict[int, tuple[contextlib.ExitStack, Watched]] = {}

    def _find(self, each: PlannedTrial) -> None:
        """What is on record of it, or is put there now; where its checkpoint is gone it fails, and ends no other."""
        context, label = self._context, each.trial.label
        context.at.run = each.run.sha256[:16]
        result = self._results[label]
        try:
            self._results[label] = _trained(context, result, self._spec, self._uri, self._pause)
        except HeadwayError as error:
            if not is_permanent(error):
                raise
            self._results[label] = failed(context, result, error)

    def run_as_jobs(self, at_once: int) -> list[TrialResult]:
        """All are queued at once; the scheduler keeps the bound."""
        with showing_slow_ranks(self._context), self._all_of_them():
            watched = {number: found for number in range(len(self._new)) if (found := self._begin(number)) is not None}
            numbers = list(watched)
            if numbers:
                run_all_to_completion(
                    self._context,
                    self._spec,
                    list(watched.values()),
                    at_once=at_once,
                    tolerable=_ends_alone,
                    ended=lambda place, error: self._ended(numbers[place], error),
                )
        return list(self._results.values())

    def run_here(self, room: Room) -> list[TrialResult]:
        """Each begins as soon as there is room."""
        with showing_slow_ranks(self._context), self._all_of_them():
            run_side_by_side(
                self._context,
                room,
                len(self._new),
                self._begin,
                tolerable=_ends_alone,
                again=self._leave,
                ended=self._ended,
            )
        return list(self._results.values())

    @contextlib.contextmanager
    def _all_of_them(self) -> Iterator[None]:
        # A stack for each: a trial that ends gives its lease and threads back while the others still train.
        with contextlib.ExitStack() as all_of_them:
            self._stacks = all_of_them
            yield

    def _begin(self, number: int) -> Watched | None:
        """Its gang, watched; None where it is on record by now, may not begin, or has failed."""
        each, context = self._new[number], self._context
        trial = each.trial
        if self._may_begin is not None and not self._may_begin(each):
            del self._results[trial.label]
            return None
        context.at.run = each.run.sha256[:16]
        # Before it trains: what it costs is this flow run's, also where it never comes to an end.
        context.ledger.event("run.named", run=each.run.sha256)
        _report_trial(context, each, self._pause)
        stack = self._stacks.enter_context(contextlib.ExitStack())
        try:
            while self._is_others(each):
                if _is_trained(context, each, self._pause):
                    self._find(each)
                    return None
            training = watched_training(
                context, trial.training, self._spec, each.settled, self._uri, trial.name, seen=self._seen[number]
            )
            watched = stack.enter_context(training)
        except HeadwayError as error:
            if not is_permanent(error):
                raise
            self._results[trial.label] = failed(context, self._results[trial.label], error)
            return None
        self._running[number] = stack, watched
        return watched

    def _is_others(self, each: PlannedTrial) -> bool:
        """Whether another flow run may have worked on it until now, which has been waited for."""
        try:
            return lock_run(self._context)
        except RunBusy as busy:
            wait_for_other(self._context, busy)
            return True

    def _leave(self, number: int, error: HeadwayError) -> None:
        """It is begun again."""
        stack, _ = self._running.pop(number)
        stack.__exit__(type(error), error, None)

    def _ended(self, number: int, error: HeadwayError | None) -> None:
        each, context = self._new[number], self._context
        context.at.run = each.run.sha256[:16]
        stack, (_, poll) = self._running[number]
        if isinstance(error, RunStopped):
            if self._pause is None or not _is_at_rung(context, each, self._pause.step, error):
                raise error
            _pause(context, each, self._pause.step, poll)
        try:
            stack.__exit__(None if error is None else type(error), error, None)
            if error is not None and not isinstance(error, RunStopped):
                raise error
            if self._pause is None:
                record_trained(context, each.settled.run, each.trial.name)
        except HeadwayError as failure:
            if not is_permanent(failure):
                raise
            self._results[each.trial.label] = failed(context, self._results[each.trial.label], failure)
            return
        if self._pause is not None:
            self._find(each)


def _ends_alone(error: HeadwayError) -> bool:
    return is_permanent(error) or (isinstance(error, RunStopped) and error.reason == "step reached")


def _is_trained(context: RunContext, each: PlannedTrial, pause: Pause | None) -> bool:
    if pause is None:
        return find_intact(context, "launch", launch_inputs(each.settled.run)) is not None
    if _find_usable_rung(context, each, pause) is not None:
        return True
    return checkpoint_at(context, each.run, pause.step) is not None


def _report_trial(context: RunContext, each: PlannedTrial, pause: Pause | None) -> None:
    where = "" if pause is None else f"   to step {pause.step:,}"
    message = f"{each.trial.label}{where}   {each.trial}   run {each.run.sha256[:16]}"
    context.ledger.event("trial", message=message, trial=each.trial.name, settings=each.trial.settings)
