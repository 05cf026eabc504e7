"""Who is challenger and who is champion: refs are moved by compare-and-set, MLflow's aliases after them.

A kill between the two leaves an alias that is behind its ref. What Headway last gave an alias is written down, so that
it is brought up to date next time, while an alias that somebody moved in MLflow is reported and left alone.
"""

from __future__ import annotations

from data_contracts import refs
from data_contracts.documents import EvaluationReport, Frozen, Link
from data_contracts.errors import RefConflict
from tasks import mlflow_store, model_refs
from tasks.context import RunContext
from tasks.model_versions import ModelVersions
from tasks.promotion import Verdict, decide

ALIASES = ("challenger", "champion")


class Outcome(Frozen):
    """What registration came to, for the summary."""

    registration: Link
    version: str
    promoted: bool
    is_champion: bool
    reason: str


def settle(versions: ModelVersions, registration: Link, evaluation: Link) -> Outcome:
    """Make a registered model challenger and, if its report says so, champion.

    Args:
        evaluation: the report that judges it against today's champion; it may be newer than the registration's own.

    Raises:
        RefConflict: another writer promoted first; run again to be judged against the new champion.
    """
    context, model = versions.context, versions.model
    version = versions.ensure(registration)
    detail = {"version": version, "evaluation": evaluation.sha256}
    point(context, model, "challenger", registration, reason="newest candidate", detail=detail)
    verdict, is_champion = _verdict(context, model, registration, evaluation)
    if verdict.promote:
        point(context, model, "champion", registration, reason=verdict.reason, detail=detail)
    for alias in ALIASES:
        project(versions, alias)
    return Outcome(
        registration=registration,
        version=version,
        promoted=verdict.promote,
        is_champion=is_champion or verdict.promote,
        reason=verdict.reason,
    )


def _verdict(context: RunContext, model: str, registration: Link, evaluation: Link) -> tuple[Verdict, bool]:
    """The report's verdict and whether the model is champion already.

    A report that was made against another champion than today's decides nothing, and a model that was champion before
    and was replaced does not come back by itself.
    """
    workspace = context.workspace
    report = workspace.load(evaluation, EvaluationReport)
    now = model_refs.champion(workspace, model)
    if now is not None and now[0].target == registration:
        return Verdict(promote=False, reason=f"is the champion: {now[0].reason}"), True
    if model_refs.was_champion(workspace, model, registration):
        return Verdict(promote=False, reason="was champion and was replaced; it does not return by itself"), False
    if (now[0].target if now is not None else None) != report.judged_against:
        return Verdict(promote=False, reason="was judged against another champion than today's; run again"), False
    if not context.may_promote:
        return Verdict(promote=False, reason=f"promotion was switched off for this run; {decide(report).reason}"), False
    return decide(report), False


def point(
    context: RunContext, model: str, alias: str, registration: Link, *, reason: str, detail: dict[str, str]
) -> None:
    """Move a ref to the registration, unless it is there."""
    name = model_refs.alias_ref(model, alias)
    entry = refs.current(context.workspace, name)
    if entry is not None and entry.target == registration:
        return
    try:
        refs.move(context.workspace, name, registration, expected=entry, reason=reason, detail=detail)
    except RefConflict:
        context.ledger.event("promotion.lost", model=model, alias=alias)
        raise


def project(versions: ModelVersions, alias: str) -> None:
    """Bring a store's alias to the version that the ref's registration has there, or report that somebody moved it."""
    context, client, model = versions.context, versions.client, versions.model
    entry = refs.current(context.workspace, model_refs.alias_ref(model, alias))
    if entry is None:
        return
    note = model_refs.alias_ref(model, f"projected-{alias}")
    last = refs.current(context.workspace, note)
    given = (
        last.detail["version"] if last is not None and last.detail.get(model_refs.STORE, "") == versions.store else None
    )
    ours, theirs = versions.ensure(entry.target), mlflow_store.alias_version(client, model, alias)
    if theirs not in (None, ours, given):
        context.ledger.event(
            "alias.moved",
            message=f"MLflow's alias {model}@{alias} is version {theirs}, Headway's ref says {ours}: "
            "it was moved outside Headway. Set it back, or promote through Headway.",
        )
        return
    if theirs != ours:
        client.set_registered_model_alias(model, alias, ours)
    if given != ours:
        detail = {"version": ours, model_refs.STORE: versions.store}
        refs.move(context.workspace, note, entry.target, expected=last, reason="projected", detail=detail)
