"""The stages before training and after it, whichever way the run comes about."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from headway.data_contracts.store.documents import Link
from headway.flows.accounts.error_budget import spent_budget
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.prefect_api.champion_event import emit_champion_event
from headway.tasks.core.context import RunContext
from headway.tasks.folds.cross_validation import FoldTraining, cross_validate, fold_shards
from headway.tasks.ownership.current_run import abandoning_on_failure
from headway.tasks.registry.champion import RegistrationOutcome
from headway.tasks.rows.heldout_parts import require_parts
from headway.tasks.rows.slices import require_columns
from headway.tasks.stages.evaluate import evaluate
from headway.tasks.stages.register import register, tracking_uri
from headway.tasks.stages.shard import shard
from headway.tasks.stages.snapshot import snapshot
from headway.tasks.stages.validate import validate
from headway.tasks.stages.verify import verify


class TodaysData(NamedTuple):
    snapshot: Link
    receipt: Link
    manifest: Link


def shards_of_today(run: RunContext, pipeline: PipelineSpec) -> TodaysData:
    """Today's data, validated and encoded."""
    files = snapshot(run, pipeline.contract, pipeline.source)
    require_columns(run.workspace, pipeline.evaluation.slices, files)
    receipt = validate(run, pipeline.contract, pipeline.source, files, pipeline.shards)
    manifest = shard(run, pipeline.shards, pipeline.source, files, receipt)
    require_parts(run, pipeline.evaluation.ranking_share, pipeline.source, manifest)
    # While the source still has these rows, and before anything is spent on training.
    fold_shards(run, fold_training(run, pipeline), manifest)
    return TodaysData(files, receipt, manifest)


def fold_training(run: RunContext, pipeline: PipelineSpec) -> FoldTraining:
    return FoldTraining(
        evaluation=pipeline.evaluation,
        training=pipeline.training,
        launch=pipeline.launch,
        shards=pipeline.shards,
        source=pipeline.source,
        tracking_uri=tracking_uri(run, pipeline.registry),
    )


def evaluate_and_register(run: RunContext, pipeline: PipelineSpec, training: Link) -> tuple[Link, RegistrationOutcome]:
    """The evaluation, and which version it became."""
    with abandoning_on_failure(run):
        checkpoint = verify(run, pipeline.launch, training)
        folds = cross_validate(run, fold_training(run, pipeline), checkpoint)
        evaluation = evaluate(
            run,
            pipeline.evaluation,
            pipeline.registry,
            pipeline.launch,
            pipeline.shards,
            pipeline.source,
            checkpoint,
            folds,
        )
        # As late as it is decided: other retrains may have failed while this one trained.
        if pipeline.promotion.budget == "freeze" and not run.blocked_promotion:
            run = replace(run, blocked_promotion=spent_budget(run.workspace, pipeline.job_class))
        outcome = register(run, pipeline.registry, pipeline.promotion, pipeline.launch, checkpoint, evaluation)
    if outcome.promoted:
        emit_champion_event(pipeline.registry.model, outcome.version, outcome.reason)
    return evaluation, outcome
