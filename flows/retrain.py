"""The main job. It reads like the picture in the README:

snapshot ─► validate ─► shard ─► launch ─► verify ─► evaluate ─► register
"""

from __future__ import annotations

from prefect import State, flow

from data_contracts.documents import Link
from flows.champion_event import tell_of_champion
from flows.environment import project_folder
from flows.first_step import check_first_step
from flows.last_retrains import write_finished
from flows.pipeline_spec import PipelineSpec, find_pipeline_file
from flows.preflight import check_contract
from flows.request import RetrainRequest
from flows.session import session
from flows.summary import RetrainSummary, as_state, summarise
from flows.triggers.records import record_finished
from flows.windows.admission import keeping_to_windows
from tasks.champion import Outcome
from tasks.context import RunContext
from tasks.current_run import begin, begun_at, cut_run, finish, giving_up
from tasks.evaluate import evaluate
from tasks.heldout_parts import require_parts
from tasks.launch import carry_on, launch
from tasks.register import register, tracking_uri
from tasks.resumed_run import go_back, named_run
from tasks.shard import shard
from tasks.slices import require_columns
from tasks.snapshot import snapshot
from tasks.validate import validate
from tasks.verify import verify


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
        if request.in_window and (cut := cut_run(run)) is not None:
            training = carry_on(run, pipeline.launch, cut, tracking_uri(run, pipeline.registry))
            begun_unix_s = begun_at(run, cut)
            judge_and_register(run, pipeline, training)
            write_finished(run, begun_unix_s)
            run.devices.give_back()  # sharding needs none
        with run.ledger.span("check"):
            path = find_pipeline_file(request.pipeline, project_folder())
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
        evaluation, outcome = judge_and_register(run, pipeline, training)
        write_finished(run, run.began_unix_s)
        record_finished(run, files, serves_events=bool(pipeline.triggers and pipeline.triggers.event))
        return as_state(summarise(run, pipeline, receipt, evaluation, outcome))


def resume(run: RunContext, pipeline: PipelineSpec, request: RetrainRequest) -> RetrainSummary:
    """A run that a person names, to its end, on its own code and data."""
    link, begun = named_run(run.workspace, request.run, pipeline.pipeline)
    if request.from_step is not None:
        go_back(run, link, request.from_step, why=request.note)
    begin(run, link.sha256)
    training = carry_on(run, pipeline.launch, link, tracking_uri(run, pipeline.registry))
    evaluation, outcome = judge_and_register(run, pipeline, training)
    write_finished(run, begun_unix_s=0.0)  # what failed since it began may fail again
    return summarise(run, pipeline, begun.receipt, evaluation, outcome)


def judge_and_register(run: RunContext, pipeline: PipelineSpec, training: Link) -> tuple[Link, Outcome]:
    """What follows training: the evaluation, and which version it became."""
    with giving_up(run):
        checkpoint = verify(run, pipeline.launch, training)
        evaluation = evaluate(run, pipeline, checkpoint)
        outcome = register(run, pipeline.registry, pipeline.promotion, pipeline.launch, checkpoint, evaluation)
    finish(run)
    if outcome.promoted:
        tell_of_champion(pipeline.registry.model, outcome.version, outcome.reason)
    return evaluation, outcome
