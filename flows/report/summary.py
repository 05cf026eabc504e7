"""What a retrain came to: the model, its figure beside the champion's, where to look, where the time went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from headway.data_contracts.store import plain_text, refs
from headway.data_contracts.store.documents import EvaluationReport, Interval, Link
from headway.data_contracts.types.notebook_card import notebook_card
from headway.data_contracts.types.report_text import count, figure
from headway.flows.accounts.time_account import TimeAccount, account
from headway.flows.config.pipeline_spec import PipelineSpec
from headway.flows.console.commands import command_name, workspace_option
from headway.tasks.core.artifacts import artifact_key, show_markdown, show_table
from headway.tasks.core.context import RunContext
from headway.tasks.core.pages import contract_page, evaluation_page
from headway.tasks.registry import model_refs
from headway.tasks.registry.champion import RegistrationOutcome
from headway.tasks.registry.evaluation_report import leaderboard
from headway.tasks.registry.model_card import card_path
from headway.tasks.registry.track import SUMMARY
from headway.training.evaluation.measures import ShownMeasure, shown_measure
from headway.training.observe.ledger import Event, SpoolTail, read_events
from headway.training.observe.step_summary import StepSummary

if TYPE_CHECKING:
    from prefect import State

AWAITING_APPROVAL = "AwaitingApproval"
"""Name of the state that a retrain completes in when a person is to decide about its model."""


class RetrainSummary(BaseModel):
    pipeline: str
    """Its name."""
    workspace: str
    """A folder or URI."""
    model: str
    """The registered model's name."""
    version: str
    """Empty: it was not registered."""
    is_champion: bool
    """Whether this version is the champion now, also where it was before."""
    champion_version: str | None
    """Today's champion; None: there is none."""
    champion_since: str | None
    """ISO 8601, in UTC; None while there is no champion."""
    promoted: bool
    """Whether this retrain made it champion."""
    reason: str
    """Why it is champion or is not, in words."""
    metric: str
    """The measure that decides."""
    value: float
    """This model's figure, over the held-out examples."""
    low: float
    """The lower end of its interval."""
    high: float
    """The upper end of its interval."""
    num_examples: int = 0
    """Examples behind these figures: held-out ones, or all rows of all folds."""
    num_folds: int = 0
    """Of cross-validation, where the figures are of fold models; 0: they are the model's own, on held-out examples."""
    other_metrics: dict[str, float]
    """Figures of the same examples that decide nothing."""
    champion_value: float | None
    """The champion's figure on the same examples; None: it was compared with none."""
    baselines: dict[str, float]
    """Figures of the baselines on the same examples, by name."""
    leaderboard: list[str] = []
    """All that was scored on these examples, the best first: name and figure, with its interval where there is one."""
    registration: str
    """SHA-256 of the registration document."""
    stages_found: list[str]
    """Stages that had nothing new to do."""
    stages_run: list[str]
    """Stages that were run."""
    reports: dict[str, str]
    """Where the pages lie: `contract`, `evaluation`, `card`."""
    logs: str
    """The folder of this retrain's ledger."""
    wall_s: float
    """How long it took in all."""
    time_s: dict[str, float]
    """The same by part: see the time account."""
    unattributed_ratio: float
    """The share of it that no part accounts for."""
    note: str = ""
    """Why it was asked for."""
    inexact: str = ""
    """Why the weights are not to the bit those of an undisturbed run; empty: they are."""
    waits: bool = False
    """Everything speaks for it, and a person is still to approve of it."""
    remedy: str = ""
    """What mends just what the promotion policy refuses; empty: nothing, or no check says."""
    evaluation: str = ""
    """Digest of the report that it was evaluated by."""
    steps: StepSummary | None = None
    """Of rank 0, where this flow run trained."""

    @property
    def in_label_unit(self) -> tuple[str, Interval, float | None, dict[str, float]]:
        """What people are shown first: name, figure, the champion's, and all other figures; of a number its rmse."""
        own = Interval(value=self.value, low=self.low, high=self.high)
        lead = self._lead
        others = {other: value for other, value in self.other_metrics.items() if other != lead.name}
        champion = None if self.champion_value is None else lead.of(self.champion_value)
        return lead.name, lead.interval(own), champion, others | ({self.metric: self.value} if lead.is_root else {})

    @property
    def _lead(self) -> ShownMeasure:
        return shown_measure(self.metric, (self.metric, *self.other_metrics))

    def _repr_html_(self) -> str:
        """For a notebook."""
        name, own, champion, others = self.in_label_unit
        baselines = {each: self._lead.of(value) for each, value in self.baselines.items()}
        rivals = {**baselines, **({} if champion is None else {"champion": champion})}
        beside = ", ".join(f"{name} {value:.4g}" for name, value in rivals.items())
        interval = f"{own.value:.4g} [{own.low:.4g}, {own.high:.4g}]"
        return notebook_card(
            title(self),
            verdict=champion_outcome(self),
            kind="good" if self.is_champion else "open" if self.version else "bad",
            facts={
                name: f"{interval} on {examples_line(self)}" + f"; {beside}" * bool(beside),
                "also": ", ".join(f"{name} {value:.4g}" for name, value in others.items()),
                "why": self.reason,
                "note": self.note,
                "bits": inexact_line(self),
                "steps": "" if self.steps is None else self.steps.line(),
                "made": ", ".join(self.stages_run),
                "found": ", ".join(self.stages_found),
                "took": f"{self.wall_s:,.1f} s",
                "prove it": proof_command(self) if self.version else "",
            },
            links=self.reports,
        )


