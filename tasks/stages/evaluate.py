"""Stage *evaluate*: held-out figures with intervals, the champion beside the challenger on the same examples."""

from __future__ import annotations

import dataclasses
import lzma
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store.documents import (
    ChampionComparison,
    Continuation,
    ContractReceipt,
    EvaluationReport,
    HeldoutComparison,
    Importance,
    Incomparable,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
    WorstExample,
)
from headway.data_contracts.store.errors import DataError, IntegrityError
from headway.data_contracts.store.installation import version
from headway.data_contracts.store.plain_text import MAX_FIELD_CHARS, one_line
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.data_contracts.types import report_text
from headway.tasks.core.artifacts import artifact_key, show_markdown
from headway.tasks.core.candidate import Candidate, read_candidate
from headway.tasks.core.code_version import code_version
from headway.tasks.core.context import RunContext
from headway.tasks.core.outlook import Outlook, found, look_up, would_run
from headway.tasks.core.pages import contract_page, evaluation_page
from headway.tasks.core.stage import StageOutput, find_intact, find_or_make, stage_task
from headway.tasks.registry import model_refs
from headway.tasks.registry.evaluation_report import ReportContext, render_markdown
from headway.tasks.reports.evaluation_page import PageFacts, render_html
from headway.tasks.reports.evidence import publish_curve, publish_outputs, read_evidence
from headway.tasks.reports.figures import (
    MIN_SLICE,
    EvaluationSpec,
    compare_with_champion,
    difference_of,
    interval_of,
    keys_by_slice,
    num_keys,
    slices_of_all,
    subset_of,
    with_keys,
)
from headway.tasks.rows.fold_scores import (
    OUT_OF_FOLD,
    STAGE_OF_FOLDS,
    CrossValidation,
    FoldScore,
    fold_scores,
    joined_scores,
    read_scores,
)
from headway.tasks.rows.heldout_parts import CODE as PARTS_CODE
from headway.tasks.rows.heldout_parts import apart_from, has_chosen_nothing
from headway.tasks.rows.slices import SliceBy
from headway.tasks.stages.register import RegistrySpec, registered_before
from headway.tasks.stages.scoring import FoldOfChampion, ScoringHarness, only
from headway.training.checkpoint.inexactness import inexactness
from headway.training.checkpoint.layout import run_folder
from headway.training.config.fold import Fold
from headway.training.config.shards import HELDOUT, ShardSpec
from headway.training.evaluation.class_figures import class_figures
from headway.training.evaluation.measures import KEY, Measure
from headway.training.evaluation.number_figures import number_figures
from headway.training.evaluation.statistics import ratio_interval
from headway.training.launch.base.gang import LaunchSpec
from headway.training.programs.evaluation import DetailsRequest, Scores

CODE = (
    *(
        "headway.training.programs.evaluation",
        "headway.training.evaluation.statistics",
        "headway.tasks.stages.evaluate",
        "headway.tasks.stages.scoring",
        "headway.tasks.rows.fold_scores",
        "headway.tasks.rows.seen_rows",
        "headway.tasks.registry.evaluation_report",
        "headway.tasks.reports.evaluation_page",
        "headway.tasks.reports.evidence",
        "headway.tasks.reports.figures",
        "headway.tasks.reports.pictures",
        "headway.training.evaluation.class_figures",
        "headway.training.evaluation.number_figures",
    ),
    *("headway.tasks.rows.slices", *PARTS_CODE),
    *(
        "headway.training.data.shards.sharding",
        "headway.training.data.encode.host",
    ),  # encode today's documents for a champion with another encoder
)
CODE_OF_FOLDS = (
    "headway.tasks.folds.cross_validation",
    "headway.tasks.rows.fold_scores",
    "headway.training.programs.evaluation",
    "headway.training.data.shards.sharding",
    "headway.training.data.encode.host",
)
MAX_WORST = 20
MAX_IMPORTANCES = 200


