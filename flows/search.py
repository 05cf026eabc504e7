"""Trials over the pipeline, the best one kept:

snapshot ─► validate ─► shard ─► ┌► train each ─► rank ─┐ ─► verify ─► evaluate ─► register
                                 └─── rungs, rounds ◄───┘
"""

from __future__ import annotations

from prefect import State, flow

from headway.data_contracts.store.documents import Link
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.config.request import ComparisonRequest, TrialsRequest
from headway.flows.prefect_api.concurrency_lease import keep_running
from headway.flows.report.summary import summarise
from headway.flows.retrain import evaluate_and_register
from headway.flows.run.session import session
from headway.flows.trials.comparison import ComparisonSummary, summarise_comparison
from headway.flows.trials.report import as_state, report
from headway.flows.trials.summary import TrialsSummary
from headway.flows.trials.wanted import comparable_pipeline, wanted_trials
from headway.flows.windows.admission import keeping_to_windows
from headway.tasks.core.context import RunContext
from headway.tasks.rows.heldout_parts import require_parts
from headway.tasks.rows.slices import require_columns
from headway.tasks.search.pace import require_worthwhile
from headway.tasks.stages.register import tracking_uri
from headway.tasks.stages.search import search
from headway.tasks.stages.settings_comparison import compare_settings
from headway.tasks.stages.shard import shard
from headway.tasks.stages.snapshot import snapshot
from headway.tasks.stages.trial_scores import Scoring
from headway.tasks.stages.validate import validate

keep_running()  # as the module is imported: Prefect loads a flow, and then takes up its slot


@flow(name="trials", flow_run_name="trials of {request.pipeline}", persist_result=False)
@keeping_to_windows
def trials(request: TrialsRequest) -> TrialsSummary | State[TrialsSummary]:
    """Train a model with each of several settings, rank them, and continue with the best as a retrain does.

    Args:
        request: Whose training to try settings of, and what may come of it.
    """
    with session(request) as (run, pipeline):
        wanted = wanted_trials(pipeline)
        require_worthwhile(run.workspace, run.pipeline, wanted, pipeline.training)
        receipt, manifest = _shards(run, pipeline)
        # Called directly, in the main thread: a submitted task would never see Prefect's termination signal.
        found = search(
            run,
            wanted,
            pipeline.training,
            _scoring(pipeline),
            manifest,
            tracking_uri(run, pipeline.registry),
        )
        # From here on the flow run works on the best one's run, and takes its lock.
        run.at.run = found.best.run.sha256[:16]
        trial = found.best.trial
        best = pipeline.model_copy(update={"training": trial.training, "shards": trial.shards})
        evaluation, outcome = evaluate_and_register(run, best, found.best.run)
        return as_state(report(run, found, summarise(run, best, receipt, evaluation, outcome)))


@flow(name="compare settings", flow_run_name="compare settings of {request.pipeline}", persist_result=False)
@keeping_to_windows
def settings_comparison(request: ComparisonRequest) -> ComparisonSummary:
    """Train a pipeline's settings and another file's with the same seeds, and say which are better; neither is kept.

    Args:
        request: Whose training to compare, and with which file's.
    """
    with session(request) as (run, pipeline):
        path, other = comparable_pipeline(pipeline, request.against)
        _, manifest = _shards(run, pipeline)
        found = compare_settings(
            run,
            pipeline.configuration,
            other.configuration,
            path.parent,
            request.seeds,
            _scoring(pipeline),
            manifest,
            tracking_uri(run, pipeline.registry),
            None if pipeline.trials is None else pipeline.trials.max_parallel,
        )
        return summarise_comparison(run, found, request.against)


def _shards(run: RunContext, pipeline: PipelineSpec) -> tuple[Link, Link]:
    """The receipt and the manifest of today's data."""
    files = snapshot(run, pipeline.contract, pipeline.source)
    require_columns(run.workspace, pipeline.evaluation.slices, files)
    receipt = validate(run, pipeline.contract, pipeline.source, files, pipeline.shards)
    manifest = shard(run, pipeline.shards, pipeline.source, files, receipt)
    require_parts(run, pipeline.evaluation.ranking_share, pipeline.source, manifest)
    return receipt, manifest


def _scoring(pipeline: PipelineSpec) -> Scoring:
    return Scoring(
        evaluation=pipeline.evaluation, launch=pipeline.launch, shards=pipeline.shards, source=pipeline.source
    )
