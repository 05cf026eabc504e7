"""Stage *folds*: the recipe's figures on all rows of a small table, each scored by a model that never saw it.

The fold models have the settings, code and data of the run that they evaluate, as many steps, and a seed of their own.
None of them is registered: the run's own model is, which is trained on its usual share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store.documents import Link, RunSpec, ShardManifest, Snapshot
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.stages import StageRecord
from headway.tasks.core.candidate import Candidate, read_candidate
from headway.tasks.core.context import RunContext
from headway.tasks.core.outlook import Outlook, look_up, would_run
from headway.tasks.core.stage import StageOutput, find_and_renew, find_or_make, stage_task
from headway.tasks.core.stage_records import newest_record_of
from headway.tasks.reports.figures import EvaluationSpec
from headway.tasks.rows.fold_scores import (
    MAX_ROWS,
    STAGE_OF_FOLDS,
    CrossValidation,
    FoldScore,
    fold_rule,
    fold_scores,
    score_of,
)
from headway.tasks.rows.ranking_split import ranking_splits
from headway.tasks.stages.evaluate import fold_inputs, scoring_inputs
from headway.tasks.stages.launch import describe_run, train
from headway.tasks.stages.scoring import ScoringHarness
from headway.tasks.stages.shard import fitted_beside_fold, shards_under
from headway.tasks.stages.starting_point import ResolvedStart
from headway.tasks.stages.verify import verify
from headway.training.config.execution import ExecutionSpec
from headway.training.config.fold import Fold, folds_of
from headway.training.config.shards import ShardSpec, SkewLimits
from headway.training.config.training_spec import TrainingSpec
from headway.training.data.splitmix import hash_text
from headway.training.launch.base.gang import LaunchSpec
from headway.training.programs.evaluation import DetailsRequest

OF_EACH = ("launch", "verify", FoldScore.kind)
"""Stages of each fold, as they are on record."""
SEED_BITS = 31


class FoldTraining(NamedTuple):
    """What a pipeline file says of how fold models are trained and scored; none of it decides a bit of them."""

    evaluation: EvaluationSpec
    training: TrainingSpec
    launch: LaunchSpec
    shards: ShardSpec
    source: SourceSpec
    tracking_uri: str


def fold_shards(context: RunContext, wanted: FoldTraining, manifest: Link) -> list[Link]:
    """Shards that each hold one fold out, found or made while the source still has the rows; none without folds.

    Args:
        manifest: of the pipeline's own shards.

    Raises:
        ConfigError: rows that ranked trials would evaluate, or there are too many.
        DataError: a fold has no rows, or a file of the source is gone or changed since the snapshot.
    """
    num_folds = wanted.evaluation.folds
    if num_folds is None:
        return []
    _require_evaluating_rows(context, manifest)
    return [_shards_of(context, wanted, manifest, fold) for fold in folds_of(num_folds)]


def _require_evaluating_rows(context: RunContext, manifest: Link) -> None:
    shards = context.workspace.load(manifest, ShardManifest)
    num_rows = sum(group.num_samples for group in shards.groups)
    if num_rows > MAX_ROWS:
        raise ConfigError(
            f"{num_rows:,} rows are too many for folds, which are for {MAX_ROWS:,} at most.",
            where="evaluation.folds",
            advice="Take the key out: of so many rows shards.heldout_fraction holds out enough to judge.",
        )
    if any(True for _ in ranking_splits(context.workspace, context.pipeline)):
        raise ConfigError(
            "rows of this pipeline have ranked trials, and folds would have them evaluate.",
            where="evaluation.folds",
            advice="Take the key out, so that they judge nothing; or give the pipeline another name.",
        )


def cross_validate(context: RunContext, wanted: FoldTraining, checkpoint: Link) -> Link | None:
    """Train, verify and score a model for each fold, or find what was made of them; None without folds.

    Args:
        checkpoint: whose run they are trained like.

    Raises:
        ConfigError: the run starts from a model, which may have seen any row.
        RunStopped: a stop was asked for; the same command continues.
        TrainingFailed: one of them failed for good.
    """
    if wanted.evaluation.folds is None:
        return None
    candidate = read_candidate(context.workspace, checkpoint)
    run = candidate.run
    if run.start is not None:
        raise ConfigError(
            "the run starts from a registered model, which may have seen the rows of any fold.",
            where="evaluation.folds",
            advice="Take training.start_from out, or evaluation.folds.",
        )
    inputs = fold_inputs(wanted.evaluation, run.link)
    if (found := find_and_renew(context, STAGE_OF_FOLDS, inputs)) is not None and _has_whole_scores(context, found):
        with context.ledger.span(f"stage.{STAGE_OF_FOLDS}", found=True):
            return found.document
    manifests = fold_shards(context, wanted, run.manifest)
    scores: list[Link] = []
    for fold, manifest in zip(folds_of(wanted.evaluation.folds), manifests, strict=True):
        settled = describe_fold_run(context, wanted, run, fold, manifest)
        with _at_run_of(context, settled.run):
            trained = train_fold(context, wanted, settled, str(fold))
            verified = verify(context, wanted.launch, trained)
            scores.append(score_fold(context, wanted, fold, verified))

    def made() -> StageOutput:
        workspace = context.workspace
        shards = workspace.load(run.manifest, ShardManifest)
        columns = workspace.load(shards.snapshot, Snapshot).columns
        document = CrossValidation(
            run=run.link,
            rule=fold_rule(ShardSpec.model_validate(shards.spec), len(scores), columns),
            folds=tuple(scores),
            num_examples=sum(len(workspace.load(link, FoldScore).examples) for link in scores),
        )
        return StageOutput(document=document, files=_files_of(context, scores))

    return find_or_make(context, STAGE_OF_FOLDS, inputs, made, shown=f"{len(scores)} folds", exclusive=True)


def _has_whole_scores(context: RunContext, found: StageRecord) -> bool:
    """Whether the scores of each fold are there; what is damaged of them is reported, and scored again."""
    try:
        fold_scores(context.workspace, context.workspace.load(found.document, CrossValidation))
    except (IntegrityError, FileNotFoundError) as error:
        context.report_damage(STAGE_OF_FOLDS, str(error))
        return False
    return True


def outlook(context: RunContext, spec: EvaluationSpec, run: Link | None) -> Outlook | None:
    """What folds would cost; None without.

    Args:
        run: None: it is not trained yet.
    """
    if spec.folds is None:
        return None
    seen = (
        would_run(context, STAGE_OF_FOLDS) if run is None else look_up(context, STAGE_OF_FOLDS, fold_inputs(spec, run))
    )
    if seen.state == "found":
        return seen
    # Its own record says how long it took to put the scores together, not how long to make them.
    records = [newest_record_of(context.workspace, context.pipeline, stage) for stage in OF_EACH]
    took_s = [float(record.provenance["duration_s"]) for record in records if record is not None]
    expected_s = spec.folds * sum(took_s) if len(took_s) == len(OF_EACH) else None
    line = f"{spec.folds} models, each trained on the rows of the other {spec.folds - 1} folds"
    return seen.model_copy(update={"expected_s": expected_s}).saying(line)


def _files_of(context: RunContext, scores: list[Link]) -> tuple[Any, ...]:
    loaded = (context.workspace.load(link, FoldScore) for link in scores)
    return tuple(file for score in loaded for file in (score.outputs, score.importance) if file is not None)


def _shards_of(context: RunContext, wanted: FoldTraining, manifest: Link, fold: Fold) -> Link:
    own = context.workspace.load(manifest, ShardManifest)
    # Nothing of a fold is read side by side by many ranks, so it may be as uneven as it comes.
    memory = {"memory_mb": wanted.shards.memory_mb}
    spec = ShardSpec.model_validate(own.spec).model_copy(update={"fold": fold, "skew": SkewLimits(), **memory})
    fitted = fitted_beside_fold(context, spec, wanted.source, own.snapshot, own.receipt, own.fitted)
    return shards_under(
        context, spec, wanted.source, own.snapshot, own.receipt, fitted, span="folds.shard", shown=str(fold)
    )


def describe_fold_run(
    context: RunContext, wanted: FoldTraining, run: RunSpec, fold: Fold, manifest: Link
) -> ResolvedStart:
    """The run of a fold's model: that of the model whose recipe is evaluated, on other rows, with another seed."""
    training = ExecutionSpec.of(wanted.training).applied(TrainingSpec.model_validate(run.config))
    # A seed of its own: equal first weights and orders would have all folds err alike.
    seed = hash_text("fold", str(training.seed), str(fold.number), str(fold.of)) >> (64 - SEED_BITS)
    return describe_run(context, training.model_copy(update={"seed": seed}), manifest, beside=run)