@stage_task(name="evaluate", task_run_name="evaluate {context.pipeline}")
def evaluate(
    context: RunContext,
    spec: EvaluationSpec,
    registry: RegistrySpec,
    launch: LaunchSpec,
    shards: ShardSpec,
    source: SourceSpec,
    checkpoint: Link,
    folds: Link | None = None,
) -> Link:
    """Score the held-out documents. A candidate that is registered already is its own result.

    Args:
        launch, shards, source: where models are scored, and on which data.
        folds: what cross-validation came to, whose figures take the place of the candidate's own; None: there is none.
    """
    workspace = context.workspace
    champion = _champion(workspace, registry)
    if (own := _own_report(context, spec, registry, checkpoint, champion, folds)) is not None:
        with context.ledger.span("stage.evaluate", found=True):
            return own
    bench = ScoringHarness(
        context=context, launch=launch, shards=shards, source=source, boosted_trees=spec.trees_baseline
    )
    manifest = read_candidate(workspace, checkpoint).run.manifest
    link = find_or_make(
        context,
        "evaluate",
        _inputs(context, spec, manifest, checkpoint, champion, folds),
        lambda: _evaluate(bench, spec, registry, checkpoint, champion, folds),
        shown=HELDOUT if folds is None else OUT_OF_FOLD,
        exclusive=True,
    )
    report = workspace.load(link, EvaluationReport)
    page_context = report_context(context, registry, report)
    page = artifact_key(context.pipeline, "evaluation")
    show_markdown(page, lambda: render_markdown(report, page_context), "Held-out figures")
    return link


def outlook(
    context: RunContext,
    spec: EvaluationSpec,
    registry: RegistrySpec,
    manifest: Link | None,
    checkpoint: Link | None,
    folds: Outlook | None = None,
) -> Outlook:
    """Args:
    manifest: the shards that the run was trained on.
    checkpoint: None: there is none to evaluate yet.
    folds: what cross-validation would do; None: nothing.
    """
    if manifest is None or checkpoint is None or (folds is not None and folds.document is None):
        return would_run(context, "evaluate")
    champion, scored = _champion(context.workspace, registry), None if folds is None else folds.document
    if (own := _own_report(context, spec, registry, checkpoint, champion, scored)) is not None:
        return found("evaluate", own, "with the registered version")
    return look_up(context, "evaluate", _inputs(context, spec, manifest, checkpoint, champion, scored))


def _champion(workspace: Workspace, registry: RegistrySpec) -> Link | None:
    now = model_refs.champion(workspace, registry.model)
    return None if now is None else now[0].target


def _own_report(
    context: RunContext,
    spec: EvaluationSpec,
    registry: RegistrySpec,
    checkpoint: Link,
    champion: Link | None,
    folds: Link | None = None,
) -> Link | None:
    """The report of its registration, if that still decides: it is or was champion, or evaluated against today's.

    Not where some of its examples chose models since: the best of a search may have been evaluated before it.
    """
    workspace = context.workspace
    registered = registered_before(context, registry, checkpoint)
    if registered is None:
        return None
    try:
        report = workspace.load(registered.evaluation, EvaluationReport)
        if model_refs.was_champion(workspace, registry.model, registered.link):
            return registered.evaluation  # it decides nothing any more
        is_alike = report.compared_with == champion and report.cross_validation == folds
        holds = is_alike and has_chosen_nothing(context, spec.ranking_share, report)
    except IntegrityError as error:
        context.report_damage("evaluate", str(error))
        return None
    return registered.evaluation if holds else None


def _inputs(
    context: RunContext,
    spec: EvaluationSpec,
    manifest: Link,
    checkpoint: Link,
    champion: Link | None,
    folds: Link | None,
) -> dict[str, object]:
    shards = context.workspace.load(manifest, ShardManifest)
    return {
        "checkpoint": checkpoint.sha256,
        "champion": None if champion is None else champion.sha256,
        "spec": spec.model_dump(mode="json"),
        **({} if folds is None else {"cross_validation": folds.sha256}),
        "set_apart": [each.model_dump(mode="json") for each in apart_from(context, spec.ranking_share, shards)],
        "code": code_version(*CODE),
        "libraries": _libraries(),
    }


def report_context(
    context: RunContext, registry: RegistrySpec, report: EvaluationReport, evaluated_unix_s: float | None = None
) -> ReportContext:
    """What the refs say of the evaluated model, and of the champion that it was evaluated against."""
    workspace, model = context.workspace, registry.model
    before = registered_before(context, registry, report.checkpoint)
    against = report.compared_with
    entry = None if against is None else model_refs.promotion_of(workspace, model, against)
    return ReportContext(
        pipeline=context.pipeline,
        model=model,
        version=model_refs.expected_version(
            workspace, model, None if before is None else before.link, store=registry.tracking_uri
        ),
        champion_version=None if entry is None else model_refs.version_of(workspace, model, entry.target),
        champion_since_unix_s=None if entry is None else entry.unix_s,
        evaluated_unix_s=evaluated_unix_s,
    )


