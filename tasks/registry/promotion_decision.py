"""What is decided about a registered model, check by check, and what of it is looked at for that."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from headway.data_contracts.store.documents import Document, ExpectationVerdict, Frozen, Json, Link

CheckStatus = Literal["passed", "failed", "not evaluated", "waiting"]
"""`waiting` is a person's decision that was not made yet: it speaks against nothing, and promotes nobody."""
APPROVAL = "approval"
LIKELY_LEAK = "likely label leak"
RIVALS = ("baseline", "champion")


class PromotionCheck(Frozen):
    """One line of a decision."""

    name: str
    status: CheckStatus
    detail: str
    """The figure and its limit, in words; or why nothing was evaluated."""
    value: float | None = None
    limit: float | None = None
    too_few_examples: bool = Field(default=False, exclude_if=operator.not_)
    """Failed for want of examples: the figure is better, and its interval holds the limit too."""
    remedy: str = Field(default="", exclude_if=operator.not_)
    """What a person can do about it, where it failed and that is known."""
    measured_on: str = Field(default="", exclude_if=operator.not_)
    """The kind of machine that the value depends on; empty: on none."""


class Decision(Document):
    """May a registered model become champion? Every check, and what it was evaluated by."""

    kind = "decision"
    model: str
    """The registered model's name."""
    registration: Link
    """The version that is decided about."""
    evaluation: Link
    """The report that the checks read."""
    champion: Link | None
    """Whom it would replace."""
    policy: Json
    """The branch `registry.promotion` of the pipeline file."""
    checks: tuple[PromotionCheck, ...]
    """Every check that was made, in the order in which they are shown."""
    override: str = ""
    """Why somebody promoted it although the policy refuses."""

    @property
    def failed(self) -> tuple[PromotionCheck, ...]:
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def remedy(self) -> str:
        """What a person can do about what failed."""
        if self.known_remedy:
            return f"{self.known_remedy[0].upper()}{self.known_remedy[1:]}, and retrain."
        if any(check.too_few_examples for check in self.failed):
            # Another recipe may be no better at all, and it would not be told either.
            return "Raise shards.heldout_fraction or add rows, so that more examples judge it, and retrain."
        return "Retrain with new data or another recipe."

    @property
    def known_remedy(self) -> str:
        """What mends just what failed, as the beginning of a sentence; empty: no check says."""
        return "; ".join(check.remedy for check in self.failed if check.remedy)

    @property
    def waits(self) -> bool:
        """Nothing speaks against it, and a person is still to approve of it."""
        return not self.failed and any(check.status == "waiting" for check in self.checks)

    @property
    def refused(self) -> bool:
        """A person said no; where only the policy does, the version stays challenger."""
        return any(check.name == APPROVAL for check in self.failed)

    @property
    def promote(self) -> bool:
        return not self.failed and not self.waits

    @property
    def reason(self) -> str:
        """What speaks against it; where nothing does, by how much it is better, and what a person should look at."""
        decisive = next(check for check in self.checks if check.name in RIVALS and check.status != "not evaluated")
        message = "; ".join(check.detail for check in self.failed) or decisive.detail
        message = "; ".join((message, *(check.detail for check in self.checks if check.name == LIKELY_LEAK)))
        return f"waits for approval: {message}" if self.waits else message

    def is_same_decision(self, other: Decision) -> bool:
        """Whether it says nothing new beside the clock; another person's word, or another reason, is new."""
        return self._outcome() == other._outcome()

    def _outcome(self) -> tuple[object, ...]:
        standings = [
            (check.name, check.status, check.detail if check.name == APPROVAL else "") for check in self.checks
        ]
        return self.registration, self.evaluation, self.champion, self.policy, self.override, standings


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The registered model that is evaluated, and what is known of it beside its report."""

    model: str
    registration: Link
    evaluation: Link
    checkpoint: Link
    manifest: Link
    """The shards that its run was trained and evaluated on."""
    champion: Link | None
    """Today's."""
    model_bytes: int | None = None
    latency_ms: float | None = None
    timed_on: str = ""
    """The kind of machine."""
    latency_problem: str = ""
    """Why it could not be measured."""
    data_age_s: float | None = None
    label_leak: ExpectationVerdict | None = None
    """Whether one input alone tells the label; None: the receipt of its data does not say."""
    likely_leak: ExpectationVerdict | None = None
    """Whether one nearly does."""
    has_signature: bool = False
    has_input_example: bool = False
    blocked_reason: str = ""
    """Why nothing may be promoted at all."""
    approved: str = ""
    refused: str = ""
    """By whom, and why; empty: by nobody."""
