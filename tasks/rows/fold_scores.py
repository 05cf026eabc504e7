"""What cross-validation comes to: scores of each row by a model that never saw it, and how they are put together.

A row's fold is decided as its split is, by its key or its file's path and number, with a salt of its own. So rows that
are added move no other, and a fold model of last year never saw a row of its fold, whether it was there then or not.
Rows that are known by their number move when one above is deleted: `seen_rows` tells these.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import (
    Document,
    FittedState,
    Frozen,
    Json,
    Link,
    RunSpec,
    ShardManifest,
    StoredFile,
)
from headway.data_contracts.store.errors import IntegrityError, TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.tasks.rows.splitting_rule import key_type, splitting_rule
from headway.training.config.fold import Fold
from headway.training.config.shards import HELDOUT, ShardSpec
from headway.training.data.load.shard_reader import ShardReader
from headway.training.evaluation.measures import CLASSES, LABEL, NUMBERS, Sums, metric_set_for
from headway.training.evaluation.outputs import Outputs
from headway.training.evaluation.scorers import Quarters
from headway.training.programs.evaluation import Details, Scores

STAGE_OF_FOLDS: Final = "folds"
OUT_OF_FOLD: Final = "out-of-fold"
"""What a report calls the examples, in place of a split."""
MAX_ROWS: Final = 50_000
"""Of more, a share that is held out says as much, and costs one training."""


class FoldScore(Document):
    """What a fold model comes to on each row of its fold, and the simple models that were fitted beside it."""

    kind: ClassVar[str] = "fold-score"
    fold: Fold
    """Whose rows they are."""
    run: Link
    """The fold model's."""
    checkpoint: Link
    """The model that was scored."""
    manifest: Link
    """The shards that hold the fold out."""
    examples: tuple[str, ...]
    """Rows by their numbers in the fold, in the order of all sums."""
    slices: tuple[str, ...]
    """Which slice each belongs to; of numbers to predict, those of the fold alone."""
    sums: dict[str, tuple[float, ...]]
    """Sums over each row, by name."""
    baselines: dict[str, dict[str, tuple[float, ...]]]
    """The same of simple models that were fitted on the other folds."""
    labels: tuple[float, ...] = Field(default=(), exclude_if=operator.not_)
    """Numbers to predict, or numbers of classes, in the order of `examples`."""
    outputs: StoredFile | None = Field(default=None, exclude_if=operator.not_)
    """What the model said of each row."""
    no_outputs: str = Field(default="", exclude_if=operator.not_)
    """Why there is none."""
    importance: StoredFile | None = Field(default=None, exclude_if=operator.not_)
    """What a row costs more once an input is another row's, as a safetensors file."""
    inputs: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)
    """Names of these inputs."""


class FoldRule(Frozen):
    """What tells folds apart: under equal rules a row is in the fold of the same number."""

    splitting: Json
    """How rows are told apart, whatever their shares."""
    key_type: str
    """What the values of the key are, where a key decides."""
    num_folds: int


class CrossValidation(Document):
    """The models that were trained to evaluate another one's recipe, and what they came to."""

    kind: ClassVar[str] = "cross-validation"
    run: Link
    """The run whose settings, code and data they were trained with; none of them is its model."""
    rule: FoldRule
    """Which row is in which fold."""
    folds: tuple[Link, ...]
    """Their scores, a `FoldScore` each, in the order of the folds."""
    num_examples: int
    """Rows of all folds together."""


def fold_rule(shards: ShardSpec, num_folds: int, columns: Mapping[str, str]) -> FoldRule:
    """
    Args:
        shards: of the pipeline, which holds out no fold.
        columns: of the source, name to type.
    """
    # A key of another type has other hashes, by which rows would change folds.
    return FoldRule(splitting=splitting_rule(shards), key_type=key_type(shards, columns), num_folds=num_folds)


def fold_of(workspace: Workspace, run: RunSpec) -> Fold | None:
    """Which fold a run's shards hold out; None of any other run.

    Raises:
        IntegrityError: its shards' document is gone or damaged.
    """
    found: Any = workspace.load(run.manifest, ShardManifest).spec.get("fold")
    return None if found is None else Fold.model_validate(found)


