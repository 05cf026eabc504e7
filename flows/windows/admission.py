"""From a request to the gate and back: whether a retrain may run now, and until when."""

from __future__ import annotations

import datetime
import functools
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, get_args

from headway.data_contracts.store.errors import ConfigError, HeadwayError, OutsideWindow, PipelineHeld, RunStopped
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_file import pipeline_file, using_pipeline_file
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.request import TrainingRequest
from headway.flows.config.windows import WindowsSpec
from headway.flows.console.commands import release_command
from headway.flows.console.output import print_line
from headway.flows.prefect_api.flow_run_claims import claim_flow_run
from headway.flows.windows.gate import Admit, Skip, SkipState, decide, opens_next
from headway.flows.windows.holds import current_hold
from headway.flows.windows.openings import UTC, Timetable
from headway.flows.windows.overrides import read_overrides
from headway.flows.windows.schedules import require_an_opening
from headway.tasks.core.flow_run import current_flow_run
from headway.tasks.core.stopped import COST_BOUND_REACHED, STOPPED, WINDOW_CLOSED, name_of, stopped_state
from headway.tasks.ownership import pipeline_history
from headway.tasks.ownership.current_run import record_missed_window

if TYPE_CHECKING:
    from prefect import State

R = TypeVar("R")
Q = TypeVar("Q", bound=TrainingRequest)
STARVING, HELD = "Starving", "Held"
INFRASTRUCTURE = "Infrastructure"
"""The name under which a flow run fails by no fault of its data, its code or its model: another may well succeed."""
PASSING = ("infrastructure", "environment", "registry")
"""Causes of such an end."""
LOST: tuple[SkipState, ...] = ("WindowTooShort", "Missed")
"""Windows in which a run was due and none could begin; other skips are somebody's will."""
ENDED_BY_NAME = (
    *(STOPPED, WINDOW_CLOSED, COST_BOUND_REACHED, STARVING, HELD, INFRASTRUCTURE),
    *get_args(SkipState),
)
"""Names under which a flow run ends that trained less than it might have. Prefect's events go by them."""
MISSED_TOO_MANY = "Its windows do not do for it: `headway windows` says what it needs; open longer, or train less."
entered: ContextVar[TrainingRequest | None] = ContextVar("entered", default=None)
"""What a command has brought through the gate itself: it is not asked again, and its end is the command's exit code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """A pipeline that has windows, as it is asked for."""

    request: TrainingRequest
    spec: PipelineSpec
    windows: WindowsSpec
    timetable: Timetable


def open_pipeline(request: TrainingRequest) -> Pipeline:
    """Read its file, and what people decided about its windows.

    Raises:
        ConfigError: the file, or it has no windows.
        IntegrityError: a recorded decision is damaged.
    """
    _, path, spec = pipeline_file(request.pipeline)
    if spec.windows is None:
        raise ConfigError(
            "the pipeline has no windows.",
            where=str(path),
            advice="Give it a `windows:` branch with time_zone and open; without one it may train at any time.",
        )
    overrides = read_overrides(Workspace(request.workspace), spec.pipeline)
    timetable = Timetable(spec=spec.windows, overrides=overrides)
    return Pipeline(request=request, spec=spec, windows=spec.windows, timetable=timetable)


def admit(request: Q, now: datetime.datetime | None = None) -> Q | Skip:
    """The request with its window's end as deadline, or why it is skipped; unchanged if it does not keep to windows."""
    if not request.in_window:
        return request
    pipeline = open_pipeline(request)
    now = now or datetime.datetime.now(UTC)
    require_an_opening(pipeline.timetable, now)
    decision = decide(pipeline.timetable, now, scheduled_start())
    return decision if isinstance(decision, Skip) else bounded(request, decision)


def bounded(request: Q, run: Admit) -> Q:
    """The request, admitted: it ends by the window's deadline if not before by its own."""
    own = request.stop_at if request.stop_at is not None and request.stop_at <= run.deadline else None
    stop = {} if own is not None else {"stop_at": run.deadline, "stop_because": "window closed"}
    return request.model_copy(update=stop)


def scheduled_start() -> datetime.datetime | None:
    """When this flow run was due: by its schedule, or when a person asked for it; None outside of a flow run."""
    run = current_flow_run()
    # Prefect's own kind of datetime goes wrong in arithmetic.
    due = None if run is None else run.expected_start_time
    return None if due is None else datetime.datetime.fromtimestamp(due.timestamp(), UTC)


