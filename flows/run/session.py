"""One flow run's surroundings: workspace, ledger, scratch folder and watchers, opened and closed in one place."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from headway.data_contracts.store.errors import DataError, HeadwayError, IntegrityError, RunStopped
from headway.data_contracts.store.full_disk import naming_a_full_disk
from headway.data_contracts.store.leftovers import at_work_in, scratch_folder
from headway.data_contracts.store.places import as_unusable
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.flows.accounts.flow_ledgers import ledger_spool, start_ticks
from headway.flows.accounts.kept_accounts import keep_quietly
from headway.flows.accounts.spending import BoundSpending, expected_kind
from headway.flows.config.cost_bound import bound_prices
from headway.flows.config.pipeline_file import pipeline_file
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.request import RetrainRequest, TrainingRequest, TuneRequest
from headway.flows.config.tuned import TunedPipeline, tuned
from headway.flows.console.environment import project_folder
from headway.flows.prefect_api.worker_watchdog import ended_with_worker
from headway.flows.report.failure_facts import BRIEFLY, failure_card
from headway.flows.report.run_log import run_log
from headway.flows.tracing.export import export_quietly
from headway.tasks.core.context import RunContext
from headway.tasks.core.devices import LIMITS, Devices, UnboundSpending, UnlimitedDevices
from headway.tasks.core.flow_run import current_flow_run
from headway.tasks.core.gangs import log_format
from headway.tasks.ownership.current_run import recording_the_end
from headway.training.launch.base.stop_request import StopRequest
from headway.training.launch.node.forked_guards import forking
from headway.training.observe.ledger import Ledger, Listener
from headway.training.observe.trace_context import TraceContext, flow_trace, given_parent

watchers: ContextVar[tuple[Listener, ...]] = ContextVar("watchers", default=())
"""Who sees every event of the flow run as it happens: the terminal, a test."""
command_started_unix_s: ContextVar[float | None] = ContextVar("command_started_unix_s", default=None)
"""When the command was started, so that imports and Prefect's own start are accounted for too."""
PREFECTS_TRACEPARENT = "__OTEL_TRACEPARENT"
"""Of a flow run, the label by which Prefect carries the span that started it."""
SWITCHED_OFF = "promotion was switched off for this run"
WORKER_LOST = "the worker that started this flow is gone; what was finished is kept, and the next run resumes."


