"""A model version's card: one Markdown page that needs nothing else, in the workspace and on the version in MLflow.

Written from documents and refs alone. It speaks of what was decided about the version, not of who is champion now.
"""

from __future__ import annotations

import logging

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import (
    CheckpointManifest,
    ContractReceipt,
    EvaluationReport,
    Link,
    Registration,
    RunSpec,
    ShardManifest,
    Snapshot,
)
from headway.data_contracts.store.errors import HeadwayError, RegistryError
from headway.data_contracts.store.plain_text import code, markdown, markdown_table
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count, figure, moment
from headway.tasks.registry import decisions, model_refs
from headway.tasks.registry.decisions import RecordedDecision
from headway.tasks.registry.evaluation_report import folds_words, leaderboard_table, set_apart_words, shown, slice_table
from headway.tasks.registry.model_versions import ModelVersions, lineage
from headway.tasks.rows.slices import OTHERS

log = logging.getLogger(__name__)

FILE = "model_card.md"
MAX_DESCRIPTION = 5000
"""Characters that MLflow's tables take."""
MARKS = {"passed": "✔ passed", "failed": "✖ failed", "not evaluated": "– not evaluated", "waiting": "… waits"}


def card_path(model: str, registration: Link) -> str:
    return f"{model_refs.cards_folder(model)}/{registration.sha256[:16]}.md"


def attach(versions: ModelVersions, registration: Link, version: str) -> None:
    """Write the card, and put it on the version in MLflow: as its description, and as a file of its run.

    Nothing is done where both say already what there is to say. Writers that do not see each other's locks may pass
    here at once, and the last to write may be the first that read: so each looks again after it wrote.

    Raises:
        IntegrityError: a document that it is written from is gone or damaged.
    """
    workspace, model = versions.context.workspace, versions.model
    path = card_path(model, registration)
    while True:
        try:
            text = render(workspace, model, registration, version)
        except HeadwayError:
            raise
        except Exception:
            # What was decided about the version stands, and is not undone by a page about it.
            log.exception("The card of %s version %s could not be written", model, version)
            return
        stored = versions.stored(version)
        if stored is None:
            raise RegistryError(
                f"MLflow has no version {version} of {model} any more.",
                where=versions.store or "the workspace's own store",
                advice="Run again: it is registered anew.",
            )
        if workspace.read_if_there(path) == text.encode() and stored.description == _description(text):
            return
        versions.client.log_text(stored.run_id, text, FILE)
        versions.client.update_model_version(model, version, description=_description(text))
        workspace.publish(path, text.encode())


def _description(card: str) -> str:
    """The card for MLflow's page, which has the title already; its table of versions shows the first words as text."""
    verdict, newline, rest = card.partition("\n\n")[2].partition("\n")
    text = verdict.replace("**", "") + newline + rest
    note = f"\n\n... the whole card is the file `{FILE}` of the version's run.\n"
    # Cut between lines: half a piece of code would let the rest of it be read as Markdown.
    return text if len(text) <= MAX_DESCRIPTION else text[: MAX_DESCRIPTION - len(note)].rpartition("\n")[0] + note


def render(workspace: Workspace, model: str, registration: Link, version: str) -> str:
    """The card of one version.

    Raises:
        IntegrityError: a document that it stands on is gone or damaged.
    """
    document = workspace.load(registration, Registration)
    found = next(decisions.decisions(workspace, model, registration), None)
    report = workspace.load(document.evaluation if found is None else found.decision.evaluation, EvaluationReport)
    run = workspace.load(document.run, RunSpec)
    receipt = workspace.load(run.receipt, ContractReceipt)
    lines = [
        f"# {markdown(model)} version {version}",
        "",
        *_retired(workspace, model, registration),
        *_verdict(found),
        "",
        *_decision(found),
        *_figures(report),
        *_slices(report),
        *_data(workspace, run, receipt, report),
        *_training(workspace, document, run),
        *_moves(workspace, model, registration),
        *_limits(receipt, report, found),
        "## Lineage",
        "",
        *markdown_table(("what", "SHA-256"), lineage(workspace, registration).items()),
        "",
        f"Prove it: {code(f'headway verify models:/{model}/{version}')}",
    ]
    return "\n".join(lines) + "\n"


def _retired(workspace: Workspace, model: str, registration: Link) -> list[str]:
    entry = model_refs.retirement_of(workspace, model, registration)
    if entry is None:
        return []
    message = f"{entry.moved_at}, by {markdown(model_refs.retired_by(model, entry))}: {markdown(entry.reason)}"
    return [f"**Retired**, {message}. What it stands on may be gone.", ""]


def _verdict(found: RecordedDecision | None) -> list[str]:
    if found is None:
        return ["Nothing was decided about it yet."]
    entry, _, decision = found
    if decision.override:
        return [
            f"**Promoted against the policy**: {markdown(decision.override)}. The policy: {markdown(decision.reason)}"
        ]
    if decision.waits:
        message = markdown(decision.reason.removeprefix("waits for approval: "))
        return [f"**Waits for approval**, {entry.moved_at}, by `headway promote` or `headway refuse`: {message}"]
    became = "Promoted" if decision.promote else "Refused" if decision.refused else "Stays challenger"
    return [f"**{became}**, {entry.moved_at}: {markdown(decision.reason)}"]


def _decision(found: RecordedDecision | None) -> list[str]:
    if found is None:
        return []
    rows = [(check.name, MARKS[check.status], check.detail) for check in found.decision.checks]
    return ["## Decision", "", *markdown_table(("check", "", "figure"), rows), ""]