class _Scored(NamedTuple):
    """What a report is made of."""

    own: Scores
    """Of the examples that evaluate."""
    examples_sha256: str
    labels: dict[SliceBy, list[str]]
    """By what else the examples are cut, the slice of each."""
    inputs: Sequence[str]
    """Names of those that importance is of."""
    num_ranking: int
    parts: Link | None
    theirs: Scores | Incomparable | None
    """The champion's of the same examples; None: there is none, or see `heldout`."""
    heldout: ChampionComparison | None = None
    """With the champion on held-out rows, where the rest is of folds and the champion has none like them."""


def _on_heldout(bench: ScoringHarness, spec: EvaluationSpec, candidate: Candidate, champion: Link | None) -> _Scored:
    """The candidate's own figures on the rows that its shards hold out."""
    run = candidate.run
    scored = bench.score(candidate, details=DetailsRequest(seed=spec.seed, continuations=spec.continuations))
    parts = bench.parted(spec.ranking_share, run, scored.examples)
    theirs = None if champion is None else bench.score_champion(champion, run)
    # Other examples are refused in `compare_with_champion`; numbers of ours would cut them wrongly.
    if isinstance(theirs, Scores) and theirs.examples == scored.examples:
        theirs = only(theirs, parts.evaluation)
    own = only(with_keys(scored, bench.keys_of(run, scored.examples)), parts.evaluation)
    labels = bench.slices_by(spec.slices, run, scored.examples)
    return _Scored(
        own=own,
        examples_sha256=bench.examples_sha256(run, own.examples),
        labels={by: [of_all[number] for number in parts.evaluation] for by, of_all in labels.items()},
        inputs=[] if own.details.importance is None else bench.input_names(run),
        num_ranking=len(scored.examples) - len(own.examples),
        parts=parts.document,
        theirs=theirs,
    )


def _by_folds(
    bench: ScoringHarness, spec: EvaluationSpec, candidate: Candidate, champion: Link | None, folds: Link
) -> _Scored:
    """The fold models' figures, each on its fold; beside them those of the champion's fold models, on the same rows.

    Where the champion has none that are like them, it and the candidate are compared on the rows that are held out from
    both: a verdict on few rows is better than one on rows that either has seen. So are fold models of which one has
    seen rows of its fold, since these changed places.
    """
    workspace = bench.context.workspace
    found = workspace.load(folds, CrossValidation)
    scores = fold_scores(workspace, found)
    inputs = {score.inputs for score in scores}
    own = joined_scores(
        [(score.fold, read_scores(workspace, score), score.labels) for score in scores],
        has_same_inputs=len(inputs) == 1,
    )
    runs = [workspace.load(score.run, RunSpec) for score in scores]
    # A key has all its rows in one fold, and one digest in all.
    keys = [bench.keys_of(run, score.examples) for run, score in zip(runs, scores, strict=True)]
    known = [each for each in keys if each is not None]
    own = with_keys(own, np.concatenate(known) if len(known) == len(keys) else None)
    labels: dict[SliceBy, list[str]] = {}
    for run, score in zip(runs, scores, strict=True):
        for by, of_fold in bench.slices_by(spec.slices, run, score.examples).items():
            labels.setdefault(by, []).extend(of_fold)
    theirs = None if champion is None else _champion_by_folds(bench, spec, champion, found, scores, runs)
    by_folds = theirs if isinstance(theirs, _ChampionByFolds) else None
    made = _Scored(
        own=own,
        examples_sha256=bench.fold_examples_sha256(runs, own.examples),
        labels=labels,
        inputs=scores[0].inputs,
        num_ranking=0,
        parts=None,
        theirs=None if by_folds is None else by_folds.scores,
    )
    if champion is None or (by_folds is not None and not by_folds.reason):
        return made
    reason = theirs if isinstance(theirs, str) else "" if by_folds is None else by_folds.reason
    bench.context.ledger.event(
        "evaluate.on_heldout", message=f"compared with the champion on held-out rows alone: {reason}"
    )
    beside = (
        _on_heldout(bench, spec, candidate, champion)
        if by_folds is None
        else _only_unseen(made, by_folds.scores, by_folds.unseen)
    )
    if not isinstance(beside.theirs, Scores):
        return made._replace(theirs=beside.theirs)
    heldout = _compare_on_heldout(bench, spec, candidate, champion, beside, reason)
    return made._replace(theirs=None, heldout=heldout)