@contextlib.contextmanager
def _at_run_of(context: RunContext, run: RunSpec) -> Iterator[None]:
    """The flow run is at a fold's run, and afterwards, however that ends, at the one that is evaluated again: a window
    that closes meanwhile cuts that one."""
    before, context.at.run = context.at.run, run.sha256[:16]
    try:
        yield
    finally:
        context.at.run = before


@stage_task(name="launch", task_run_name="train {context.pipeline} {name}")
def train_fold(context: RunContext, wanted: FoldTraining, settled: ResolvedStart, name: str) -> Link:
    """As `launch`."""
    context.workspace.publish_document(settled.run)
    training = ExecutionSpec.of(wanted.training).applied(TrainingSpec.model_validate(settled.run.config))
    return train(context, training, wanted.launch, settled, wanted.tracking_uri, name)


@stage_task(name="score fold", task_run_name="score {fold} of {context.pipeline}")
def score_fold(context: RunContext, wanted: FoldTraining, fold: Fold, checkpoint: Link) -> Link:
    """What a fold's model says of the rows that its shards hold out, and simple models beside it."""
    spec, candidate = wanted.evaluation, read_candidate(context.workspace, checkpoint)
    bench = ScoringHarness(
        context=context,
        launch=wanted.launch,
        shards=wanted.shards,
        source=wanted.source,
        boosted_trees=spec.trees_baseline,
    )
    inputs = {
        "checkpoint": checkpoint.sha256,
        **scoring_inputs(spec),
    }
    return find_or_make(
        context,
        FoldScore.kind,
        inputs,
        lambda: _scored(bench, spec, fold, candidate),
        span="folds.score",
        shown=str(fold),
        exclusive=True,
    )


def _scored(bench: ScoringHarness, spec: EvaluationSpec, fold: Fold, candidate: Candidate) -> StageOutput:
    run, workspace = candidate.run, bench.context.workspace
    scores = bench.score(candidate, details=DetailsRequest(seed=spec.seed))
    made = score_of(workspace, fold, (run.link, candidate.checkpoint), run.manifest, scores)
    document = made.model_copy(update={"inputs": tuple(bench.input_names(run)) if made.importance else ()})
    return StageOutput(
        document=document, files=tuple(file for file in (document.outputs, document.importance) if file is not None)
    )