def summarise(
    context: RunContext, pipeline: PipelineSpec, receipt: Link, evaluation: Link, outcome: RegistrationOutcome
) -> RetrainSummary:
    """Derive the summary from documents and ledger, and show it in the Prefect UI."""
    workspace = context.workspace
    report = workspace.load(evaluation, EvaluationReport)
    spool = workspace.local_path(f"ledger/{context.budget_scope}/flow.jsonl")
    events = read_events(spool)
    spent = spent_time(events)
    stages = [event for event in events if str(event["event"]).startswith("stage.") and "duration_s" in event]
    found: dict[str, bool] = {}
    for event in stages:
        if "found" in event:
            # Of several runs, such as those of folds, a stage was found where all of it was.
            stage = str(event["event"]).removeprefix("stage.")
            found[stage] = found.get(stage, True) and bool(event["found"])
    own = report.metrics[report.metric]
    champion = refs.current(workspace, model_refs.alias_ref(pipeline.registry.model, "champion"))
    card = card_path(pipeline.registry.model, outcome.registration)
    summary = RetrainSummary(
        pipeline=context.pipeline,
        workspace=workspace.uri,
        model=pipeline.registry.model,
        version=outcome.version,
        is_champion=outcome.is_champion,
        champion_version=None
        if champion is None
        else model_refs.version_of(workspace, pipeline.registry.model, champion.target),
        champion_since=None if champion is None else champion.moved_at,
        promoted=outcome.promoted,
        reason=outcome.reason,
        metric=report.metric,
        value=own.value,
        low=own.low,
        high=own.high,
        num_examples=report.num_examples,
        num_folds=report.num_folds,
        other_metrics={name: each.value for name, each in report.metrics.items() if name != report.metric},
        # On other rows than the rest it is told in the reason alone.
        champion_value=None
        if report.comparison is None or report.comparison.heldout is not None
        else report.comparison.champion_value,
        baselines=report.baselines,
        leaderboard=[f"{each.name} {each.text}" for each in leaderboard(report, "champion")],
        registration=outcome.registration.sha256,
        waits=outcome.waits,
        remedy=outcome.remedy,
        evaluation=evaluation.sha256,
        stages_found=[name for name, was_found in found.items() if was_found],
        stages_run=[name for name, was_found in found.items() if not was_found],
        reports={
            "contract": workspace.uri_of(contract_page(receipt)),
            "evaluation": workspace.uri_of(evaluation_page(evaluation)),
            **({"card": workspace.uri_of(card)} if workspace.exists(card) else {}),
        },
        logs=str(spool.parent),
        wall_s=spent.wall_s,
        time_s={name: round(seconds, 3) for name, seconds in spent.parts_s.items()},
        unattributed_ratio=spent.unattributed_ratio,
        note=next(str(event["note"]) for event in events if event["event"] == "flow.begin"),
        inexact=report.inexact,
        steps=_steps(events),
    )
    workspace.publish_json(f"ledger/{context.budget_scope}/summary.json", summary.model_dump(mode="json"))
    rows = [
        {"part": name, "seconds": round(seconds, 2), "share": f"{100 * seconds / spent.wall_s:.1f} %"}
        for name, seconds in spent.parts_s.items()
    ]
    show_table(artifact_key(context.pipeline, "time"), rows, "Where the time went")
    show_markdown(
        artifact_key(context.pipeline, "summary"),
        lambda: markdown(summary),
        "Version, figures, what was made",
    )
    return summary