class _ChampionByFolds(NamedTuple):
    """The champion's fold models on today's rows."""

    scores: Scores
    """Of all rows."""
    unseen: Sequence[int]
    """Rows by number that none of them has an advantage on."""

    @property
    def reason(self) -> str:
        """Why they are not all rows; empty: they are."""
        num_rows = len(self.scores.examples)
        num_seen = num_rows - len(self.unseen)
        moved = f"{num_seen:,} of {num_rows:,} rows changed places, and the champion's fold models were trained on them"
        return moved if num_seen else ""


def _only_unseen(made: _Scored, theirs: Scores, unseen: Sequence[int]) -> _Scored:
    return made._replace(
        own=only(made.own, unseen),
        theirs=only(theirs, unseen),
        labels={by: [of_all[number] for number in unseen] for by, of_all in made.labels.items()},
    )


def _champion_by_folds(
    bench: ScoringHarness,
    spec: EvaluationSpec,
    champion: Link,
    found: CrossValidation,
    scores: Sequence[FoldScore],
    runs: Sequence[RunSpec],
) -> _ChampionByFolds | str:
    """Its fold models on today's rows, each on its own fold; or why they cannot be had, or have seen nearly all."""
    workspace = bench.context.workspace
    theirs = _folds_of_champion(bench.context, spec, champion)
    if theirs is None:
        return "the champion has no fold models"
    if theirs.rule != found.rule:
        return f"the champion's {theirs.rule.num_folds} folds are of other rows than these {found.rule.num_folds}"
    try:
        scored_before = fold_scores(workspace, theirs)
    except (IntegrityError, FileNotFoundError) as error:
        bench.context.report_damage(STAGE_OF_FOLDS, str(error))
        return f"the scores of the champion's fold models cannot be read ({error})"
    parts: list[tuple[Fold, Scores, Sequence[float]]] = []
    seen: list[NDArray[np.bool_]] = []
    for before, today, run in zip(scored_before, scores, runs, strict=True):
        # With the same data and settings it is today's own model.
        of_fold = (
            FoldOfChampion(read_scores(workspace, today), np.zeros(len(today.examples), dtype=np.bool_))
            if before.checkpoint == today.checkpoint
            else bench.score_fold(before.checkpoint, run)
        )
        if isinstance(of_fold, str):
            return of_fold
        if of_fold.scores.examples != today.examples:
            raise IntegrityError("champion and challenger were scored on different rows.", where=str(today.fold))
        parts.append((today.fold, dataclasses.replace(of_fold.scores, baselines={}), today.labels))
        seen.append(of_fold.seen)
    made = _ChampionByFolds(joined_scores(parts), np.flatnonzero(~np.concatenate(seen)).tolist())
    # Of so few rows nothing can be told, not even in the slices.
    return made if len(made.unseen) >= MIN_SLICE else made.reason


def fold_inputs(spec: EvaluationSpec, run: Link) -> dict[str, object]:
    """All that the scores of a run's folds follow from: its data are part of the run."""
    return {"run": run.sha256, "folds": spec.folds, **scoring_inputs(spec)}


def scoring_inputs(spec: EvaluationSpec) -> dict[str, object]:
    """What decides how a fold is scored, beside its model."""
    return {
        "trees_baseline": spec.trees_baseline,
        "seed": spec.seed,
        "code": code_version(*CODE_OF_FOLDS),
        "libraries": _libraries(),
    }


def _libraries() -> dict[str, str]:
    return {name: version(name) for name in ("numpy", "torch", "scikit-learn")}


def _folds_of_champion(context: RunContext, spec: EvaluationSpec, champion: Link) -> CrossValidation | None:
    """By its report; or, where that is older than its folds, by the record that a later retrain left of them."""
    workspace = context.workspace
    registration = workspace.load(champion, Registration)
    try:
        link = workspace.load(registration.evaluation, EvaluationReport).cross_validation
        if link is None:
            found = find_intact(context, STAGE_OF_FOLDS, fold_inputs(spec, registration.run))
            link = None if found is None else found.document
        return None if link is None else workspace.load(link, CrossValidation)
    except (IntegrityError, FileNotFoundError) as error:
        context.report_damage("folds", str(error))
        return None


