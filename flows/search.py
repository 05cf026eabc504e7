"""Trials over the pipeline, the best one kept:

snapshot ─► validate ─► shard ─► ┌► train each ─► rank ─┐ ─► verify ─► evaluate ─► register
                                 └─── rungs, rounds ◄───┘
"""

from __future__ import annotations

from prefect import State, flow

from headway.flows.config.request import TrialsRequest
from headway.flows.prefect_api.concurrency_lease import keep_running
from headway.flows.report.summary import summarise
from headway.flows.retrain import evaluate_and_register
from headway.flows.run.session import session
from headway.flows.trials.report import as_state, report
from headway.flows.trials.summary import TrialsSummary
from headway.flows.trials.wanted import wanted_trials
from headway.flows.windows.admission import keeping_to_windows
from headway.tasks.rows.heldout_parts import require_parts
from headway.tasks.rows.slices import require_columns
from headway.tasks.search.pace import require_worthwhile
from headway.tasks.stages.register import tracking_uri
from headway.tasks.stages.search import search
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
        files = snapshot(run, pipeline.contract, pipeline.source)
        require_columns(run.workspace, pipeline.evaluation.slices, files)
        receipt = validate(run, pipeline.contract, pipeline.source, files, pipeline.shards)
        manifest = shard(run, pipeline.shards, pipeline.source, files, receipt)
        require_parts(run, pipeline.evaluation.ranking_share, pipeline.source, manifest)
        # Called directly, in the main thread: a submitted task would never see Prefect's termination signal.
        found = search(
            run,
            wanted,
            pipeline.training,
            Scoring(
                evaluation=pipeline.evaluation, launch=pipeline.launch, shards=pipeline.shards, source=pipeline.source
            ),
            manifest,
            tracking_uri(run, pipeline.registry),
        )
        # From here on the flow run works on the best one's run, and takes its lock.
        run.at.run = found.best.run.sha256[:16]
        best = pipeline.model_copy(update={"training": found.best.trial.training})
        evaluation, outcome = evaluate_and_register(run, best, found.best.run)
        return as_state(report(run, found, summarise(run, best, receipt, evaluation, outcome)))
