"""Stage *evaluate*: held-out figures with intervals, the champion beside the challenger on the same examples."""

from __future__ import annotations

import lzma
import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import numpy as np
from pydantic import Field

from headway.data_contracts.sources.reading import SourceSpec
from headway.data_contracts.store.documents import (
    ChampionComparison,
    Continuation,
    ContractReceipt,
    EvaluationReport,
    Frozen,
    Importance,
    Incomparable,
    Interval,
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
from headway.tasks.core.candidate import read_candidate
from headway.tasks.core.code_version import code_version
from headway.tasks.core.context import RunContext
from headway.tasks.core.outlook import Outlook, found, look_up, would_run
from headway.tasks.core.pages import contract_page, evaluation_page
from headway.tasks.core.stage import StageOutput, find_or_make, stage_task
from headway.tasks.registry import model_refs
from headway.tasks.registry.evaluation_report import ReportContext, render_markdown
from headway.tasks.reports.evaluation_page import PageFacts, render_html
from headway.tasks.reports.evidence import publish_curve, publish_outputs, read_evidence
from headway.tasks.rows.heldout_parts import CODE as PARTS_CODE
from headway.tasks.rows.heldout_parts import apart_from, has_chosen_nothing
from headway.tasks.rows.slices import OTHERS, SliceBy
from headway.tasks.stages.register import RegistrySpec, registered_before
from headway.tasks.stages.scoring import ScoringHarness, only
from headway.training.checkpoint.inexactness import inexactness
from headway.training.checkpoint.layout import run_folder
from headway.training.config.shards import HELDOUT, ShardSpec
from headway.training.evaluation.class_figures import class_figures
from headway.training.evaluation.measures import Measure, Sums
from headway.training.evaluation.number_figures import number_figures
from headway.training.evaluation.statistics import paired_difference, ratio_interval
from headway.training.launch.base.gang import LaunchSpec
from headway.training.programs.evaluation import DetailsRequest, Scores

CODE = (
    *(
        "headway.training.programs.evaluation",
        "headway.training.evaluation.statistics",
        "headway.tasks.stages.evaluate",
        "headway.tasks.stages.scoring",
        "headway.tasks.registry.evaluation_report",
        "headway.tasks.reports.evaluation_page",
        "headway.tasks.reports.evidence",
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
MAX_WORST = 20
MAX_IMPORTANCES = 200
MIN_SLICE = 5
"""Slices of fewer examples are taken together."""
TAIL_RESAMPLES = 5
"""Beyond each end of a slice's interval, at least: an end that no resample passes is the largest one drawn."""


class Resampling(TypedDict):
    resamples: int
    confidence: float
    seed: int


class EvaluationSpec(Frozen):
    bootstrap_resamples: int = Field(2000, ge=100, description="Resamples of documents behind every interval.")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Width of the intervals.")
    seed: int = Field(0, description="Seed of the resampling.")
    ranking_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        exclude_if=operator.not_,
        description="Share of the held-out examples on which `trials` are ranked, and which no report and no gate "
        "uses: what was chosen on examples looks too good on them, so those that ranked once never evaluate again, "
        "also where the share is lower later. 0: none, and no trials.",
    )
    xz_baseline: bool = Field(True, description="Also compress the held-out documents with `xz -9`, for scale.")
    continuations: int = Field(
        3, ge=0, le=10, description="Held-out rows of a text whose beginnings the page quotes and the model continues."
    )
    trees_baseline: bool = Field(
        True, description="Of a table, also fit boosted trees on some of its training rows, for scale: scikit-learn's."
    )
    slices: tuple[SliceBy, ...] = Field(
        default=(),
        exclude_if=operator.not_,
        description="Columns of the source by which the held-out examples are cut as well, such as `[region]`; their "
        "values are shown in reports and on cards.",
    )

    @property
    def resampling(self) -> Resampling:
        return Resampling(resamples=self.bootstrap_resamples, confidence=self.confidence, seed=self.seed)


@stage_task(name="evaluate", task_run_name="evaluate {context.pipeline}")
def evaluate(
    context: RunContext,
    spec: EvaluationSpec,
    registry: RegistrySpec,
    launch: LaunchSpec,
    shards: ShardSpec,
    source: SourceSpec,
    checkpoint: Link,
) -> Link:
    """Score the held-out documents. A candidate that is registered already is its own result.

    Args:
        launch, shards, source: where models are scored, and on which data.
    """
    workspace = context.workspace
    champion = _champion(workspace, registry)
    if (own := _own_report(context, spec, registry, checkpoint, champion)) is not None:
        with context.ledger.span("stage.evaluate", found=True):
            return own
    bench = ScoringHarness(
        context=context, launch=launch, shards=shards, source=source, boosted_trees=spec.trees_baseline
    )
    manifest = read_candidate(workspace, checkpoint).run.manifest
    link = find_or_make(
        context,
        "evaluate",
        _inputs(context, spec, manifest, checkpoint, champion),
        lambda: _evaluate(bench, spec, registry, checkpoint, champion),
        shown=HELDOUT,
        exclusive=True,
    )
    report = workspace.load(link, EvaluationReport)
    page_context = report_context(context, registry, report)
    page = artifact_key(context.pipeline, "evaluation")
    show_markdown(page, lambda: render_markdown(report, page_context), "Held-out figures")
    return link


def outlook(
    context: RunContext, spec: EvaluationSpec, registry: RegistrySpec, manifest: Link | None, checkpoint: Link | None
) -> Outlook:
    """Args:
    manifest: the shards that the run was trained on.
    checkpoint: None: there is none to evaluate yet.
    """
    if manifest is None or checkpoint is None:
        return would_run(context, "evaluate")
    champion = _champion(context.workspace, registry)
    if (own := _own_report(context, spec, registry, checkpoint, champion)) is not None:
        return found("evaluate", own, "with the registered version")
    return look_up(context, "evaluate", _inputs(context, spec, manifest, checkpoint, champion))


def _champion(workspace: Workspace, registry: RegistrySpec) -> Link | None:
    now = model_refs.champion(workspace, registry.model)
    return None if now is None else now[0].target


def _own_report(
    context: RunContext, spec: EvaluationSpec, registry: RegistrySpec, checkpoint: Link, champion: Link | None
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
        holds = report.compared_with == champion and has_chosen_nothing(context, spec.ranking_share, report)
    except IntegrityError as error:
        context.report_damage("evaluate", str(error))
        return None
    return registered.evaluation if holds else None


def _inputs(
    context: RunContext, spec: EvaluationSpec, manifest: Link, checkpoint: Link, champion: Link | None
) -> dict[str, object]:
    shards = context.workspace.load(manifest, ShardManifest)
    return {
        "checkpoint": checkpoint.sha256,
        "champion": None if champion is None else champion.sha256,
        "spec": spec.model_dump(mode="json"),
        "set_apart": [each.model_dump(mode="json") for each in apart_from(context, spec.ranking_share, shards)],
        "code": code_version(*CODE),
        "libraries": {name: version(name) for name in ("numpy", "torch", "scikit-learn")},
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


def _evaluate(
    bench: ScoringHarness, spec: EvaluationSpec, registry: RegistrySpec, checkpoint: Link, champion: Link | None
) -> StageOutput:
    context, workspace = bench.context, bench.context.workspace
    candidate = read_candidate(workspace, checkpoint)
    metric_set = bench.metric_set(candidate.run)
    measure = metric_set.decisive
    scored = bench.score(candidate, details=DetailsRequest(seed=spec.seed, continuations=spec.continuations))
    parts = bench.parted(spec.ranking_share, candidate.run, scored.examples)
    own = only(scored, parts.evaluation)
    theirs = None if champion is None else bench.score_champion(champion, candidate.run)
    # Other examples are refused in `_compare`; numbers of ours would cut them wrongly.
    if isinstance(theirs, Scores) and theirs.examples == scored.examples:
        theirs = only(theirs, parts.evaluation)
    baselines = {name: measure.value(sums) for name, sums in own.baselines.items()}
    if spec.xz_baseline and bench.examples_are_files:
        with context.ledger.span("evaluate.xz"):
            try:
                baselines["xz -9"] = xz_bits_per_byte(bench.contents(candidate.run, own.examples))
            except DataError as error:  # since the snapshot; nothing is decided by it, and the shards are frozen
                context.ledger.event("evaluate.no_xz", message=f"left out: {error}")
    weights = measure.denominators(own.sums).tolist()
    slices = slices_of(own.slices, weights)
    for by, labels in bench.slices_by(spec.slices, candidate.run, scored.examples).items():
        evaluated = [labels[number] for number in parts.evaluation]
        slices |= slices_of(evaluated, weights, others=f"{by.prefix}{OTHERS}")
    outputs = own.details.outputs
    kept = None if outputs is None else publish_outputs(workspace, outputs)
    curve = publish_curve(workspace, candidate)
    report = EvaluationReport(
        checkpoint=checkpoint,
        manifest=candidate.run.manifest,
        split=HELDOUT,
        examples_sha256=bench.examples_sha256(candidate.run, own.examples),
        num_examples=len(own.examples),
        num_ranking_examples=len(scored.examples) - len(own.examples),
        heldout_parts=parts.document,
        metric=measure.name,
        greater_is_better=measure.greater_is_better,
        metrics={
            each.name: interval_of(spec, each, own.sums) for each in metric_set.measures if each.is_defined(own.sums)
        },
        slices={name: interval_of(spec, measure, subset_of(own.sums, chosen)) for name, chosen in slices.items()},
        slice_sizes={name: len(chosen) for name, chosen in slices.items()},
        baselines=baselines,
        gate_baseline=metric_set.gate_baseline,
        baseline_difference=difference_of(spec, measure, own.sums, own.baselines[metric_set.gate_baseline]),
        comparison=None
        if champion is None or not isinstance(theirs, Scores)
        else _compare(spec, measure, own, theirs, champion, slices),
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
        else class_figures(outputs, bench.class_names(candidate.run), **spec.resampling),
        number_figures=None
        if outputs is None or outputs.probability is not None
        else number_figures(outputs, **spec.resampling),
        importances=_importances(spec, own, bench.input_names, candidate.run),
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


def _importances(
    spec: EvaluationSpec, scores: Scores, input_names: Callable[[RunSpec], list[str]], run: RunSpec
) -> tuple[Importance, ...]:
    """The greatest first."""
    importance = scores.details.importance
    if importance is None or not importance.shape[1]:
        return ()
    names = input_names(run)
    ones = np.ones(importance.shape[1])
    found = [
        Importance(
            name=one_line(names[number], MAX_FIELD_CHARS) if number < len(names) else f"input {number}",
            increase=ratio_interval(increase, ones, **spec.resampling),
        )
        for number, increase in enumerate(importance)
    ]
    return tuple(sorted(found, key=lambda each: -each.increase.value)[:MAX_IMPORTANCES])


def interval_of(spec: EvaluationSpec, measure: Measure, sums: Sums) -> Interval:
    ratio = ratio_interval(measure.numerators(sums), measure.denominators(sums), **spec.resampling)
    # A measure may fall as its ratio grows, which turns the interval round.
    low, high = sorted((measure.of_ratio(ratio.low), measure.of_ratio(ratio.high)))
    return Interval(value=measure.of_ratio(ratio.value), low=low, high=high)


def difference_of(spec: EvaluationSpec, measure: Measure, own: Sums, other: Sums) -> Interval:
    return paired_difference(
        measure.numerators(own), measure.numerators(other), measure.denominators(own), **spec.resampling
    )


def _compare(
    spec: EvaluationSpec,
    measure: Measure,
    own: Scores,
    theirs: Scores,
    champion: Link,
    slices: Mapping[str, Sequence[int]],
) -> ChampionComparison:
    """Paired, example by example, over all of them and in each slice.

    Raises:
        IntegrityError: the two were scored on different examples.
    """
    weights = [measure.denominators(scores.sums).tolist() for scores in (own, theirs)]
    # A paired difference needs the same examples in the same order, each with the same weight.
    if own.examples != theirs.examples or weights[0] != weights[1]:
        raise IntegrityError("champion and challenger were scored on different examples.", where=champion.short)
    difference = difference_of(spec, measure, own.sums, theirs.sums)
    wide = widened(spec, len(slices))
    return ChampionComparison(
        champion=champion,
        metric=measure.name,
        champion_value=measure.value(theirs.sums),
        difference=difference,
        slices={
            name: difference_of(wide, measure, subset_of(own.sums, chosen), subset_of(theirs.sums, chosen))
            for name, chosen in slices.items()
        },
    )


def subset_of(sums: Sums, chosen: Sequence[int]) -> Sums:
    return {name: values[chosen] for name, values in sums.items()}


def widened(spec: EvaluationSpec, num_slices: int) -> EvaluationSpec:
    """For so many intervals that all hold together: of many slices one looks worse by chance alone, unless each is
    doubted the more (Bonferroni). The ends of a wider interval lie further out, and take more resamples to be seen."""
    doubt = (1 - spec.confidence) / max(num_slices, 1)
    resamples = max(spec.bootstrap_resamples, math.ceil(TAIL_RESAMPLES / (doubt / 2)))
    return spec.model_copy(update={"confidence": 1 - doubt, "bootstrap_resamples": resamples})


def slices_of(slices: Sequence[str], weights: Sequence[float], *, others: str = OTHERS) -> dict[str, list[int]]:
    """Examples by slice, weightless ones aside; slices of fewer than `MIN_SLICE` examples together, as `others`."""
    members: dict[str, list[int]] = {}
    for index, (name, weight) in enumerate(zip(slices, weights, strict=True)):
        if weight:
            members.setdefault(name, []).append(index)
    large = {name: chosen for name, chosen in members.items() if len(chosen) >= MIN_SLICE and name != others}
    rest = sorted(index for name, chosen in members.items() if name not in large for index in chosen)
    return dict(sorted(large.items())) | ({others: rest} if rest else {})


def xz_bits_per_byte(documents: list[bytes]) -> float:
    """What `cat ... | xz -9 | wc -c` says, in bits per byte."""
    joined = b"".join(documents)
    return 8 * len(lzma.compress(joined, preset=9)) / max(len(joined), 1)