def _compare_on_heldout(
    bench: ScoringHarness,
    spec: EvaluationSpec,
    candidate: Candidate,
    champion: Link,
    scored: _Scored,
    reason: str,
) -> ChampionComparison:
    assert isinstance(scored.theirs, Scores)
    measure = bench.metric_set(candidate.run).decisive
    slices = slices_of_all(measure, scored.own, scored.labels)
    compared = compare_with_champion(spec, measure, scored.own, scored.theirs, champion, slices)
    on = HeldoutComparison(
        reason=reason,
        num_examples=len(scored.own.examples),
        num_keys=num_keys(scored.own.sums),
        value=measure.value(scored.own.sums),
        slice_sizes={name: len(chosen) for name, chosen in slices.items()},
        slice_keys=keys_by_slice(scored.own.sums, slices),
    )
    return compared.model_copy(update={"heldout": on})


def _evaluate(
    bench: ScoringHarness,
    spec: EvaluationSpec,
    registry: RegistrySpec,
    checkpoint: Link,
    champion: Link | None,
    folds: Link | None = None,
) -> StageOutput:
    context, workspace = bench.context, bench.context.workspace
    candidate = read_candidate(workspace, checkpoint)
    metric_set = bench.metric_set(candidate.run)
    measure = metric_set.decisive
    scored = (
        _on_heldout(bench, spec, candidate, champion)
        if folds is None
        else _by_folds(bench, spec, candidate, champion, folds)
    )
    own, theirs = scored.own, scored.theirs
    baselines = {name: measure.value(sums) for name, sums in own.baselines.items()}
    if spec.xz_baseline and bench.examples_are_files:
        with context.ledger.span("evaluate.xz"):
            try:
                baselines["xz -9"] = xz_bits_per_byte(bench.contents(candidate.run, own.examples))
            except DataError as error:  # since the snapshot; nothing is decided by it, and the shards are frozen
                context.ledger.event("evaluate.no_xz", message=f"left out: {error}")
    slices = slices_of_all(measure, scored.own, scored.labels)
    outputs = own.details.outputs
    kept = None if outputs is None else publish_outputs(workspace, outputs)
    curve = publish_curve(workspace, candidate)
    report = EvaluationReport(
        checkpoint=checkpoint,
        manifest=candidate.run.manifest,
        split=HELDOUT if folds is None else OUT_OF_FOLD,
        examples_sha256=scored.examples_sha256,
        num_examples=len(own.examples),
        num_keys=num_keys(own.sums),
        num_ranking_examples=scored.num_ranking,
        heldout_parts=scored.parts,
        cross_validation=folds,
        num_folds=0 if folds is None or spec.folds is None else spec.folds,
        metric=measure.name,
        greater_is_better=measure.greater_is_better,
        metrics={
            each.name: interval_of(spec, each, own.sums) for each in metric_set.measures if each.is_defined(own.sums)
        },
        slices={name: interval_of(spec, measure, subset_of(own.sums, chosen)) for name, chosen in slices.items()},
        slice_sizes={name: len(chosen) for name, chosen in slices.items()},
        slice_keys=keys_by_slice(own.sums, slices),
        baselines=baselines,
        gate_baseline=metric_set.gate_baseline,
        baseline_difference=difference_of(spec, measure, own.sums, own.baselines[metric_set.gate_baseline]),
        comparison=scored.heldout
        if champion is None or not isinstance(theirs, Scores)
        else compare_with_champion(spec, measure, own, theirs, champion, slices),
        incomparable=theirs if isinstance(theirs, Incomparable) else None,
        inexact=inexactness(candidate.manifest.scalars),
        slice_metrics={
            each.name: {
                name: interval_of(spec, each, sums)
                for name, chosen in slices.items()
                if each.is_defined(sums := subset_of(own.sums, chosen))
            }
            for each in metric_set.measures[1:]
        },
        baseline_intervals={name: interval_of(spec, measure, sums) for name, sums in own.baselines.items()},
        baseline_differences={
            name: difference_of(spec, measure, own.sums, sums) for name, sums in own.baselines.items()
        },
        class_figures=None
        if outputs is None or outputs.probability is None
        else class_figures(outputs, bench.class_names(candidate.run), **spec.resampling, groups=own.sums.get(KEY)),
        number_figures=None
        if outputs is None or outputs.probability is not None
        else number_figures(outputs, **spec.resampling, groups=own.sums.get(KEY)),
        importances=_importances(spec, own, scored.inputs),
        num_importance_examples=0 if own.details.importance is None else own.details.importance.shape[1],
        worst=worst_examples(measure, own),
        continuations=tuple(Continuation.model_validate(each) for each in own.details.continuations),
        outputs=kept,
        no_outputs="" if metric_set.predicts == "tokens" or outputs is not None else own.details.reason,
    )
    page_context = report_context(context, registry, report, evaluated_unix_s=time.time())
    evidence = read_evidence(workspace, report)
    facts = page_facts(bench, candidate.run, report, registry.model)
    page = workspace.publish(evaluation_page(report.link), render_html(report, page_context, evidence, facts).encode())
    return StageOutput(document=report, files=tuple(file for file in (page, kept, curve) if file is not None))


