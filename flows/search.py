"""Trials over the pipeline, the best one kept:

snapshot ─► validate ─► shard ─► ┌► train each ─► rank ─┐ ─► verify ─► evaluate ─► register
                                 └─── rungs, rounds ◄───┘
"""

from __future__ import annotations

from prefect import State, flow

from headway.flows.config.request import ComparisonRequest, TrialsRequest
from headway.flows.monitoring.pushing import pushing_session
from headway.flows.prefect_api.concurrency_lease import keep_running
from headway.flows.run.stages import shards_of_today
from headway.flows.trials.comparison import ComparisonSummary, summarise_comparison
from headway.flows.trials.report import as_state
from headway.flows.trials.scheduled import end_search
from headway.flows.trials.stages import scoring_of, search_and_register
from headway.flows.trials.summary import TrialsSummary
from headway.flows.trials.wanted import comparable_pipeline, wanted_trials
from headway.flows.windows.admission import keeping_to_windows
from headway.tasks.search.pace import require_worthwhile
from headway.tasks.stages.register import tracking_uri
from headway.tasks.stages.settings_comparison import compare_settings

keep_running()  # as the module is imported: Prefect loads a flow, and then takes up its slot


@flow(name="trials", flow_run_name="trials of {request.pipeline}", persist_result=False)
@keeping_to_windows
def trials(request: TrialsRequest) -> TrialsSummary | State[TrialsSummary]:
    """Train a model with each of several settings, rank them, and continue with the best as a retrain does.

    Args:
        request: Whose training to try settings of, and what may come of it.
    """
    with pushing_session(request) as (run, pipeline):
        require_worthwhile(run.workspace, run.pipeline, wanted_trials(pipeline), pipeline.training)
        _, receipt, manifest = shards_of_today(run, pipeline)
        made = search_and_register(run, pipeline, receipt, manifest, run.started_unix_s)
        # The schedule has nothing to search before its next period.
        end_search(run, pipeline, made, run.started_unix_s)
        return as_state(made)


@flow(name="compare settings", flow_run_name="compare settings of {request.pipeline}", persist_result=False)
@keeping_to_windows
def settings_comparison(request: ComparisonRequest) -> ComparisonSummary:
    """Train a pipeline's settings and another file's with the same seeds, and say which are better; neither is kept.

    Args:
        request: Whose training to compare, and with which file's.
    """
    with pushing_session(request) as (run, pipeline):
        path, other = comparable_pipeline(pipeline, request.against)
        manifest = shards_of_today(run, pipeline).manifest
        found = compare_settings(
            run,
            pipeline.configuration,
            other.configuration,
            path.parent,
            other.pipeline,
            request.seeds,
            scoring_of(pipeline),
            manifest,
            tracking_uri(run, pipeline.registry),
            None if pipeline.trials is None else pipeline.trials.max_parallel,
        )
        return summarise_comparison(run, found, request.against)