def _steps(events: list[Event]) -> StepSummary | None:
    summaries = [event for event in events if event["event"] == SUMMARY]
    return StepSummary(**{name: summaries[-1][name] for name in StepSummary.model_fields}) if summaries else None


def spent_time(flow_events: list[Event]) -> TimeAccount:
    """The account of a flow run so far, its ranks' records included."""
    started = next(float(event["started_unix_s"]) for event in flow_events if event["event"] == "flow.begin")
    return account(chain(flow_events, rank_events(flow_events)), started, time.time())


def rank_events(flow_events: list[Event]) -> Iterator[Event]:
    """Records of rank 0 of every attempt that this flow run supervised."""
    for event in flow_events:
        if event["event"] == "attempt" and "folder" in event:
            yield from SpoolTail(Path(event["folder"]) / "ledger" / "rank-0.jsonl").stream()


def title(summary: RetrainSummary) -> str:
    return f"{summary.model} version {summary.version}" if summary.version else f"{summary.model}, not registered"


def examples_line(summary: RetrainSummary) -> str:
    """How many examples are behind the figures, and of which kind."""
    if not summary.num_folds:
        return count(summary.num_examples, "held-out example")
    return f"{count(summary.num_examples, 'example')}, each by one of {summary.num_folds} fold models that never saw it"


def proof_command(summary: RetrainSummary) -> str:
    return f"{command_name()} verify models:/{summary.model}/{summary.version}{workspace_option(summary.workspace)}"


def champion_outcome(summary: RetrainSummary) -> str:
    """What the new version is, and since when there is the champion that there is."""
    since = f"champion since {(summary.champion_since or '')[:10]}"
    if summary.is_champion:
        return since
    if not summary.version:
        return "no version, and no alias moved"
    other, own = summary.champion_version, "waits for approval" if summary.waits else "challenger"
    return own if other is None else f"{own}; version {other} is {since}"


def next_step(summary: RetrainSummary) -> str:
    """What to do where the policy refused; empty where only the champion is better, or nothing was registered."""
    if summary.version and summary.remedy:
        return f"{summary.remedy}; then retrain {summary.pipeline}"
    if not summary.version or summary.waits or summary.champion_version is not None:
        return ""
    return (
        "there is no champion yet. The evaluation report names the inputs that harm and the examples that are worst: "
        f"leave out such inputs, add rows or another recipe, then retrain {summary.pipeline}"
    )


def as_state(summary: RetrainSummary) -> RetrainSummary | State[RetrainSummary]:
    """What a flow returns: where a person has to decide, a state whose name says so. Nothing runs while it waits."""
    if not summary.waits:
        return summary
    from prefect.states import Completed

    return Completed(name=AWAITING_APPROVAL, message=f"{title(summary)} {summary.reason}", data=summary)


def inexact_line(summary: RetrainSummary) -> str:
    """For a person; empty where there is nothing to say."""
    return f"not to the bit an undisturbed run: {summary.inexact}" if summary.inexact else ""


def best_first(summary: RetrainSummary) -> str:
    return "Best first: " + ", ".join(summary.leaderboard)


def markdown(summary: RetrainSummary) -> str:
    steps = "" if summary.steps is None else f"{plain_text.markdown(summary.steps.line())}\n\n"
    first, own, _, others = summary.in_label_unit
    figures = plain_text.markdown(", ".join(f"{name} {figure(value)}" for name, value in others.items()))
    head = plain_text.markdown(f"{title(summary)}: {champion_outcome(summary)}")
    metric = plain_text.markdown(first)
    asked = f"Asked for by: {plain_text.markdown(summary.note)}\n\n" if summary.note else ""
    inexact = f"{plain_text.markdown(line)}\n\n" if (line := inexact_line(summary)) else ""
    standing = f"{plain_text.markdown(best_first(summary))}\n\n" if summary.leaderboard else ""
    return (
        f"## {head}\n\n"
        f"{metric} **{figure(own.value)}** [{figure(own.low)}, {figure(own.high)}] on "
        f"{examples_line(summary)}{f' ({figures})' if figures else ''}\n\n"
        f"{standing}"
        f"{plain_text.markdown(summary.reason)}\n\n"
        f"{asked}"
        f"{inexact}"
        f"found: {plain_text.markdown(', '.join(summary.stages_found)) or 'nothing'}; "
        f"made: {plain_text.markdown(', '.join(summary.stages_run)) or 'nothing'}\n\n"
        f"{steps}" + (f"Prove it: {plain_text.code(proof_command(summary))}\n" if summary.version else "")
    )
