"""Stage *evaluate*: held-out figures with intervals, the champion beside the challenger on the same examples."""

from __future__ import annotations

import lzma
import math
import operator
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Protocol, TypedDict

from pydantic import Field

from data_contracts.documents import (
    Comparison,
    EvaluationReport,
    Frozen,
    Incomparable,
    Interval,
    Link,
    Registration,
    ShardManifest,
)
from data_contracts.errors import DataError, IntegrityError
from data_contracts.sources import SourceSpec
from tasks import model_refs
from tasks.artifacts import artifact_key, show_markdown
from tasks.candidate import read_candidate
from tasks.code_version import code_version
from tasks.context import RunContext
from tasks.evaluation_report import Standing, render_html, render_markdown
from tasks.heldout_parts import fraction_set_apart
from tasks.pages import evaluation_page
from tasks.register import RegistrySpec, registered_before
from tasks.scoring import Bench, only
from tasks.slices import OTHERS, SliceBy
from tasks.stage import Made, find_or_make, stage_task
from training.checkpoint.inexactness import inexactness
from training.data.spec import HELDOUT, ShardSpec
from training.evaluation import Scores
from training.launch.spec import LaunchSpec
from training.measures import Measure, Sums
from training.statistics import paired_difference, ratio_interval

CODE = (
    *("training.evaluation", "training.statistics", "tasks.evaluate", "tasks.scoring", "tasks.evaluation_report"),
    *("tasks.slices", "tasks.heldout_parts", "training.data.source_values"),
    *(
        "training.data.sharding",
        "training.data.encoder_host",
    ),  # encode today's documents for a champion with another encoder
)
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
        "judges by: what was chosen on examples looks too good on them, so that those which ranked once judge no more, "
        "also where the share is lower later. 0: none, and no trials.",
    )
    xz_baseline: bool = Field(True, description="Also compress the held-out documents with `xz -9`, for scale.")
    slices: tuple[SliceBy, ...] = Field(
        default=(),
        exclude_if=operator.not_,
        description="Columns of the source by which the held-out examples are cut as well, such as `[region]`; their "
        "values are shown in reports and on cards.",
    )

    @property
    def resampling(self) -> Resampling:
        return Resampling(resamples=self.bootstrap_resamples, confidence=self.confidence, seed=self.seed)


class Judged(Protocol):
    """What evaluation reads of a pipeline file."""

    @property
    def evaluation(self) -> EvaluationSpec: ...
    @property
    def registry(self) -> RegistrySpec: ...
    @property
    def launch(self) -> LaunchSpec: ...
    @property
    def shards(self) -> ShardSpec: ...
    @property
    def source(self) -> SourceSpec: ...


@stage_task(name="evaluate", task_run_name="evaluate {context.pipeline}")
def evaluate(context: RunContext, pipeline: Judged, checkpoint: Link) -> Link:
    """Score the held-out documents. A candidate that is registered already is its own result."""
    workspace, registry = context.workspace, pipeline.registry
    now = model_refs.champion(workspace, registry.model)
    champion = None if now is None else now[0].target
    registered = registered_before(context, registry, checkpoint)
    if registered is not None and _needs_no_new_judge(context, registry, registered, champion):
        with context.ledger.span("stage.evaluate", found=True):
            return registered.evaluation
    bench = Bench(context=context, launch=pipeline.launch, shards=pipeline.shards, source=pipeline.source)
    manifest = workspace.load(read_candidate(workspace, checkpoint).run.manifest, ShardManifest)
    inputs = {
        "checkpoint": checkpoint.sha256,
        "champion": None if champion is None else champion.sha256,
        "spec": pipeline.evaluation.model_dump(mode="json"),
        "set_apart": fraction_set_apart(context, pipeline.evaluation.ranking_share, manifest),
        "code": code_version(*CODE),
        "libraries": {name: version(name) for name in ("numpy", "torch")},
    }
    link = find_or_make(
        context,
        "evaluate",
        inputs,
        lambda: _evaluate(bench, pipeline.evaluation, registry, checkpoint, champion),
        shown=HELDOUT,
        exclusive=True,
    )
    report = workspace.load(link, EvaluationReport)
    standing = standing_of(context, registry, report)
    page = artifact_key(context.pipeline, "evaluation")
    show_markdown(page, lambda: render_markdown(report, standing), "Held-out figures")
    return link


def _needs_no_new_judge(
    context: RunContext, registry: RegistrySpec, registered: Registration, champion: Link | None
) -> bool:
    """Its own report still decides: it was or is champion, or was judged against today's."""
    workspace = context.workspace
    try:
        report = workspace.load(registered.evaluation, EvaluationReport)
    except IntegrityError as error:
        context.ledger.event("stage.damaged", stage="evaluate", message=str(error))
        return False
    return report.judged_against == champion or model_refs.was_champion(workspace, registry.model, registered.link)