def score_of(
    workspace: Workspace, fold: Fold, candidate: tuple[Link, Link], manifest: Link, scores: Scores
) -> FoldScore:
    """What is kept of a fold model's scores.

    Args:
        candidate: its run and checkpoint.
        manifest: the shards that hold the fold out.

    Raises:
        TrainingFailed: a figure is not finite.
    """
    run, checkpoint = candidate
    figures = [*scores.sums.values(), *(values for sums in scores.baselines.values() for values in sums.values())]
    if not all(np.isfinite(values).all() for values in figures):
        raise TrainingFailed(
            f"the model of {fold} has scores that are no finite numbers.",
            where=checkpoint.short,
            advice="Lower training.optimizer.lr, or look at the rows of that fold.",
        )
    details, importance = scores.details, None
    if details.importance is not None and details.importance_rows is not None:
        importance = _publish_importance(workspace, details.importance_rows, details.importance)
    outputs = details.outputs
    return FoldScore(
        fold=fold,
        run=run,
        checkpoint=checkpoint,
        manifest=manifest,
        examples=scores.examples,
        slices=scores.slices,
        sums=_as_tuples(scores.sums),
        baselines={name: _as_tuples(sums) for name, sums in scores.baselines.items()},
        labels=labels_of(workspace, manifest),
        outputs=None if outputs is None else _publish(workspace, "outputs", outputs.to_bytes()),
        no_outputs="" if outputs is not None else details.reason,
        importance=importance,
    )


def labels_of(workspace: Workspace, manifest: Link) -> tuple[float, ...]:
    """What is to be predicted of the rows that shards hold out, in their order; a class by its number."""
    shards = workspace.load(manifest, ShardManifest)
    if metric_set_for(workspace, shards).predicts == "tokens":
        return ()
    reader = ShardReader(workspace, shards, HELDOUT)
    return tuple(reader.gather(np.arange(reader.num_rows))[LABEL].reshape(-1).astype(np.float64).tolist())


def _as_tuples(sums: Sums) -> dict[str, tuple[float, ...]]:
    return {name: tuple(np.asarray(values, dtype=np.float64).tolist()) for name, values in sums.items()}


def _publish(workspace: Workspace, what: str, data: bytes) -> StoredFile:
    return workspace.publish(f"reports/{what}-{sha256_bytes(data)[:16]}.safetensors", data)


def _publish_importance(workspace: Workspace, rows: NDArray[np.int64], increase: NDArray[np.float64]) -> StoredFile:
    from safetensors.numpy import save

    tensors = {"importance_rows": np.ascontiguousarray(rows), "importance": np.ascontiguousarray(increase)}
    return _publish(workspace, "importance", save(tensors))


def read_scores(workspace: Workspace, score: FoldScore) -> Scores:
    """What `score_of` kept.

    Raises:
        IntegrityError: a file of it is gone or altered.
    """
    outputs = None if score.outputs is None else Outputs.from_bytes(_read(workspace, score.outputs))
    importance: dict[str, Any] = {}
    if score.importance is not None:
        from safetensors.numpy import load

        importance = load(_read(workspace, score.importance))
    baselines: dict[str, Sums] = {name: _as_arrays(sums) for name, sums in score.baselines.items()}
    return Scores(
        examples=score.examples,
        slices=score.slices,
        sums=_as_arrays(score.sums),
        baselines=baselines,
        details=Details(outputs=outputs, reason=score.no_outputs, **importance),
    )


def _read(workspace: Workspace, file: StoredFile) -> bytes:
    workspace.verify(file)
    return workspace.read(file.path, file.size_bytes)


def _as_arrays(sums: Mapping[str, Sequence[float]]) -> dict[str, NDArray[Any]]:
    return {name: np.array(values) for name, values in sums.items()}


def joined_scores(parts: Sequence[tuple[Fold, Scores, Sequence[float]]], *, has_same_inputs: bool = True) -> Scores:
    """Scores of all folds as those of one split, fold after fold.

    Args:
        parts: of each fold its scores, and what was to be predicted of each row.
        has_same_inputs: whether the inputs of importance are those of every fold.
    """
    examples = tuple(f"fold {fold.number}, {name}" for fold, scores, _ in parts for name in scores.examples)
    # What only some of the folds could be scored by says nothing of all rows.
    baselines = [name for name in parts[0][1].baselines if all(name in scores.baselines for _, scores, _ in parts)]
    sums = _joined_sums([scores.sums for _, scores, _ in parts])
    slices = tuple(name for _, scores, _ in parts for name in scores.slices)
    joined: dict[str, Sums] = {
        name: _joined_sums([scores.baselines[name] for _, scores, _ in parts]) for name in baselines
    }
    labels = np.array([label for _, _, of_fold in parts for label in of_fold], dtype=np.float64)
    if "squared_error" in sums:
        # Each fold's own quarters and mean would be those of as many tables.
        quarters = Quarters(labels)
        slices = tuple(quarters.names(labels))
        variation = quarters.variation(labels)
        sums["variation"] = variation
        joined = {name: {**its, "variation": variation} for name, its in joined.items()}
    for name, constant in _best_constants(labels, sums).items():
        joined |= {name: {**joined[name], **constant}} if name in joined else {}
    starts = np.cumsum([0, *(len(scores.examples) for _, scores, _ in parts)]).tolist()
    details = _joined_details([scores.details for _, scores, _ in parts], starts)
    if not has_same_inputs:
        details = dataclasses.replace(details, importance=None, importance_rows=None)
    return Scores(examples=examples, slices=slices, sums=sums, baselines=joined, details=details)


