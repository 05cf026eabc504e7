"""What was decided about each model version, kept: `models/<name>/decisions` names every decision, newest last."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import EvaluationReport, Link, Registration
from headway.data_contracts.store.errors import RefConflict
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.refs import RefEntry
from headway.tasks.registry import model_refs
from headway.tasks.registry.promotion_decision import APPROVAL, Decision
from headway.tasks.registry.promotion_spec import PromotionSpec
from headway.tasks.registry.ref_details import DecisionDetail


def decisions_ref(model: str) -> str:
    return f"models/{model}/decisions"


class RecordedDecision(NamedTuple):
    """A decision that was kept."""

    entry: RefEntry
    record: DecisionDetail
    decision: Decision


def decisions(workspace: Workspace, model: str, registration: Link | None = None) -> Iterator[RecordedDecision]:
    """Newest first; of one registration, or of all.

    Raises:
        IntegrityError: an entry or its document is gone or damaged.
    """
    name = decisions_ref(model)
    for entry in refs.newest_first(workspace, name):
        evaluated = refs.detail_of(name, entry, DecisionDetail)
        if registration is None or evaluated.registration == registration.sha256:
            yield RecordedDecision(entry, evaluated, workspace.load(entry.target, Decision))


def record(workspace: Workspace, decision: Decision, *, version: str, by: str) -> Link:
    """Keep a decision, unless the last one of this registration says the same; returns the one that is kept."""
    detail = {"registration": decision.registration.sha256, "version": version, "by": by, "promote": decision.promote}
    while True:
        # Read first, so that what another writer records after the look below makes the move fail.
        newest = refs.current(workspace, decisions_ref(decision.model))
        last = next(decisions(workspace, decision.model, decision.registration), None)
        if last is not None and last.decision.is_same_decision(decision):
            return last.entry.target
        link = workspace.publish_document(decision)
        with contextlib.suppress(RefConflict):
            name = decisions_ref(decision.model)
            refs.move(workspace, name, link, expected=newest, reason=decision.reason, detail=detail)
            return link


def known_latency_ms(workspace: Workspace, model: str, registration: Link, machine: str) -> float | None:
    """What was measured last when the version was evaluated on this kind of machine."""
    measured = (
        check.value
        for _, _, decision in decisions(workspace, model, registration)
        for check in decision.checks
        if check.name == "latency" and check.value is not None and check.measured_on == machine
    )
    return next(measured, None)


def current_refusal(workspace: Workspace, model: str, registration: Link) -> str:
    """Who refused a version and why, unless it was promoted since; empty where nobody refused.

    Who asks for a promotion that the policy refuses has taken nothing back.
    """
    for _, _, decision in decisions(workspace, model, registration):
        if decision.promote or decision.override:
            return ""
        for check in decision.checks:
            if check.name == APPROVAL and check.status == "failed":
                return check.detail
    return ""


def awaiting(workspace: Workspace, model: str) -> str | None:
    """The newest version that becomes champion if a person approves of it; None where none waits.

    What was decided against a former champion waits for nothing any more: the next retrain evaluates anew.
    """
    now = refs.current(workspace, model_refs.alias_ref(model, "champion"))
    champion = None if now is None else now.target
    decided: set[Link] = set()
    for entry, evaluated, decision in decisions(workspace, model):
        # Newest first: all that follow were decided before today's champion was.
        if now is not None and entry.unix_s < now.unix_s:
            return None
        may_wait = decision.waits and decision.champion == champion and decision.registration not in decided
        if may_wait and model_refs.retirement_of(workspace, model, decision.registration) is None:
            return evaluated.version
        decided.add(decision.registration)
    return None


def last_policy(workspace: Workspace, model: str) -> PromotionSpec:
    """What the model's versions were evaluated by last; the default where none was evaluated yet."""
    last = next(decisions(workspace, model), None)
    return PromotionSpec() if last is None else PromotionSpec.model_validate(last.decision.policy)


def newest_evaluation(workspace: Workspace, registration: Link, champion: Link | None) -> Link:
    """The newest report of a registration that evaluates it against this champion; else its own."""
    document = workspace.load(registration, Registration)
    found = (decision.evaluation for _, _, decision in decisions(workspace, document.model, registration))
    return next(
        (each for each in found if workspace.load(each, EvaluationReport).compared_with == champion),
        document.evaluation,
    )
