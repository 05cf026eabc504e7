"""Scores of models on today's held-out documents: the ranks that compute them, and what a champion needs for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.sources.reading import SourceSpec, read_file
from headway.data_contracts.store.digests import canonical_json, sha256_of
from headway.data_contracts.store.documents import (
    FittedState,
    Incomparable,
    Json,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
    SourceFile,
    StoredFile,
)
from headway.data_contracts.store.errors import ConfigError, EncodingRefused, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.candidate import Candidate, read_candidate, require_files
from headway.tasks.core.context import RunContext
from headway.tasks.core.gangs import run_stepless
from headway.tasks.core.run_result import checkpoint_here
from headway.tasks.registry.model_export import registered_graph
from headway.tasks.rows.heldout_parts import Parts, apart_from, parts_of
from headway.tasks.rows.seen_rows import rows_seen
from headway.tasks.rows.slices import SliceBy, labels_of
from headway.tasks.rows.source_rows import source_rows
from headway.tasks.search.configuration import examples_rule
from headway.tasks.stages.baseline_scores import found_baselines, keep_baselines, sums_of
from headway.tasks.stages.shard import accepted_files, shards_under
from headway.training.checkpoint.layout import run_folder
from headway.training.config.encoder_specs import ENCODER_SPEC, EncoderSpec, TabularEncoderSpec
from headway.training.config.shards import HELDOUT, ShardSpec, SkewLimits
from headway.training.data.encode.data_shape import classes_of
from headway.training.data.encode.numeric_block import numeric_names
from headway.training.data.encode.table_statistics import table_statistics
from headway.training.data.shards.heldout_keys import heldout_keys
from headway.training.data.shards.source_values import values_of_split
from headway.training.data.shards.splits import SourceRows
from headway.training.engine.run_documents import training_spec
from headway.training.evaluation.measures import MetricSet, metric_set_of, target_of
from headway.training.evaluation.scorers import class_names, places_of_examples
from headway.training.launch.base.gang import LaunchSpec
from headway.training.programs.evaluation import DetailsRequest, EvaluationRequest, Scores, merge

CHAMPION_SHARDS = "evaluate.champion_shards"
"""In the ledger, today's documents under a champion's encoder are no stage of this run."""


def only(scores: Scores, chosen: Sequence[int]) -> Scores:
    """Of some of the examples."""

    def some(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(values[number] for number in chosen)

    details = scores.details
    # Both are of rows, of which each is an example by its number.
    if details.outputs is not None:
        details = dataclasses.replace(details, outputs=details.outputs.only(chosen))
    if details.importance is not None and details.importance_rows is not None:
        places = np.full(len(scores.examples), -1)
        places[chosen] = np.arange(len(chosen))
        rows = places[details.importance_rows]
        details = dataclasses.replace(
            details, importance=details.importance[:, rows >= 0], importance_rows=rows[rows >= 0]
        )
    return Scores(
        examples=some(scores.examples),
        slices=some(scores.slices),
        sums={name: values[chosen] for name, values in scores.sums.items()},
        baselines={name: {each: its[chosen] for each, its in sums.items()} for name, sums in scores.baselines.items()},
        details=details,
    )


class FoldOfChampion(NamedTuple):
    """What a champion's fold model comes to on today's rows of its fold."""

    scores: Scores
    seen: NDArray[np.bool_]
    """Rows that it was trained on and today's fold model was not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringHarness:
    """Where models are scored: the data of today, and the ranks that do it."""

    context: RunContext
    launch: LaunchSpec
    shards: ShardSpec
    source: SourceSpec
    folder: str = "evaluate"
    """Of a run's own, where its ranks work: two that score at once must not share one."""
    boosted_trees: bool = False
    """Whether boosted trees are among the baselines of a table."""

    def score(self, candidate: Candidate, *, baselines: bool = True, details: DetailsRequest | None = None) -> Scores:
        """A candidate on its own run's shards, and the baselines beside it.

        Args:
            details: what else is wanted of it, beside the scores.

        Raises:
            IntegrityError: its checkpoint is not what was verified.
        """
        require_files(self.context, candidate)
        run, boosted_trees = candidate.run, self._fits_trees(candidate.run)
        found = found_baselines(self.context, run, boosted_trees=boosted_trees) if baselines else None
        scores = self._run_ranks(candidate, run.manifest, baselines=baselines and found is None, details=details)
        if found is not None and found.examples == scores.examples:
            return dataclasses.replace(scores, baselines=sums_of(found))
        if found is not None:  # of other examples: the ranks have left theirs out
            scores = self._run_ranks(candidate, run.manifest, baselines=True, details=details)
        if baselines:
            keep_baselines(self.context, run, scores.examples, scores.baselines, boosted_trees=boosted_trees)
        return scores

    def _fits_trees(self, run: RunSpec) -> bool:
        # Beside themselves they would say nothing.
        return self.boosted_trees and not training_spec(run).grows_trees

    def score_champion(
        self, champion: Link, today: RunSpec, details: DetailsRequest | None = None
    ) -> Scores | Incomparable:
        """The champion on today's documents, under its own encoder where that differs.

        It is scored from the checkpoint that its registration names; where that is gone or damaged, from the registered
        graph, and the ledger says which file was wrong.

        Returns:
            Its scores; or why there are none: it predicts something else, or its encoder cannot read today's data.

        Raises:
            IntegrityError: neither is whole.
        """
        workspace = self.context.workspace
        registration = workspace.load(champion, Registration)
        candidate = read_candidate(workspace, registration.checkpoint)
        manifest = self._readable_by(candidate, today)
        if isinstance(manifest, str):
            return Incomparable(champion=champion, reason=manifest)
        graph = self._graph_instead(registration, candidate)
        return self._run_ranks(candidate, manifest, baselines=False, graph=graph, details=details)

    def score_fold(self, checkpoint: Link, today: RunSpec) -> FoldOfChampion | str:
        """A champion's fold model on the rows of today that its fold has.

        Args:
            checkpoint: of the fold model.
            today: a run whose shards hold out the same fold of today's rows.

        Returns:
            Its scores, and which of the rows it saw; or why there are none.
        """
        try:
            candidate = read_candidate(self.context.workspace, checkpoint)
            require_files(self.context, candidate)
        except (IntegrityError, FileNotFoundError) as error:
            return f"a fold model of the champion is gone ({error})"
        manifest = self._readable_by(candidate, today)
        if isinstance(manifest, str):
            return f"a fold model of the champion cannot be compared: {manifest}"
        workspace = self.context.workspace
        try:
            earlier, todays = (workspace.load(each, ShardManifest) for each in (candidate.run.manifest, manifest))
            seen = rows_seen(workspace, earlier, todays)
        except (IntegrityError, FileNotFoundError) as error:
            return f"what a fold model of the champion was trained on cannot be read ({error})"
        return FoldOfChampion(scores=self._run_ranks(candidate, manifest, baselines=False), seen=seen)

    def _readable_by(self, candidate: Candidate, today: RunSpec) -> Link | str:
        """Today's data as an earlier model reads them; or why it cannot."""
        theirs, ours = (target_of(self._encoder(run), self._fitted_state(run)) for run in (candidate.run, today))
        if theirs != ours:
            return f"it predicts {theirs}, this model {ours}"
        try:
            return self._encoded_for(candidate.run, today)
        except (EncodingRefused, ConfigError) as error:  # of an encoder of the user's own both
            message = f"{error.where}: {error.what}".removesuffix(".")
            return f"its encoder cannot read today's data ({message})"

    def _graph_instead(self, registration: Registration, candidate: Candidate) -> StoredFile | None:
        """None while the checkpoint is whole."""
        try:
            require_files(self.context, candidate)
            return None
        except IntegrityError as error:
            graph = registered_graph(registration)
            message = f"the champion's checkpoint cannot be used ({error})"
            try:
                self.context.workspace.verify(graph)
            except IntegrityError as second:
                raise IntegrityError(
                    f"{message}, nor its registered model: {second.what}",
                    where=second.where,
                    advice="Put one of the two back; until then no challenger can be evaluated.",
                ) from error
            self.context.ledger.event("champion.damaged", message=f"{message}; its registered model is scored instead.")
            return graph

    def _encoded_for(self, champion: RunSpec, today: RunSpec) -> Link:
        """Today's documents as the champion reads them.

        Raises:
            EncodingRefused: they are other than it was fitted for.
        """
        workspace = self.context.workspace
        encoder = self._encoder(champion)
        # One fitted state may serve several encoders, such as one that standardises and one that does not.
        if champion.fitted == today.fitted and encoder == self._encoder(today):
            return today.manifest
        fit = workspace.load(champion.manifest, ShardManifest).spec.get("fit", 0)
        # Nothing is trained on these shards, so they may be as uneven as they come.
        own = {"encoder": encoder.model_dump(mode="json"), "fit": fit, "skew": SkewLimits().model_dump()}
        todays = workspace.load(today.manifest, ShardManifest)
        # Of a run of cross-validation the same fold is held out.
        own["fold"] = todays.spec.get("fold")
        spec = ShardSpec.model_validate({**self.shards.model_dump(mode="json"), **own})
        snapshot = todays.snapshot
        return shards_under(
            self.context, spec, self.source, snapshot, today.receipt, champion.fitted, span=CHAMPION_SHARDS
        )

    def metric_set(self, run: RunSpec) -> MetricSet:
        """Raises `ConfigError`: its shards hold nothing to predict."""
        return metric_set_of(self._encoder(run), self._fitted_state(run))

    def _encoder(self, run: RunSpec) -> EncoderSpec:
        """The encoder of the shards that it was trained on."""
        spec = self.context.workspace.load(run.manifest, ShardManifest).spec["encoder"]
        return ENCODER_SPEC.validate_python(spec)

    def _fitted_state(self, run: RunSpec) -> Json:
        return self.context.workspace.load(run.fitted, FittedState).statistics

    @property
    def examples_are_files(self) -> bool:
        """Whether each example is a whole file of the source."""
        return not self.source.is_table

    def class_names(self, run: RunSpec) -> list[str]:
        """By number, as slices call them; none of an encoder of one's own."""
        return class_names(classes_of(self._encoder(run), self._fitted_state(run)))

    def target_column(self, run: RunSpec) -> str:
        """What is predicted, for a person."""
        return str(getattr(self._encoder(run), "label", None) or "the label")

    def input_names(self, run: RunSpec) -> list[str]:
        """Of a table's inputs, in the order of its blocks; none of other rows."""
        encoder = self._encoder(run)
        if not isinstance(encoder, TabularEncoderSpec):
            return []
        return [*numeric_names(table_statistics(encoder, self._fitted_state(run))), *encoder.categorical]

    def slices_by(
        self, slices: tuple[SliceBy, ...], today: RunSpec, examples: tuple[str, ...]
    ) -> dict[SliceBy, list[str]]:
        """The slice of every example, by columns of the source, which is read for it once more.

        Raises:
            DataError: a file is gone or changed since the snapshot.
        """
        if not slices:
            return {}
        manifest, sources = self._sources(today)
        packed = self.metric_set(today).predicts == "tokens"
        columns = sorted({by.column for by in slices})
        with self.context.ledger.span("evaluate.slices"):
            found = values_of_split(sources, manifest, HELDOUT, columns, in_row_order=not packed)
            places = places_of_examples(manifest, HELDOUT, examples) if packed else range(len(examples))
            return {by: labels_of(by, found[by.column].take(list(places))) for by in slices}

    def keys_of(self, run: RunSpec, examples: tuple[str, ...]) -> NDArray[np.uint64] | None:
        """Which held-out examples are of one key, by equal numbers; None where rows are not split by key.

        Rows of one key, such as a patient's, are alike: as many of them say less than as many patients. The shards
        know them, since the source may have other keys by now.

        Raises:
            IntegrityError: what the shards keep of it is gone or altered.
        """
        manifest = self.context.workspace.load(run.manifest, ShardManifest)
        keys = heldout_keys(self.context.workspace, manifest)
        if keys is None or self.metric_set(run).predicts != "tokens":
            return keys
        return keys[places_of_examples(manifest, HELDOUT, examples)]

    def parted(self, share: float, today: RunSpec, examples: tuple[str, ...]) -> Parts:
        """Which held-out examples rank trials, and which evaluate; raises as `parts_of`.

        Args:
            share: of the examples, to rank on; 0: none.
        """
        shards = self.context.workspace.load(today.manifest, ShardManifest)
        if not apart_from(self.context, share, shards):
            return Parts(ranking=[], evaluation=list(range(len(examples))))
        with self.context.ledger.span("evaluate.parts"):
            return parts_of(self.context, share, self.source, shards, examples)

    def _sources(self, today: RunSpec) -> tuple[ShardManifest, list[SourceRows]]:
        """The run's shards, and the rows that they were made of."""
        context, manifest = self.context, self.context.workspace.load(today.manifest, ShardManifest)
        sources = source_rows(
            context.workspace, context.base, self.source, manifest.snapshot, today.receipt, context.digests
        )
        return manifest, sources

    def examples_sha256(self, today: RunSpec, examples: tuple[str, ...]) -> str:
        """Which examples these are, and their bytes."""
        if self.examples_are_files:
            return sha256_of([[file.path, file.sha256] for file in self._files(today, examples)])
        return sha256_of([self.context.workspace.load(today.manifest, ShardManifest).content_sha256, *examples])

    def fold_examples_sha256(self, runs: Sequence[RunSpec], examples: tuple[str, ...]) -> str:
        """The same of the folds that these runs' shards hold out."""
        manifests = (self.context.workspace.load(run.manifest, ShardManifest) for run in runs)
        return sha256_of([*(manifest.content_sha256 for manifest in manifests), *examples])

    def compared_examples_sha256(self, run: RunSpec, examples: tuple[str, ...], weights: Sequence[float]) -> str:
        """Which examples these are, and what each counts, whatever encoder the run read them through."""
        shards = self.context.workspace.load(run.manifest, ShardManifest)
        data = [shards.snapshot.sha256, shards.receipt.sha256, examples_rule(shards.spec)]
        return sha256_of([*data, list(examples), list(weights)])

    def contents(self, today: RunSpec, paths: tuple[str, ...]) -> list[bytes]:
        """The documents of these paths, in this order."""
        return [read_file(self.source, file, base=self.context.base) for file in self._files(today, paths)]

    def _files(self, today: RunSpec, paths: tuple[str, ...]) -> list[SourceFile]:
        snapshot = self.context.workspace.load(today.manifest, ShardManifest).snapshot
        files = {file.path: file for file in accepted_files(self.context, snapshot, today.receipt)}
        return [files[path] for path in paths]

    def _run_ranks(
        self,
        candidate: Candidate,
        manifest: Link,
        *,
        baselines: bool,
        graph: StoredFile | None = None,
        details: DetailsRequest | None = None,
    ) -> Scores:
        """Run the evaluation ranks on one checkpoint, with the code that trained it."""
        workspace = self.context.workspace
        request = EvaluationRequest(
            checkpoint=str(checkpoint_here(workspace, candidate.folder, candidate.manifest)),
            run=candidate.run.sha256,
            manifest=manifest.sha256,
            baselines=baselines,
            boosted_trees=baselines and self._fits_trees(candidate.run),
            graph=graph,
        )
        run_dir = workspace.local_path(f"{run_folder(candidate.run.link)}/{self.folder}/{manifest.sha256[:16]}")
        return run_evaluation(self.context, self.launch, candidate.run, request, run_dir, details)


