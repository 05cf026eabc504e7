"""The model-quality gate: the decision of a promotion on a registered model, with nobody promoted."""

from __future__ import annotations

from data_contracts import refs
from data_contracts.documents import Link, Registration
from data_contracts.errors import PromotionRefused
from data_contracts.publication import Workspace
from flows.ci.results import Said
from tasks import model_refs
from tasks.champion import judge
from tasks.promotion_spec import PromotionSpec


def judge_quality(workspace: Workspace, policy: PromotionSpec, registration: Link, evaluation: Link) -> Said:
    """Would it become champion today? Nothing is written.

    Args:
        registration: of a model that need not have a version.
        evaluation: the report that the run judged it by.

    Raises:
        IntegrityError: a document that it stands on is gone or damaged.
    """
    model = workspace.load(registration, Registration).model
    now = refs.current(workspace, model_refs.alias_ref(model, "champion"))
    if now is not None and now.target == registration:
        return Said("the run's model is today's champion: nothing changed for it")
    decision = judge(workspace, policy, registration, evaluation, now)
    details = tuple(f"{check.name}: {check.standing}, {check.detail}" for check in decision.checks)
    return Said(decision.reason, details, PromotionRefused(decision.reason) if decision.failed else None)
