"""What may fail of a kind, and what is left out of it: alerts and reports hold a workspace to the same. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headway.flows.accounts.goodput import STATES, State

ORDERLY = ("config", "data", "contract", "promotion", "stopped")
"""Causes that are a person's to mend, or none: no objective of ours counts them."""
NOT_TRAINING: tuple[State, ...] = (
    "closed_window",
    "stopped",
    "down",
    "queue",
    "preparation",
    "evaluation",
    "registration",
    "orchestration",
)
"""States in which nobody trained, or was about to: neither good nor lost for the ratio of a day. What is `down` until
the next retrain has a page of its own, and lasts as long as the schedule has it."""
TRAINING: tuple[State, ...] = tuple(state for state in STATES if state not in NOT_TRAINING)
LEAST_ETTR = 0.9
"""Of device-seconds in training those that were steps that count, over a day or more. A run's objective is 0.95; a day
has several starts."""


WINDOW_DAYS = 30
"""Over which an objective holds."""
LEAST_EVENTS = 10
"""A ratio of fewer says nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    key: str
    """Of its totals: `workspace:<key>_bad:total` of `workspace:<key>:total`."""
    alert: str
    title: str
    target: float
    """The share that has to be good over `WINDOW_DAYS`."""
    advice: str


RUNS = Objective(
    key="runs",
    alert="RunBudgetBurns",
    title="retrains",
    target=0.99,
    advice="Neither people nor data were the cause. Run `headway status`, and compare the failure cards.",
)
CHECKPOINTS = Objective(
    key="checkpoints",
    alert="CheckpointBudgetBurns",
    title="verifications of checkpoints",
    target=0.995,
    advice="Run `headway logs`, and look at the disk and the memory of the machine that wrote them.",
)
OBJECTIVES = (RUNS, CHECKPOINTS)
