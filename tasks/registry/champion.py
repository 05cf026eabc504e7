"""Who is challenger and who is champion: refs are moved by compare-and-set, MLflow's aliases after them."""

from __future__ import annotations

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import EvaluationReport, Frozen, Link, Registration
from headway.data_contracts.store.errors import RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.refs import RefEntry
from headway.tasks.core import identity
from headway.tasks.core.context import RunContext
from headway.tasks.registry import decisions, model_card, model_refs
from headway.tasks.registry.mlflow_aliases import sync_mlflow_aliases
from headway.tasks.registry.model_facts import machine_here, subject_of
from headway.tasks.registry.model_versions import ModelVersions
from headway.tasks.registry.promotion import decide
from headway.tasks.registry.promotion_decision import Decision
from headway.tasks.registry.promotion_spec import PromotionSpec


class RegistrationOutcome(Frozen):
    """What registration came to, for the summary."""

    registration: Link
    version: str
    """Empty: it was not registered."""
    promoted: bool
    is_champion: bool
    reason: str
    waits: bool = False
    """It passed everything but a person's approval."""
    remedy: str = ""
    """What mends just what the policy refuses; empty: no check says."""


def settle(
    versions: ModelVersions, registration: Link, evaluation: Link, policy: PromotionSpec | None = None
) -> RegistrationOutcome:
    """Make a registered model challenger and, if the policy says so, champion.

    A model that was champion before and was replaced does not come back by itself.

    Args:
        evaluation: the report that evaluates it against today's champion; it may be newer than the registration's own.

    Raises:
        RefConflict: another writer promoted first; run again to be evaluated against the new champion.
    """
    context, model, workspace = versions.context, versions.model, versions.context.workspace
    version = versions.ensure(registration)
    detail = {"version": version, "evaluation": evaluation.sha256}
    # Whatever is decided next: the newest candidate is the challenger even if it is refused.
    move_alias(context, model, "challenger", registration, reason="newest candidate", detail=detail)
    now = refs.current(workspace, model_refs.alias_ref(model, "champion"))
    is_champion, promoted, waits, remedy = now is not None and now.target == registration, False, False, ""
    if now is not None and is_champion:
        reason = f"is the champion: {now.reason}"
    elif model_refs.was_champion(workspace, model, registration):
        reason = "was champion and was replaced; it does not return by itself"
    else:
        blocked_reason = context.blocked_promotion
        if (gone := model_refs.retirement_of(workspace, model, registration)) is not None:
            blocked_reason = f"was retired by {model_refs.retired_by(model, gone)}: {gone.reason}"
        decision = decide_promotion(
            workspace, policy or PromotionSpec(), registration, evaluation, now, blocked_reason=blocked_reason
        )
        by = f"retrain {context.pipeline}, {identity.current_user()}"
        # Before the move, whose entry names it: no champion is without a reason on record.
        kept = decisions.record(workspace, decision, version=version, by=by)
        promoted, waits, reason = decision.promote, decision.waits, decision.reason
        remedy = decision.known_remedy
        if promoted:
            made = {"version": version, "how": "retrain", "by": by, "decision": kept.sha256}
            promoted = ensure_champion(context, model, registration, expected=now, why=reason, detail=made)
            is_champion = True
    model_card.attach(versions, registration, version)
    sync_mlflow_aliases(versions)
    return RegistrationOutcome(
        registration=registration,
        version=version,
        promoted=promoted,
        is_champion=is_champion or promoted,
        reason=reason,
        waits=waits,
        remedy=remedy,
    )


def unregistered(
    workspace: Workspace, model: str, registration: Link, evaluation: Link, policy: PromotionSpec
) -> RegistrationOutcome:
    """What the policy makes of a model that nobody is to hear of; nothing is written."""
    now = refs.current(workspace, model_refs.alias_ref(model, "champion"))
    is_champion = now is not None and now.target == registration
    decision = decide_promotion(workspace, policy, registration, evaluation, now)
    return RegistrationOutcome(
        registration=registration,
        version=model_refs.version_of(workspace, model, registration) or "",
        promoted=False,
        is_champion=is_champion,
        reason=f"is the champion: {now.reason}" if now is not None and is_champion else decision.reason,
    )


def decide_promotion(
    workspace: Workspace,
    policy: PromotionSpec,
    registration: Link,
    evaluation: Link,
    champion: RefEntry | None,
    *,
    blocked_reason: str = "",
    measure: bool = False,
    approved: str = "",
    refused: str = "",
) -> Decision:
    """The policy's decision on a registration, against this champion.

    Args:
        measure: time the model, even if it was timed on this kind of machine before. Else a decision that is made again
            does not fall out otherwise because the machine is busy.
        approved, refused: by a person now; who refused it before is remembered until it is promoted.
    """
    report = workspace.load(evaluation, EvaluationReport)
    model = workspace.load(registration, Registration).model
    subject = subject_of(
        workspace,
        policy,
        registration,
        evaluation,
        None if champion is None else champion.target,
        blocked_reason=blocked_reason,
        approved=approved,
        refused=refused or ("" if approved else decisions.current_refusal(workspace, model, registration)),
        latency_ms=decisions.known_latency_ms(workspace, model, registration, machine_here())
        if policy.max_latency_ms and not measure
        else None,
    )
    return decide(policy, report, subject)


def set_champion(
    context: RunContext,
    model: str,
    registration: Link,
    *,
    expected: RefEntry | None,
    why: str,
    detail: dict[str, str],
) -> RefEntry:
    """Make it champion, provided that `expected` still is; the entry is the history's line of this move.

    Args:
        detail: `version`, `how` it came about (retrain, promote, rollback), `by` whom, and the `decision` if any.

    Raises:
        RefConflict: another writer was first; nothing was changed.
    """
    name = model_refs.alias_ref(model, "champion")
    before = None if expected is None else expected.target.sha256
    try:
        return refs.move(
            context.workspace, name, registration, expected=expected, reason=why, detail={**detail, "from": before}
        )
    except RefConflict:
        context.ledger.event("promotion.lost", model=model, alias="champion")
        raise


def ensure_champion(
    context: RunContext, model: str, registration: Link, *, expected: RefEntry | None, why: str, detail: dict[str, str]
) -> bool:
    """Whether it was we who made it champion, and not another retrain that came to the same model at the same time.

    Raises:
        RefConflict: another model became champion meanwhile.
    """
    try:
        set_champion(context, model, registration, expected=expected, why=why, detail=detail)
    except RefConflict:
        now = refs.current(context.workspace, model_refs.alias_ref(model, "champion"))
        if now is None or now.target != registration:
            raise
        return False
    return True


def move_alias(
    context: RunContext, model: str, alias: str, registration: Link, *, reason: str, detail: dict[str, str]
) -> None:
    """Move a ref to the registration, unless it is there."""
    refs.ensure(context.workspace, model_refs.alias_ref(model, alias), registration, reason=reason, detail=detail)