def _figures(report: EvaluationReport) -> list[str]:
    direction = "higher" if report.greater_is_better else "lower"
    rows = [(name, shown(each)) for name, each in report.metrics.items()]
    if report.comparison is not None:
        on = report.comparison.heldout
        where = "" if on is None else f", on {on.num_examples:,} held-out rows alone"
        rows.append((f"{report.metric} of the champion{where}", figure(report.comparison.champion_value)))
        rows.append((f"{report.metric} minus the champion's{where}", shown(report.comparison.difference)))
    note = (
        f"{report.num_examples:,} {report.split} examples; {report.metric} decides, {direction} is better; "
        f"intervals are bootstrapped over {f'their {report.num_keys:,} keys' if report.num_keys else 'the examples'}."
    )
    folds = [markdown(f"{folds_words(report, 'This version')}."), ""] if report.num_folds else []
    return [
        *("## Figures", "", markdown(note), "", *folds, *markdown_table(("figure", "value"), rows), ""),
        *("## Leaderboard", "", *leaderboard_table(report, "the champion of that time", "this version"), ""),
    ]


def _slices(report: EvaluationReport) -> list[str]:
    if not report.slices:
        return []
    return ["## Slices", "", *slice_table(report), ""]


def _data(workspace: Workspace, run: RunSpec, receipt: ContractReceipt, report: EvaluationReport) -> list[str]:
    shards = workspace.load(run.manifest, ShardManifest)
    source = workspace.load(shards.snapshot, Snapshot)
    splits = sorted({group.split for group in shards.groups})
    rows = [
        ("contract", f"{receipt.contract_name} {receipt.contract_version}, {'passed' if receipt.passed else 'failed'}"),
        ("source", f"{source.format}, {count(len(source.files), 'file')}, {source.size_bytes / 1e6:,.1f} MB"),
        ("rows", f"{receipt.num_rows:,} accepted, {receipt.num_quarantined:,} left out"),
        *((f"split {split}", count(shards.num_rows(split), "encoded row")) for split in splits),
        *((f"newest row, {each.rule_id}", _moment(each.unix_s)) for each in receipt.freshness),
        ("examples evaluated", f"{report.num_examples:,}, digest {report.examples_sha256[:12]}"),
        *(
            []
            if report.cross_validation is None
            else [("fold models", f"{report.num_folds}, digest {report.cross_validation.sha256[:12]}")]
        ),
    ]
    return ["## Data", "", *markdown_table(("", ""), rows), ""]


def _moment(unix_s: float | None) -> str:
    return "unknown" if unix_s is None else f"{moment(unix_s)} UTC"


def _training(workspace: Workspace, document: Registration, run: RunSpec) -> list[str]:
    checkpoint = workspace.load(document.checkpoint, CheckpointManifest)
    recipe = run.config.get("recipe") or {}
    rows = [
        ("pipeline", run.pipeline),
        ("recipe", str(recipe.get("name", "unknown"))),
        ("model", ", ".join(f"{name} {value}" for name, value in (recipe.get("model") or {}).items())),
        (
            "step",
            f"{checkpoint.step:,}, {count(checkpoint.num_samples, 'sample')} on {count(checkpoint.world_size, 'rank')}",
        ),
        ("device", f"{checkpoint.fingerprint.device} {checkpoint.fingerprint.machine}"),
        ("torch", checkpoint.fingerprint.torch),
        ("registered bytes", f"{sum(file.size_bytes for file in document.artifacts):,}"),
    ]
    return ["## Training", "", *markdown_table(("", ""), [row for row in rows if row[1].strip()]), ""]


def _moves(workspace: Workspace, model: str, registration: Link) -> list[str]:
    entries = refs.history(workspace, model_refs.alias_ref(model, "champion"))
    moves = ((entry, model_refs.champion_detail(model, entry)) for entry in entries if entry.target == registration)
    rows = [(entry.moved_at, move.how, move.by or "unknown", entry.reason) for entry, move in moves]
    return ["## Became champion", "", *markdown_table(("when", "how", "by", "why"), rows), ""] if rows else []


def _limits(receipt: ContractReceipt, report: EvaluationReport, found: RecordedDecision | None) -> list[str]:
    """What a reader must not take from the figures."""
    evaluated = f"It was evaluated on {markdown(report.split)} examples of the same source"
    if report.num_folds:
        evaluated = "Its settings were evaluated by fold models on rows of the same source, and not its own weights"
    limits = [
        f"{evaluated}; of other data the figures say nothing.",
        "Differences within their intervals are noise.",
    ]
    if any(name.endswith(OTHERS) for name in report.slices):
        limits.append(f"Slices too small to be evaluated are taken together as {code(OTHERS)}.")
    if report.num_ranking_examples:
        limits.append(f"{set_apart_words(report)}.")
    if receipt.num_quarantined:
        excluded = count(receipt.num_quarantined, "row")
        limits.append(f"Left out of training and judgement, for breaking row rules: {excluded}.")
    limits += [
        f"The contract's {code(verdict.rule_id)} did not hold ({verdict.severity}): {markdown(verdict.observed)}."
        for verdict in receipt.verdicts
        if not verdict.passed
    ]
    unjudged = (
        [] if found is None else [check.name for check in found.decision.checks if check.status == "not evaluated"]
    )
    if unjudged:
        limits.append(f"Not evaluated: {markdown(', '.join(unjudged))}.")
    return ["## Limits", "", *(f"- {limit}" for limit in limits), ""]