def keeping_to_windows(retrain: Callable[[Q], R]) -> Callable[[Q], R | State[None] | State[RunStopped]]:
    """A flow that completes under a name of its own where its windows are closed or close, or where it is stopped.

    None of that is a failure, and none spends a retry. What fails for want of machines or servers is named as well.
    A command has its exit codes besides.
    """

    @functools.wraps(retrain)
    def kept(request: Q) -> R | State[None] | State[RunStopped]:
        from prefect.states import Completed, Failed

        run = current_flow_run()
        claim_flow_run(None if run is None else run.id)
        if request == entered.get():
            return _for_command(retrain, request)  # which uses the file already
        with using_pipeline_file(request.pipeline):
            if (hold := held(request)) is not None:
                return Completed(name=HELD, message=str(hold))
            admitted = admit(request)
            if isinstance(admitted, Skip):
                return _ended(admitted.state, admitted.reason, request, is_lost=admitted.state in LOST)
            try:
                return retrain(admitted)
            except RunStopped as stopped:
                return _ended(_name_of(stopped, request), str(stopped), request)
            except HeadwayError as error:
                if error.cause not in PASSING:
                    raise
                return Failed(name=INFRASTRUCTURE, message=str(error), data=error)

    # Prefect makes the form of it, and would look for the names of types here, not where the flow is.
    kept.__signature__ = inspect.signature(retrain, eval_str=True)  # type: ignore[attr-defined]
    return kept


def _for_command(retrain: Callable[[Q], R], request: Q) -> R | State[RunStopped]:
    """A command's stop is its exit code: `raised_if_stopped` raises it again, outside of the flow run."""
    try:
        return retrain(request)
    except RunStopped as stopped:
        return stopped_state(stopped, _name_of(stopped, request))


def _name_of(stopped: RunStopped, request: TrainingRequest) -> str:
    """A bound of the request's own closes no window."""
    return STOPPED if stopped.reason == "window closed" and not request.in_window else name_of(stopped.reason)


def _ended(name: str, message: str, request: TrainingRequest, *, is_lost: bool = False) -> State[None]:
    """Under this name, or as starving where that was one window too many.

    Args:
        request: as it was before the gate gave it an end.
        is_lost: no run began in the window, though one was due.
    """
    from prefect.states import Completed

    if name != WINDOW_CLOSED and not is_lost:
        return Completed(name=name, message=message)
    pipeline, workspace = open_pipeline(request), Workspace(request.workspace)
    if is_lost:
        record_missed_window(workspace, pipeline.spec.pipeline, pipeline.windows.starving_after)
    now = pipeline_history.read(workspace, pipeline.spec.pipeline)
    if not now.starving:
        return Completed(name=name, message=message)
    return Completed(name=STARVING, message=f"{now.cut}. {name}: {message} {MISSED_TOO_MANY}")


def held(request: TrainingRequest) -> pipeline_history.Hold | None:
    """Who holds the pipeline, where somebody does."""
    return current_hold(Workspace(request.workspace), pipeline_file(request.pipeline).spec.pipeline)


def enter(request: Q) -> Q:
    """`admit` for a command. Who retrains by hand outside of the windows reads so, and continues.

    Raises:
        PipelineHeld: a person holds it; says who and why.
        OutsideWindow: skipped; says why, and when the next window opens.
    """
    if (hold := held(request)) is not None:
        raise PipelineHeld(f"{hold}.", advice=f"`{release_command(request.pipeline, request.workspace)}` lets it go.")
    if message := remark(request):
        print_line(f"headway: {message}", sys.stderr)
    admitted = admit(request)
    if isinstance(admitted, Skip):
        coming = opens_next(open_pipeline(request).windows, admitted.next_opening)
        raise OutsideWindow(f"{admitted.state}: {admitted.reason}", where=request.pipeline, advice=coming)
    entered.set(admitted)
    return admitted


def remark(request: TrainingRequest) -> str:
    """What a person who retrains by hand reads where a schedule would wait; empty otherwise."""
    if request.in_window or pipeline_file(request.pipeline).spec.windows is None:
        return ""
    pipeline = open_pipeline(request)
    decision = decide(pipeline.timetable, datetime.datetime.now(UTC))
    if isinstance(decision, Admit):
        return ""
    coming = opens_next(pipeline.windows, decision.next_opening)
    return f"a retrain by hand does not wait for its windows: {decision.reason} {coming}"
