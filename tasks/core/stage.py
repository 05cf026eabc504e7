"""The one idea that gives caching, idempotent retries, lineage and proof: look the key up, else make and record."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial, update_wrapper, wraps
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from headway.data_contracts.store import stages
from headway.data_contracts.store.documents import Document, Link, StoredFile
from headway.data_contracts.store.errors import IntegrityError, RunBusy, RunStopped
from headway.tasks.core.context import RunContext
from headway.tasks.core.flow_run import current_flow_run
from headway.tasks.core.retry_policy import RETRY_DELAYS_S, is_transient, retried
from headway.tasks.core.run_locks import lock_run, wait_for_other
from headway.tasks.core.stopped import raised_if_stopped, stopped_state

if TYPE_CHECKING:
    from prefect import State, Task

P = ParamSpec("P")
R = TypeVar("R")


class StageNotFound(BaseException):
    """A flow run that only finds would have to make a stage. That is no failure, and no handler of one hears it."""


class Stage(Generic[P, R]):
    """A plain function, `fn`, whose first argument is the run's context. In a flow run it is a task of Prefect's.

    Whoever is in none, such as a command without a server, calls the function with the same retries.
    """

    def __init__(self, fn: Callable[P, R], *, name: str, task_run_name: str) -> None:
        self.fn, self._name, self._task_run_name = _with_span(fn, name), name, task_run_name
        update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if current_flow_run() is None:
            return retried(partial(self.fn, *args, **kwargs))
        from prefect.utilities.annotations import quote

        # No argument holds a future. Prefect would look for one in every field of every trial, which for a round of
        # trials takes longer than writing them down.
        quoted, named = map(quote, args), {name: quote(each) for name, each in kwargs.items()}
        # What Prefect does beside the function has a name in the account of time: all that no span inside it covers.
        with _context_in(args).ledger.span("prefect", task=self._name):
            task: Callable[..., R | State[RunStopped]] = self._task
            return raised_if_stopped(task(*quoted, **named))

    @cached_property
    def _task(self) -> Task[P, R | State[RunStopped]]:
        from prefect import Task
        from prefect.cache_policies import NO_CACHE

        return Task(
            _completing(self.fn),
            name=self._name,
            task_run_name=self._task_run_name,
            # Prefect's cache knows nothing of the bytes a result stands on; ours re-checks them.
            cache_policy=NO_CACHE,
            persist_result=False,
            # For a registry that does not answer; lost ranks draw on the supervisor's own budget.
            retries=len(RETRY_DELAYS_S),
            retry_delay_seconds=[*RETRY_DELAYS_S],
            retry_condition_fn=is_transient,
        )


def _with_span(fn: Callable[P, R], name: str) -> Callable[P, R]:
    @wraps(fn)
    def spanned(*args: P.args, **kwargs: P.kwargs) -> R:
        with _context_in(args).ledger.span("task", task=name):
            return fn(*args, **kwargs)

    return spanned


def _completing(fn: Callable[P, R]) -> Callable[P, R | State[RunStopped]]:
    """Prefect would show who yields to a window's end as failed, with an error in the log."""

    @wraps(fn)
    def completing(*args: P.args, **kwargs: P.kwargs) -> R | State[RunStopped]:
        try:
            return fn(*args, **kwargs)
        except RunStopped as stopped:
            return stopped_state(stopped)

    return completing


def _context_in(args: tuple[object, ...]) -> RunContext:
    context = args[0]
    assert isinstance(context, RunContext)
    return context


def stage_task(*, name: str, task_run_name: str) -> Callable[[Callable[P, R]], Stage[P, R]]:
    return partial(Stage, name=name, task_run_name=task_run_name)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageOutput:
    """What a stage made: its document, and the workspace files that the document stands on."""

    document: Document
    files: tuple[StoredFile, ...] = ()
    duration_s: float | None = None
    """What it took, where that is not the call that made it."""
    num_steps: int | None = None
    """Training steps that were made in that time, where it is training: a run that was cut resumes with those left."""


def find_or_make(
    context: RunContext,
    stage: str,
    inputs: Mapping[str, Any],
    make: Callable[[], StageOutput],
    *,
    shown: str = "",
    span: str = "",
    exclusive: bool = False,
) -> Link:
    """The document of a stage, found under the key of all its inputs or made now; see `found_or_made`."""
    with found_or_made(context, stage, inputs, make, shown=shown, span=span, exclusive=exclusive) as link:
        return link


@contextlib.contextmanager
def found_or_made(
    context: RunContext,
    stage: str,
    inputs: Mapping[str, Any],
    make: Callable[[], StageOutput],
    *,
    shown: str = "",
    span: str = "",
    exclusive: bool = False,
) -> Iterator[Link]:
    """The document of a stage, found under the key of all its inputs or made now; the body belongs to the stage.

    A record whose files are damaged is made again, and the ledger says what was wrong with it. Nothing is started once
    the flow run's time is over.

    Args:
        shown: what a person sees beside the stage's name.
        span: another name in the ledger than `stage.<stage>`, for work that is not this run's own stage.
        exclusive: made by one flow run at a time of those that are at the same run.

    Raises:
        StageNotFound: it is not found, and `context` only finds.
        RunBusy: another process works on the run, and is not waited for.
        RunStopped: the time is over.
    """
    with context.ledger.span(span or f"stage.{stage}", shown=shown) as fields:
        while True:
            # In the place of a workspace that went away nothing would be found, and everything be made again.
            context.workspace.require_there()
            found = find_and_renew(context, stage, inputs)
            fields["found"] = found is not None
            if found is not None:
                yield found.document
                return
            if context.finds_only:
                raise StageNotFound(stage)
            # After the look-up: what is found takes no time, so that also a flow run whose time is over may use it.
            context.require_time(f"stage {stage}")
            try:
                if exclusive and lock_run(context):
                    continue  # another flow run may have made it just before
                started = time.perf_counter()
                made = make()
                break
            except RunBusy as busy:
                wait_for_other(context, busy)
        took_s = time.perf_counter() - started if made.duration_s is None else made.duration_s
        link = context.workspace.publish_document(made.document)
        steps = {} if made.num_steps is None else {"num_steps": made.num_steps}
        # Last: a record that names a document which was never published would be a hit without content.
        stages.record(
            context.workspace,
            stage,
            inputs,
            link,
            files=made.files,
            # Beside the document, not in it: equal inputs have to give equal bytes, whenever they are made.
            provenance={"unix_s": time.time(), "duration_s": round(took_s, 3), "pipeline": context.pipeline, **steps},
        )
        yield link


def find_and_renew(context: RunContext, stage: str, inputs: Mapping[str, Any]) -> stages.StageRecord | None:
    found = find_intact(context, stage, inputs)
    # The flow run may use it for hours, and `headway clean` removes what was not used for long.
    if found is not None and not context.workspace.renew(stages.record_path(stage, found.key)):
        return None  # it was cleaned away meanwhile
    return found


def find_intact(context: RunContext, stage: str, inputs: Mapping[str, Any]) -> stages.StageRecord | None:
    try:
        return stages.find(context.workspace, stage, stages.stage_key(stage, inputs), context.digests)
    except IntegrityError as error:
        context.report_damage(stage, str(error))
        return None