def _best_constants(labels: NDArray[np.float64], sums: Sums) -> Mapping[str, Sums]:
    """What the best of all answers that are the same for every row comes to, by the name of that simple model.

    Where a key's rows are alike, a fold's other rows have other shares of the classes than the fold: their prior is
    worse than a guess, and a model that learnt nothing would beat it beyond doubt.
    """
    if "squared_error" in sums:
        return {NUMBERS.gate_baseline: {"squared_error": np.square(labels - labels.mean())}}
    if "correct" not in sums:
        return {}
    classes = labels.astype(np.int64)
    counts = np.bincount(classes)
    nats, correct = -np.log(counts[classes] / len(classes)), (classes == counts.argmax()).astype(np.float64)
    return {CLASSES.gate_baseline: {"nats": nats, "correct": correct}}


def _joined_sums(parts: Sequence[Sums]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([sums[name] for sums in parts]) for name in parts[0]}


def _joined_details(parts: Sequence[Details], starts: Sequence[int]) -> Details:
    importance: dict[str, Any] = {}
    increases = [each.importance for each in parts if each.importance is not None]
    rows = [
        each.importance_rows + start
        for each, start in zip(parts, starts, strict=False)
        if each.importance_rows is not None
    ]
    if len(increases) == len(rows) == len(parts) and len({len(each) for each in increases}) == 1:
        importance = {"importance": np.concatenate(increases, axis=1), "importance_rows": np.concatenate(rows)}
    reason = next((each.reason for each in parts if each.reason), "")
    outputs = [each.outputs for each in parts if each.outputs is not None]
    if len(outputs) < len(parts):
        return Details(reason=reason or "a fold model has none", **importance)
    return Details(outputs=_joined_outputs(outputs, starts), **importance)


def _joined_outputs(parts: Sequence[Outputs], starts: Sequence[int]) -> Outputs:
    label, predicted = (np.concatenate([getattr(each, name) for each in parts]) for name in ("label", "predicted"))
    kept = [
        (each.confidence, each.probability_rows + start, each.probability)
        for each, start in zip(parts, starts, strict=False)
        if each.confidence is not None and each.probability_rows is not None and each.probability is not None
    ]
    if len(kept) < len(parts):
        return Outputs(label=label, predicted=predicted)
    confidence, rows, probability = (np.concatenate(each) for each in zip(*kept, strict=True))
    return Outputs(
        label=label, predicted=predicted, confidence=confidence, probability_rows=rows, probability=probability
    )


def fold_scores(workspace: Workspace, found: CrossValidation) -> list[FoldScore]:
    """In the order of the folds.

    Raises:
        IntegrityError: one is gone, altered, or of another fold than its place says.
    """
    scores = [workspace.load(link, FoldScore) for link in found.folds]
    numbers = [score.fold.number for score in scores]
    if numbers != [*range(1, found.rule.num_folds + 1)]:
        raise IntegrityError(f"it has scores of folds {numbers}.", where=found.link.short, advice="Retrain.")
    return scores


def same_classes(fitted: FittedState, classes_from: FittedState) -> FittedState:
    """A fold's fitted state with the classes of all rows, so that a class has one number in each fold.

    A rare class may have all its rows in one fold. A name is all that is taken over, and no figure: the fold's model
    is never shown a row of it.
    """
    label = classes_from.statistics.get("label") if isinstance(classes_from.statistics, dict) else None
    if not isinstance(label, dict) or "values" not in label:
        return fitted
    return fitted.model_copy(update={"statistics": {**fitted.statistics, "label": label}})
