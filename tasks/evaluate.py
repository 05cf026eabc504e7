"""Stage *evaluate*: held-out figures with intervals, the champion beside the challenger on the same examples."""

from __future__ import annotations

import json
import lzma
import math
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

from pydantic import Field

from data_contracts.digests import sha256_of
from data_contracts.documents import (
    CheckpointManifest,
    Comparison,
    EvaluationReport,
    Frozen,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
)
from data_contracts.errors import IntegrityError
from data_contracts.sources import SourceSpec
from tasks import model_refs
from tasks.artifacts import artifact_key, show_markdown
from tasks.code_version import code_version
from tasks.context import RunContext
from tasks.evaluation_report import render_html, render_markdown
from tasks.launch import final_checkpoint, gang_for, run_folder
from tasks.register import RegistrySpec, registered_before
from tasks.shard import accepted_documents, shards_under
from tasks.stage import Made, find_or_make, stage_task
from training.data.spec import HELDOUT, ShardSpec
from training.data.splits import SourceDocument
from training.evaluation import DocumentScores, merge
from training.launch.spec import LaunchSpec, for_quiet_work
from training.launch.supervisor import supervise
from training.statistics import paired_difference, ratio_interval

CODE = (
    *("training.evaluation", "training.statistics", "tasks.evaluate", "tasks.evaluation_report"),
    "training.data.sharding",  # encodes today's documents for a champion with another encoder
)
METRIC = "bits_per_byte"
GATE_BASELINE = "bigram"


class Resampling(TypedDict):
    resamples: int
    confidence: float
    seed: int


class EvaluationSpec(Frozen):
    bootstrap_resamples: int = Field(2000, ge=100, description="Resamples of documents behind every interval.")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Width of the intervals.")
    seed: int = Field(0, description="Seed of the resampling.")
    xz_baseline: bool = Field(True, description="Also compress the held-out documents with `xz -9`, for scale.")

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
    """Score the held-out documents. A candidate that is registered already is its own result."""
    workspace = context.workspace
    now = model_refs.champion(workspace, registry.model)
    champion = None if now is None else now[0].target
    registered = registered_before(context, registry, checkpoint)
    if registered is not None and _needs_no_new_judge(context, registry, registered, champion):
        with context.ledger.span("stage.evaluate", found=True):
            return registered.evaluation
    inputs = {
        "checkpoint": checkpoint.sha256,
        "champion": None if champion is None else champion.sha256,
        "spec": spec.model_dump(mode="json"),
        "code": code_version(*CODE),
        "libraries": {name: version(name) for name in ("numpy", "torch")},
    }
    link = find_or_make(
        context,
        "evaluate",
        inputs,
        lambda: _evaluate(context, spec, launch, shards, source, checkpoint, champion),
        shown=HELDOUT,
    )
    report = workspace.load(link, EvaluationReport)
    show_markdown(artifact_key(context.pipeline, "evaluation"), render_markdown(report), "Held-out figures")
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
    judged_against = None if report.comparison is None else report.comparison.champion
    return judged_against == champion or model_refs.was_champion(workspace, registry.model, registered.link)


def report_path(report: Link) -> str:
    return f"reports/evaluation-{report.sha256[:16]}.html"


def _evaluate(
    context: RunContext,
    spec: EvaluationSpec,
    launch: LaunchSpec,
    shards: ShardSpec,
    source: SourceSpec,
    checkpoint: Link,
    champion: Link | None,
) -> Made:
    workspace = context.workspace
    manifest = workspace.load(checkpoint, CheckpointManifest)
    run = workspace.load(manifest.run, RunSpec)
    own = _score(context, launch, manifest.run, run.manifest, baselines=True)
    theirs = None if champion is None else _score_champion(context, launch, shards, source, run, champion)
    examples = _examples(context, source, run, own.documents)
    baselines = dict(own.baselines)
    if spec.xz_baseline:
        with context.ledger.span("evaluate.xz"):
            baselines["xz -9"] = xz_bits_per_byte([document.read() for document in examples])
    report = EvaluationReport(
        checkpoint=checkpoint,
        manifest=run.manifest,
        split=HELDOUT,
        examples_sha256=sha256_of([[document.path, document.sha256] for document in examples]),
        num_examples=len(examples),
        metric=METRIC,
        greater_is_better=False,
        metrics={METRIC: ratio_interval(own.bits, own.size_bytes, **spec.resampling)},
        slices={
            name: ratio_interval(own.bits[chosen], own.size_bytes[chosen], **spec.resampling)
            for name, chosen in slices_of(own).items()
        },
        baselines=baselines,
        gate_baseline=GATE_BASELINE,
        baseline_difference=paired_difference(
            own.bits, own.baseline_nats[GATE_BASELINE] / math.log(2), own.size_bytes, **spec.resampling
        ),
        comparison=None if theirs is None or champion is None else _compare(spec, own, theirs, champion),
    )
    page = workspace.publish(report_path(report.link), render_html(report, context.pipeline).encode())
    return Made(document=report, files=(page,))


