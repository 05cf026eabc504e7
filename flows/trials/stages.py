"""A search and what follows it, once there are shards."""

from __future__ import annotations

from headway.data_contracts.store.documents import Link, RunSpec
from headway.flows.accounts.spending import expected_kind, usd_per_device_s
from headway.flows.config.cost_bound import bound_prices
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.console.environment import project_folder
from headway.flows.report.summary import summarise
from headway.flows.run.stages import evaluate_and_register
from headway.flows.trials.live_report import LiveReport
from headway.flows.trials.report import report
from headway.flows.trials.summary import TrialsSummary
from headway.flows.trials.wanted import wanted_trials
from headway.tasks.core.context import RunContext
from headway.tasks.search.budget import WHERE, SearchBudget
from headway.tasks.search.pace import ProgressReader, last_pace
from headway.tasks.stages.register import tracking_uri
from headway.tasks.stages.search import search
from headway.tasks.stages.trial_scores import Scoring


def scoring_of(pipeline: PipelineSpec) -> Scoring:
    return Scoring(
        evaluation=pipeline.evaluation, launch=pipeline.launch, shards=pipeline.shards, source=pipeline.source
    )


def search_and_register(
    run: RunContext,
    pipeline: PipelineSpec,
    receipt: Link,
    manifest: Link,
    taken_unix_s: float,
    base: RunSpec | None = None,
) -> TrialsSummary:
    """Train a model with each of several settings, rank them, and continue with the best as a retrain does.

    Args:
        taken_unix_s: when the data were.
        base: a run whose code, environment and start the trials are to have; None: what there is now.
    """
    live = LiveReport(run, pipeline, manifest, taken_unix_s)
    with live.of_its_end():
        # Called directly, in the main thread: a submitted task would never see Prefect's termination signal.
        found = search(
            run,
            wanted_trials(pipeline),
            pipeline.training,
            scoring_of(pipeline),
            manifest,
            tracking_uri(run, pipeline.registry),
            base,
            budget_of(run, pipeline),
            live.observe,
        )
        # From here on the flow run works on the best one's run, and takes its lock.
        run.at.run = found.best.run.sha256[:16]
        trial = found.best.trial
        best = pipeline.model_copy(update={"training": trial.training, "shards": trial.shards})
        evaluation, outcome = evaluate_and_register(run, best, found.best.run)
        return report(run, found, summarise(run, best, receipt, evaluation, outcome), live)


def budget_of(run: RunContext, pipeline: PipelineSpec) -> SearchBudget | None:
    """In hours or money; None: neither bounds the search."""
    spec = wanted_trials(pipeline).budget
    if spec is None or not spec.bounds_time:
        return None
    usd_per_s, workspace = 0.0, run.workspace
    if spec.usd is not None:
        prices = bound_prices(project_folder(), WHERE)
        kind = expected_kind(workspace, run.pipeline, is_here=pipeline.launch.launcher == "local")
        usd_per_s = pipeline.launch.world_size * usd_per_device_s(prices, kind, WHERE)
    progress_of = ProgressReader(run.budget_scope)
    return SearchBudget(
        spec,
        lambda folder: progress_of(workspace.local_path(folder)),
        usd_per_s,
        last_pace(workspace, run.pipeline),
    )