def standing_of(
    context: RunContext, registry: RegistrySpec, report: EvaluationReport, judged_unix_s: float | None = None
) -> Standing:
    """What the refs say of the judged model, and of the champion that it was judged against."""
    workspace, model = context.workspace, registry.model
    before = registered_before(context, registry, report.checkpoint)
    against = report.judged_against
    entry = None if against is None else model_refs.promotion_of(workspace, model, against)
    return Standing(
        pipeline=context.pipeline,
        model=model,
        version=model_refs.expected_version(
            workspace, model, None if before is None else before.link, store=registry.tracking_uri
        ),
        champion_version=None if entry is None else model_refs.version_of(workspace, model, entry.target),
        champion_since_unix_s=None if entry is None else entry.unix_s,
        judged_unix_s=judged_unix_s,
    )


def _evaluate(
    bench: Bench, spec: EvaluationSpec, registry: RegistrySpec, checkpoint: Link, champion: Link | None
) -> Made:
    context, workspace = bench.context, bench.context.workspace
    candidate = read_candidate(workspace, checkpoint)
    yardstick = bench.yardstick(candidate.run)
    measure = yardstick.decisive
    scored = bench.score(candidate)
    parts = bench.parted(spec.ranking_share, candidate.run, scored.examples)
    own = only(scored, parts.judging)
    theirs = None if champion is None else bench.score_champion(champion, candidate.run)
    if isinstance(theirs, Scores) and theirs.examples == scored.examples:
        theirs = only(theirs, parts.judging)
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
        judged = [labels[number] for number in parts.judging]
        slices |= slices_of(judged, weights, others=f"{by.prefix}{OTHERS}")
    report = EvaluationReport(
        checkpoint=checkpoint,
        manifest=candidate.run.manifest,
        split=HELDOUT,
        examples_sha256=bench.examples_sha256(candidate.run, own.examples),
        num_examples=len(own.examples),
        num_ranking_examples=len(scored.examples) - len(own.examples),
        metric=measure.name,
        greater_is_better=measure.greater_is_better,
        metrics={
            each.name: _interval(spec, each, own.sums) for each in yardstick.measures if each.is_defined(own.sums)
        },
        slices={name: _interval(spec, measure, _of(own.sums, chosen)) for name, chosen in slices.items()},
        slice_sizes={name: len(chosen) for name, chosen in slices.items()},
        baselines=baselines,
        gate_baseline=yardstick.gate_baseline,
        baseline_difference=_difference(spec, measure, own.sums, own.baselines[yardstick.gate_baseline]),
        comparison=None
        if champion is None or not isinstance(theirs, Scores)
        else _compare(spec, measure, own, theirs, champion, slices),
        incomparable=theirs if isinstance(theirs, Incomparable) else None,
        inexact=inexactness(candidate.manifest.scalars),
    )
    standing = standing_of(context, registry, report, judged_unix_s=time.time())
    page = workspace.publish(evaluation_page(report.link), render_html(report, standing).encode())
    return Made(document=report, files=(page,))


def _interval(spec: EvaluationSpec, measure: Measure, sums: Sums) -> Interval:
    ratio = ratio_interval(measure.numerators(sums), measure.denominators(sums), **spec.resampling)
    low, high = sorted((measure.of_ratio(ratio.low), measure.of_ratio(ratio.high)))
    return Interval(value=measure.of_ratio(ratio.value), low=low, high=high)


def _difference(spec: EvaluationSpec, measure: Measure, own: Sums, other: Sums) -> Interval:
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
) -> Comparison:
    """Paired, example by example, over all of them and in each slice.

    Raises:
        IntegrityError: the two were scored on different examples.
    """
    weights = [measure.denominators(scores.sums).tolist() for scores in (own, theirs)]
    if own.examples != theirs.examples or weights[0] != weights[1]:
        raise IntegrityError("champion and challenger were scored on different examples.", where=champion.short)
    difference = _difference(spec, measure, own.sums, theirs.sums)
    wide = widened(spec, len(slices))
    return Comparison(
        champion=champion,
        metric=measure.name,
        champion_value=measure.value(theirs.sums),
        difference=difference,
        slices={
            name: _difference(wide, measure, _of(own.sums, chosen), _of(theirs.sums, chosen))
            for name, chosen in slices.items()
        },
    )


def _of(sums: Sums, chosen: Sequence[int]) -> Sums:
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
