"""The main job. It reads like the picture in the README:

snapshot ─► validate ─► shard ─► launch ─► verify ─► evaluate ─► register
"""

from __future__ import annotations

from headway.flows.config.first_step import check_first_step
from headway.flows.config.pipeline_file import pipeline_file
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.preflight import check_contract
from headway.flows.config.request import RetrainRequest
from headway.flows.config.tuned import for_run
from headway.flows.console.prefect_settings import keeps_records
from headway.flows.monitoring.pushing import pushing_session
from headway.flows.report.summary import RetrainSummary, summarise
from headway.flows.run.session import watchers
from headway.flows.run.stages import evaluate_and_register, shards_of_today
from headway.flows.trials.scheduled import is_search_due, search_when_due, settings_to_keep
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage import StageNotFound
from headway.tasks.ownership.current_run import cut_run, finish, start, started_at
from headway.tasks.stages.launch import continue_run, launch
from headway.tasks.stages.register import tracking_uri
from headway.tasks.stages.resumed_run import named_run, rewind_run
from headway.training.observe.ledger import Event


def run_stages(run: RunContext, pipeline: PipelineSpec, request: RetrainRequest) -> RetrainSummary:
    """Every stage finds what it made before, or makes it and writes it down."""
    if request.run:
        return resume(run, pipeline, request)
    # Before newer data: where they change daily, no run would ever come to its end.
    if request.in_window and (cut := cut_run(run)) is not None:
        then = for_run(pipeline, pipeline_file(request.pipeline).spec, run.workspace, cut)
        training = continue_run(run, then.training, then.launch, cut, tracking_uri(run, pipeline.registry))
        started_unix_s = started_at(run, cut)
        evaluate_and_register(run, then, training)
        finish(run, started_unix_s)
        run.devices.release()  # sharding needs none
    # A command has checked this already; a run of a form, schedule or trigger has not.
    with run.ledger.span("check"):
        path = pipeline_file(request.pipeline).path
        contract = check_contract(pipeline, path)
        if untried := check_first_step(pipeline, path, contract, run.workspace):
            run.ledger.event("recipe.untried", message=f"not tried on made-up rows: {untried}.")
    if to_keep := settings_to_keep(run.workspace, pipeline):
        run.ledger.event("search.kept", message=to_keep)
    files, receipt, manifest = shards_of_today(run, pipeline)
    # Called directly, in the main thread: a submitted task would never see Prefect's termination signal.
    training = launch(run, pipeline.training, pipeline.launch, manifest, tracking_uri(run, pipeline.registry))
    evaluation, outcome = evaluate_and_register(run, pipeline, training)
    finish(run, run.started_unix_s, files)
    return summarise(run, pipeline, receipt, evaluation, outcome)


def retrain_and_search(run: RunContext, pipeline: PipelineSpec, request: RetrainRequest) -> RetrainSummary:
    """The retrain; then the window's rest for a search, where one is due. What came last is what is summed up."""
    summary = run_stages(run, pipeline, request)
    return search_when_due(run, pipeline, request) or summary


def found_retrain(request: RetrainRequest) -> RetrainSummary | None:
    """What a retrain comes to that finds every stage. It needs no Prefect, which would only be told so.

    Returns:
        None where something has to be made, or whatever else is in the way: the flow of it looks again, and says what.
    """
    if request.run:
        return None
    events: list[Event] = []
    watching = watchers.get()
    token = watchers.set((events.append,))
    try:
        with pushing_session(request, finds_only=True) as (run, pipeline):
            if is_search_due(run.workspace, pipeline, request):
                return None
            summary = run_stages(run, pipeline, request)
    except (StageNotFound, Exception):
        return None
    finally:
        watchers.reset(token)
    for event in events:
        for listener in watching:
            listener(event)
    return summary


def needs_prefect(request: RetrainRequest) -> bool:
    """Whether Prefect runs it although no server is configured: for its records, or to share groups of shards out."""
    return keeps_records() or pipeline_file(request.pipeline).spec.shards.group_tasks


def retrain_here(request: RetrainRequest) -> RetrainSummary:
    """The retrain as plain calls, without Prefect's engine: the same stages, ledger, retries and ends."""
    with pushing_session(request) as (run, pipeline):
        return retrain_and_search(run, pipeline, request)


def resume(run: RunContext, pipeline: PipelineSpec, request: RetrainRequest) -> RetrainSummary:
    """A run that a person names, to its end, on its own code and data."""
    link, started = named_run(run.workspace, request.run, pipeline.pipeline)
    if request.from_step is not None:
        rewind_run(run, link, request.from_step, why=request.note)
    # Only now: a rewind that is refused leaves the pipeline at the run it was at.
    start(run, link.sha256)
    pipeline = for_run(pipeline, pipeline_file(request.pipeline).spec, run.workspace, link)
    training = continue_run(run, pipeline.training, pipeline.launch, link, tracking_uri(run, pipeline.registry))
    evaluation, outcome = evaluate_and_register(run, pipeline, training)
    finish(run, run.started_unix_s)
    return summarise(run, pipeline, started.receipt, evaluation, outcome)