def _examples(context: RunContext, source: SourceSpec, run: RunSpec, paths: tuple[str, ...]) -> list[SourceDocument]:
    """The held-out documents themselves, sorted by path."""
    snapshot = context.workspace.load(run.manifest, ShardManifest).snapshot
    documents = {document.path: document for document in accepted_documents(context, source, snapshot, run.receipt)}
    return [documents[path] for path in paths]


def _compare(spec: EvaluationSpec, own: DocumentScores, theirs: DocumentScores, champion: Link) -> Comparison:
    """Paired, document by document.

    Raises:
        IntegrityError: the two were scored on different documents.
    """
    if own.documents != theirs.documents or own.size_bytes.tolist() != theirs.size_bytes.tolist():
        raise IntegrityError("champion and challenger were scored on different documents.", where=champion.short)
    difference = paired_difference(own.bits, theirs.bits, own.size_bytes, **spec.resampling)
    return Comparison(champion=champion, metric=METRIC, champion_value=theirs.bits_per_byte, difference=difference)


def slices_of(scores: DocumentScores) -> dict[str, list[int]]:
    """Documents by their top-level folder, empty files aside; folders of fewer than five documents together."""
    folders: dict[str, list[int]] = {}
    for index, (path, size_bytes) in enumerate(zip(scores.documents, scores.size_bytes, strict=True)):
        if not size_bytes:
            continue
        folders.setdefault(path.partition("/")[0] + "/" if "/" in path else "(top level)", []).append(index)
    large = {name: members for name, members in folders.items() if len(members) >= 5}
    rest = sorted(index for name, members in folders.items() if name not in large for index in members)
    return dict(sorted(large.items())) | ({"(other folders)": rest} if rest else {})


def xz_bits_per_byte(documents: list[bytes]) -> float:
    """What `cat ... | xz -9 | wc -c` says, in bits per byte."""
    joined = b"".join(documents)
    return 8 * len(lzma.compress(joined, preset=9)) / max(len(joined), 1)


def _score_champion(
    context: RunContext, launch: LaunchSpec, shards: ShardSpec, source: SourceSpec, run: RunSpec, champion: Link
) -> DocumentScores:
    """The champion on today's documents, under its own encoder where that differs."""
    workspace = context.workspace
    registration = workspace.load(champion, Registration)
    its_run = workspace.load(registration.run, RunSpec)
    manifest = run.manifest
    if its_run.fitted != run.fitted:
        spec = shards.model_copy(update={"encoder": workspace.load(its_run.manifest, ShardManifest).spec["encoder"]})
        spec = ShardSpec.model_validate(spec.model_dump(mode="json"))
        snapshot = workspace.load(run.manifest, ShardManifest).snapshot
        manifest = shards_under(context, spec, source, snapshot, run.receipt, its_run.fitted)
    return _score(context, launch, registration.run, manifest, baselines=False)


def _score(context: RunContext, launch: LaunchSpec, run: Link, manifest: Link, *, baselines: bool) -> DocumentScores:
    """Run the evaluation ranks on one checkpoint, with the code that trained it."""
    workspace = context.workspace
    folder, _ = final_checkpoint(context, run)
    run_dir = workspace.local_path(f"{run_folder(run)}/evaluate/{manifest.sha256[:16]}")
    out: Path = run_dir / "scores"
    out.mkdir(parents=True, exist_ok=True)
    request = run_dir / "request.json"
    request.write_text(
        json.dumps(
            {
                "checkpoint": str(workspace.local_path(folder)),
                "run": run.sha256,
                "manifest": manifest.sha256,
                "split": HELDOUT,
                "baselines": baselines,
            }
        )
    )
    ranks = launch.nodes * launch.ranks_per_node
    arguments = ("--request", str(request), "--out", str(out))
    gang = gang_for(context, workspace.load(run, RunSpec), "training.evaluation", run_dir, 1, ranks, *arguments)
    patient = for_quiet_work(launch)
    supervise(patient, gang, ledger=context.ledger, budget_scope=context.budget_scope, poll=lambda: None)
    return merge(out, ranks)