def page_facts(bench: ScoringHarness, run: RunSpec, report: EvaluationReport, model: str) -> PageFacts:
    """What the documents around a report say, and the pages that lie beside its own."""
    workspace = bench.context.workspace
    receipt = workspace.load(run.receipt, ContractReceipt)
    beside = [("Contract", contract_page(run.receipt), f"{receipt.contract_name} {receipt.contract_version}")]
    if (against := report.compared_with) is not None:
        link = workspace.load(against, Registration).evaluation
        beside.append(("The champion's evaluation", evaluation_page(link), link.short))
    # Relative to the page, which lies in `reports` itself.
    pages = [(name, path.removeprefix("reports/"), text) for name, path, text in beside if workspace.exists(path)]
    has_outputs = report.outputs is not None
    return PageFacts(
        target=bench.target_column(run) if report.number_figures is not None else "",
        class_names=tuple(bench.class_names(run)) if has_outputs and report.class_figures is not None else (),
        links=(
            *pages,
            ("Data", f"../{document_path(receipt.snapshot)}", f"files of {receipt.snapshot.short}"),
            ("Shards", f"../{document_path(report.manifest)}", report.manifest.short),
            ("Run", f"../{run_folder(run.link)}/", run.link.short),
            # Its card is written when it is registered, and the registration names this report.
            ("Card", f"../{model_refs.cards_folder(model)}/", f"cards of {model}"),
        ),
        dates=tuple((f"Newest row, {each.rule_id}", report_text.moment(each.unix_s)) for each in receipt.freshness),
    )


def worst_examples(measure: Measure, scores: Scores) -> tuple[WorstExample, ...]:
    """By their own figure, the worst first; those without anything to predict are left out."""
    weights = measure.denominators(scores.sums)
    own = np.divide(measure.numerators(scores.sums), weights, out=np.zeros(len(weights)), where=weights > 0)
    # A decisive measure is a loss here; of one that is not the smallest would be the worst.
    order = np.argsort(own if measure.greater_is_better else -own, kind="stable")
    chosen = [int(number) for number in order if weights[number] > 0][:MAX_WORST]
    return tuple(WorstExample(name=scores.examples[number], value=float(own[number])) for number in chosen)


def _importances(spec: EvaluationSpec, scores: Scores, names: Sequence[str]) -> tuple[Importance, ...]:
    """The greatest first.

    Args:
        names: of a table's inputs, in the order of its blocks.
    """
    importance = scores.details.importance
    if importance is None or not importance.shape[1]:
        return ()
    ones, rows, keys = np.ones(importance.shape[1]), scores.details.importance_rows, scores.sums.get(KEY)
    groups = None if keys is None or rows is None else keys[rows]
    found = [
        Importance(
            name=one_line(names[number], MAX_FIELD_CHARS) if number < len(names) else f"input {number}",
            increase=ratio_interval(increase, ones, **spec.resampling, groups=groups),
        )
        for number, increase in enumerate(importance)
    ]
    return tuple(sorted(found, key=lambda each: -each.increase.value)[:MAX_IMPORTANCES])


def xz_bits_per_byte(documents: list[bytes]) -> float:
    """What `cat ... | xz -9 | wc -c` says, in bits per byte."""
    joined = b"".join(documents)
    return 8 * len(lzma.compress(joined, preset=9)) / max(len(joined), 1)