@contextlib.contextmanager
def session(request: TrainingRequest, *, finds_only: bool = False) -> Iterator[tuple[RunContext, PipelineSpec]]:
    """Everything a flow run needs, from its request.

    Args:
        finds_only: whether the first stage that is not found ends it, as if it had never begun: without a ledger,
            a card or a word in the pipeline's history.

    Raises:
        ConfigError: the pipeline file.
        EnvironmentProblem: the workspace.
        RunStopped: the time to stop is over already.
        CostBoundReached: the pipeline has cost in this month what it may.
    """
    stop = request.stop
    log_format()  # one that does not exist is told before anything is made
    _, path, pipeline = pipeline_file(request.pipeline)
    workspace = Workspace.create(request.workspace)
    # What is to be tuned is measured as the file has it.
    taken = TunedPipeline(pipeline, "") if isinstance(request, TuneRequest) else tuned(pipeline, workspace)
    pipeline = taken.pipeline
    started_unix_s = command_started_unix_s.get() or time.time()
    # What is found costs nothing.
    spending = None if finds_only else _spending(pipeline, workspace, request, started_unix_s)
    if spending is not None:
        spending.require("the retrain", "")
    with (
        naming_a_full_disk(str(workspace.local_root)),
        # Before anything is looked up: what a flow run at work may have found is not cleaned away.
        at_work_in(workspace.local_root, workspace.local_path("sessions")) as claim,
        _present(workspace, claim),
        _ledger(request, stop, pipeline, workspace, started_unix_s, finds_only) as (identity, ledger, trace),
        _end_on_record(ledger) as stages_ended,
        scratch_folder("headway-") as scratch,
        naming_a_full_disk(str(workspace.local_root), str(scratch.parent)),  # while what fills it is still there
        _digests(workspace) as digests,
        forking(),
        ended_with_worker(lambda: ledger.event("worker.lost", message=WORKER_LOST)),
    ):
        ledger.elapsed("start", started_unix_s)
        if taken.message:
            ledger.event("tuned", message=taken.message)
        context = RunContext(
            pipeline=pipeline.pipeline,
            workspace=workspace,
            base=path.parent,
            ledger=ledger,
            digests=digests,
            scratch=scratch,
            budget_scope=identity,
            started_unix_s=started_unix_s,
            devices=_devices(pipeline, ledger, stop),
            blocked_promotion="" if request.may_promote else SWITCHED_OFF,
            may_register=request.may_register,
            spending=UnboundSpending() if spending is None else replace(spending, flow_run=identity),
            stop=stop,
            continued_by=request.command,
            wait_s=request.wait_s,
            finds_only=finds_only,
            traceparent=trace.header,
        )
        starving_after = None if pipeline.windows is None else pipeline.windows.starving_after
        # Trials are nobody's current run: what a retrain left to be resumed is not for them to end.
        is_recorded = isinstance(request, RetrainRequest) and not finds_only
        recording = recording_the_end(context, starving_after) if is_recorded else contextlib.nullcontext()
        card = contextlib.nullcontext() if finds_only else failure_card(context, request, pipeline)
        with (
            # Left from the last to the first: what a lost workspace led to has its name before the card is written.
            context.owned.held,
            recording,
            card,
            _naming_a_lost_workspace(workspace),
        ):
            try:
                yield context, pipeline
            finally:
                stages_ended()
                context.devices.release()


