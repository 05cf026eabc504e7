"""Who is challenger and who is champion: refs are moved by compare-and-set, MLflow's aliases after them.

A kill between the two leaves an alias that is behind its ref. What Headway last gave an alias is written down, so that
it is brought up to date next time, while an alias that somebody moved in MLflow is reported and left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from data_contracts import refs
from data_contracts.documents import EvaluationReport, Frozen, Link
from data_contracts.errors import RefConflict
from tasks import mlflow_store, model_refs
from tasks.context import RunContext
from tasks.promotion import Verdict, decide

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    model: str
    registration: Link
    version: str
    evaluation: Link
    """The report that judges it against today's champion; it may be newer than the registration's own."""


class Outcome(Frozen):
    """What registration came to, for the summary."""

    registration: Link
    version: str
    promoted: bool
    is_champion: bool
    reason: str


def settle(context: RunContext, client: MlflowClient, candidate: Candidate) -> Outcome:
    """Make the candidate challenger and, if its report says so, champion.

    Raises:
        RefConflict: another writer promoted first; run again to be judged against the new champion.
    """
    point(context, candidate, "challenger", reason="newest candidate")
    verdict, is_champion = _verdict(context, candidate)
    if verdict.promote:
        point(context, candidate, "champion", reason=verdict.reason)
    for alias in ("challenger", "champion"):
        project(context, client, candidate.model, alias)
    return Outcome(
        registration=candidate.registration,
        version=candidate.version,
        promoted=verdict.promote,
        is_champion=is_champion or verdict.promote,
        reason=verdict.reason,
    )


def _verdict(context: RunContext, candidate: Candidate) -> tuple[Verdict, bool]:
    """The report's verdict and whether the candidate is champion already.

    A report that was made against another champion than today's decides nothing, and a model that was champion before
    and was replaced does not come back by itself.
    """
    workspace = context.workspace
    report = workspace.load(candidate.evaluation, EvaluationReport)
    now = model_refs.champion(workspace, candidate.model)
    if now is not None and now[0].target == candidate.registration:
        return Verdict(promote=False, reason=f"is the champion: {now[0].reason}"), True
    if model_refs.was_champion(workspace, candidate.model, candidate.registration):
        return Verdict(promote=False, reason="was champion and was replaced; it does not return by itself"), False
    judged_against = report.comparison.champion if report.comparison is not None else None
    if (now[0].target if now is not None else None) != judged_against:
        return Verdict(promote=False, reason="was judged against another champion than today's; run again"), False
    if not context.may_promote:
        return Verdict(promote=False, reason=f"promotion was switched off for this run; {decide(report).reason}"), False
    return decide(report), False


def point(context: RunContext, candidate: Candidate, alias: str, *, reason: str) -> None:
    """Move a ref to the candidate, unless it is there."""
    name = model_refs.alias_ref(candidate.model, alias)
    entry = refs.current(context.workspace, name)
    if entry is not None and entry.target == candidate.registration and entry.detail["version"] == candidate.version:
        return
    try:
        refs.move(
            context.workspace,
            name,
            candidate.registration,
            expected=entry,
            reason=reason,
            detail={"version": candidate.version, "evaluation": candidate.evaluation.sha256},
        )
    except RefConflict:
        context.ledger.event("promotion.lost", model=candidate.model, alias=alias)
        raise


def project(context: RunContext, client: MlflowClient, model: str, alias: str) -> None:
    """Bring MLflow's alias to where the ref is, or report that somebody else moved it."""
    workspace = context.workspace
    entry = refs.current(workspace, model_refs.alias_ref(model, alias))
    if entry is None:
        return
    note = model_refs.alias_ref(model, f"projected-{alias}")
    last = refs.current(workspace, note)
    ours, theirs = str(entry.detail["version"]), mlflow_store.alias_version(client, model, alias)
    if theirs not in (None, ours) and (last is None or theirs != last.detail["version"]):
        context.ledger.event(
            "alias.moved",
            message=f"MLflow's alias {model}@{alias} is version {theirs}, Headway's ref says {ours}: "
            "it was moved outside Headway. Set it back, or promote through Headway.",
        )
        return
    if theirs != ours:
        client.set_registered_model_alias(model, alias, ours)
    if last is None or last.detail["version"] != ours:
        refs.move(workspace, note, entry.target, expected=last, reason="projected", detail={"version": ours})