def run_evaluation(
    context: RunContext,
    launch: LaunchSpec,
    run: RunSpec,
    request: EvaluationRequest,
    run_dir: Path,
    details: DetailsRequest | None = None,
) -> Scores:
    """Run the evaluation ranks of a run's frozen code, who work in `run_dir`.

    Raises:
        TrainingFailed: the budget is spent, or a rank failed for good.
        RunStopped: a stop was asked for.
    """
    out = run_dir / "scores"
    # Scores of an earlier, broken attempt may lie there; each rank replaces its own file.
    out.mkdir(parents=True, exist_ok=True)
    # What is left at its default is left out: the run's code may be older than a field.
    # Published: whoever may write in the folder could have put a link there, to another file of this user's.
    place = Workspace(str(run_dir))
    place.publish("request.json", canonical_json(request.model_dump(mode="json", exclude_defaults=True)))
    ranks = launch.world_size
    arguments: tuple[str, ...] = ("--request", str(run_dir / "request.json"), "--out", str(out))
    if details is not None:
        place.publish("details.json", canonical_json(details.model_dump(mode="json")))
        arguments = (*arguments, "--details", str(run_dir / "details.json"))
    run_stepless(context, launch, run, "headway.training.programs.evaluation", run_dir, *arguments, ranks=ranks)
    return merge(out, ranks)
