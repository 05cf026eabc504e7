"""The model-quality gate: the decision of a promotion on a registered model, with nobody promoted."""

from __future__ import annotations

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link, Registration
from headway.data_contracts.store.errors import PromotionRefused
from headway.data_contracts.store.publication import Workspace
from headway.flows.ci.results import CheckMessage
from headway.tasks.registry import model_refs
from headway.tasks.registry.champion import decide_promotion
from headway.tasks.registry.promotion_spec import PromotionSpec


def evaluate_quality(workspace: Workspace, policy: PromotionSpec, registration: Link, evaluation: Link) -> CheckMessage:
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
        return CheckMessage("the run's model is today's champion: nothing changed for it")
    decision = decide_promotion(workspace, policy, registration, evaluation, now)
    details = tuple(f"{check.name}: {check.status}, {check.detail}" for check in decision.checks)
    return CheckMessage(decision.reason, details, PromotionRefused(decision.reason) if decision.failed else None)
