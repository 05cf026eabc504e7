"""The main job. It reads like the picture in the README:

snapshot ─► validate ─► shard ─► launch ─► verify ─► evaluate ─► register
"""

from __future__ import annotations

from prefect import State, flow

from headway.data_contracts.store.documents import Link
from headway.flows.config.first_step import check_first_step
from headway.flows.config.pipeline_file import pipeline_file
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.preflight import check_contract
from headway.flows.config.request import RetrainRequest
from headway.flows.prefect_api.champion_event import emit_champion_event
from headway.flows.report.summary import RetrainSummary, as_state, summarise
from headway.flows.run.session import session
from headway.flows.windows.admission import keeping_to_windows
from headway.tasks.core.context import RunContext
from headway.tasks.ownership.current_run import abandoning_on_failure, cut_run, finish, start, started_at
from headway.tasks.registry.champion import RegistrationOutcome
from headway.tasks.rows.heldout_parts import require_parts
from headway.tasks.rows.slices import require_columns
from headway.tasks.stages.evaluate import evaluate
from headway.tasks.stages.launch import continue_run, launch
from headway.tasks.stages.register import register, tracking_uri
from headway.tasks.stages.resumed_run import named_run, rewind_run
from headway.tasks.stages.shard import shard
from headway.tasks.stages.snapshot import snapshot
from headway.tasks.stages.validate import validate
from headway.tasks.stages.verify import verify


@flow(name="retrain", flow_run_name="retrain {request.pipeline}", persist_result=False)
@keeping_to_windows
def retrain(request: RetrainRequest) -> RetrainSummary | State[RetrainSummary]:
    """Retrain one model: every stage finds what it made before, or makes it and writes it down.

    Args:
        request: What to retrain, and what may come of it.
    """
    with session(request) as (run, pipeline):
        if request.run:
            return as_state(resume(run, pipeline, request))
        # Before newer data: where they change daily, no run would ever come to its end.
        if request.in_window and (cut := cut_run(run)) is not None:
            training = continue_run(run, pipeline.launch, cut, tracking_uri(run, pipeline.registry))
            started_unix_s = started_at(run, cut)
            evaluate_and_register(run, pipeline, training)
            finish(run, started_unix_s)
            run.devices.release()  # sharding needs none
        # A command has checked this already; a run of a form, schedule or trigger has not.
        with run.ledger.span("check"):
            path = pipeline_file(request.pipeline).path
            contract = check_contract(pipeline, path)
            if untried := check_first_step(pipeline, path, contract, run.workspace):
                run.ledger.event("recipe.untried", message=f"not tried on made-up rows: {untried}.")
        files = snapshot(run, pipeline.contract, pipeline.source)
        require_columns(run.workspace, pipeline.evaluation.slices, files)
        receipt = validate(run, pipeline.contract, pipeline.source, files, pipeline.shards)
        manifest = shard(run, pipeline.shards, pipeline.source, files, receipt)
        require_parts(run, pipeline.evaluation.ranking_share, pipeline.source, manifest)
        # Called directly, in the main thread: a submitted task would never see Prefect's termination signal.
        training = launch(run, pipeline.training, pipeline.launch, manifest, tracking_uri(run, pipeline.registry))
        evaluation, outcome = evaluate_and_register(run, pipeline, training)
        finish(run, run.started_unix_s, files)
        return as_state(summarise(run, pipeline, receipt, evaluation, outcome))


def resume(run: RunContext, pipeline: PipelineSpec, request: RetrainRequest) -> RetrainSummary:
    """A run that a person names, to its end, on its own code and data."""
    link, started = named_run(run.workspace, request.run, pipeline.pipeline)
    if request.from_step is not None:
        rewind_run(run, link, request.from_step, why=request.note)
    # Only now: a rewind that is refused leaves the pipeline at the run it was at.
    start(run, link.sha256)
    training = continue_run(run, pipeline.launch, link, tracking_uri(run, pipeline.registry))
    evaluation, outcome = evaluate_and_register(run, pipeline, training)
    finish(run, run.started_unix_s)
    return summarise(run, pipeline, started.receipt, evaluation, outcome)


def evaluate_and_register(run: RunContext, pipeline: PipelineSpec, training: Link) -> tuple[Link, RegistrationOutcome]:
    """What follows training: the evaluation, and which version it became."""
    with abandoning_on_failure(run):
        checkpoint = verify(run, pipeline.launch, training)
        evaluation = evaluate(
            run, pipeline.evaluation, pipeline.registry, pipeline.launch, pipeline.shards, pipeline.source, checkpoint
        )
        outcome = register(run, pipeline.registry, pipeline.promotion, pipeline.launch, checkpoint, evaluation)
    if outcome.promoted:
        emit_champion_event(pipeline.registry.model, outcome.version, outcome.reason)
    return evaluation, outcome