@contextlib.contextmanager
def _ledger(
    request: TrainingRequest,
    stop: StopRequest,
    pipeline: PipelineSpec,
    workspace: Workspace,
    started_unix_s: float,
    finds_only: bool,
) -> Iterator[tuple[str, Ledger, TraceContext]]:
    """The flow run's identity, its ledger, from the first event to the last, and its own span."""
    flow_run = current_flow_run()
    identity = str(uuid.uuid4() if flow_run is None else flow_run.id)
    parent = given_parent(own="" if flow_run is None else str(flow_run.labels.get(PREFECTS_TRACEPARENT, "")))
    with (
        _discarded_unless_it_ends(workspace, identity) if finds_only else _published_at_the_end(workspace, identity),
        contextlib.closing(Ledger(ledger_spool(workspace, identity), process="flow", flow_run=identity)) as ledger,
    ):
        ledger.listeners.extend((*watchers.get(), *run_log()))
        # The kernel gives a number again once its process has ended; with the start it is unique.
        here = {"host": socket.gethostname(), "pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
        who = {"pipeline": pipeline.pipeline, "owner": pipeline.owner, "job_class": pipeline.job_class}
        begin = {**who, "note": request.note, "in_window": request.in_window, "started_unix_s": started_unix_s, **here}
        # On record: whoever sends the trace of a flow run that was killed has another environment.
        given = {} if parent is None else {"traceparent": parent.header}
        ledger.event("flow.begin", **begin, **({"stop": message} if (message := str(stop)) else {}), **given)
        # A full disk should be found now, not after hours of training.
        ledger.require_written()
        try:
            yield identity, ledger, flow_trace(identity, parent)
        except RunStopped as stopped:
            ledger.event("flow.stopped", reason=stopped.reason, message=str(stopped), continued_by=request.command)
            raise
        # Prefect's cancellation and Ctrl-C are no `Exception`, and have to be on record as well.
        except BaseException as error:
            ledger.event("flow.failed", error=type(error).__name__, message=str(error))
            raise
        finally:
            ledger.event("flow.end")


@contextlib.contextmanager
def _end_on_record(ledger: Ledger) -> Iterator[Callable[[], None]]:
    """What follows the stages, such as the end of the processes that forked guards, has a name in the time account."""
    moments: list[float] = []
    try:
        yield lambda: moments.append(time.time())
    finally:
        for ended_unix_s in moments:
            ledger.elapsed("end", ended_unix_s)


@contextlib.contextmanager
def _published_at_the_end(workspace: Workspace, identity: str) -> Iterator[None]:
    """The flow's segment of the ledger, once it is closed; in a folder it lies there already."""
    try:
        yield
    finally:
        _publish_ledger(workspace, identity)


def _publish_ledger(workspace: Workspace, identity: str) -> None:
    # The ledger is a copy there: a store that is away must not make a finished retrain fail.
    brief = Workspace(workspace.uri, BRIEFLY)
    # A workspace that went away must not be made anew.
    brief.presence = workspace.presence
    with contextlib.suppress(OSError, HeadwayError):
        brief.publish_tree(f"ledger/{identity}")
    keep_quietly(brief, identity)
    export_quietly(brief, identity)


@contextlib.contextmanager
def _discarded_unless_it_ends(workspace: Workspace, identity: str) -> Iterator[None]:
    """The ledger of a flow run that only finds: the one that makes what was missing writes its own."""
    try:
        yield
    except BaseException:
        shutil.rmtree(ledger_spool(workspace, identity).parent, ignore_errors=True)
        raise
    _publish_ledger(workspace, identity)


def _devices(pipeline: PipelineSpec, ledger: Ledger, stop: StopRequest) -> Devices:
    """Counted where a deployment says by whom; a command with a server of its own counts nothing."""
    if not (pipeline.occupies and os.environ.get(LIMITS)):
        return UnlimitedDevices()
    from headway.flows.prefect_api.devices import devices_of

    return devices_of(pipeline, ledger, stop)


def _spending(
    pipeline: PipelineSpec, workspace: Workspace, request: TrainingRequest, started_unix_s: float
) -> BoundSpending | None:
    """None: nothing bounds it.

    Raises:
        ConfigError: the bound has no prices.
    """
    if pipeline.cost_bound is None:
        return None
    return BoundSpending(
        workspace=workspace,
        pipeline=pipeline.pipeline,
        spec=pipeline.cost_bound,
        prices=bound_prices(project_folder()),
        devices=pipeline.launch.world_size,
        kind=expected_kind(workspace, pipeline.pipeline, is_here=pipeline.launch.launcher == "local"),
        continued_by=request.command,
        started_unix_s=started_unix_s,
        is_one_run=isinstance(request, RetrainRequest),
    )


@contextlib.contextmanager
def _present(workspace: Workspace, claim: Path) -> Iterator[None]:
    """Nothing is published in the body once the claim is gone, for then the workspace is."""
    workspace.presence = claim
    try:
        yield
    finally:
        workspace.presence = None


@contextlib.contextmanager
def _naming_a_lost_workspace(workspace: Workspace) -> Iterator[None]:
    """Raises `EnvironmentProblem` for whatever fails in the body because the workspace's folder went away, or because
    the system refuses a file in it."""
    try:
        yield
    except RunStopped:
        raise
    except Exception as error:
        problem = workspace.lost() or as_unusable(error, (workspace.local_root,))
        if problem is None:
            raise
        raise problem from error


@contextlib.contextmanager
def _digests(workspace: Workspace) -> Iterator[DigestCache]:
    digests = DigestCache(workspace.local_path("digest-cache.json"))
    try:
        yield digests
    except (IntegrityError, DataError):
        digests.forget_all()  # the next run hashes everything, finds what is damaged and makes it again
        raise
    finally:
        with contextlib.suppress(OSError, HeadwayError):
            workspace.require_there()
            digests.save()  # what was hashed need not be hashed again; losing it costs time alone
