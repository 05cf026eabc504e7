"""What may fail of a kind, and what is left out of it: alerts and reports hold a workspace to the same. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, cast

from headway.flows.accounts.goodput import STATES, State
from headway.flows.config.job_class import JobClass

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
LEAST_RECOVERIES = 5
"""A quantile of fewer says nothing."""


Severity = Literal["page", "ticket"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassObjectives:
    """What retrains of a job class are held to over `WINDOW_DAYS`."""

    success: float
    """Of those that neither a person nor data ended, the share that succeeds."""
    in_window: float | None
    """Of those that were started for a window, the share that is done before it closes; None: no matter."""
    recovery_p95_s: float
    """Of recoveries of a day, from the last new step to the next one."""
    checkpoint_age_s: float
    """Of the newest durable checkpoint of a run that trains."""
    success_burns: tuple[Severity, ...] = ("page", "ticket")
    window_burns: tuple[Severity, ...] = ("ticket",)


CLASS_OBJECTIVES: Mapping[JobClass, ClassObjectives] = MappingProxyType(
    {
        "critical": ClassObjectives(
            success=0.995,
            in_window=0.95,
            recovery_p95_s=60,
            checkpoint_age_s=3600,
            window_burns=("page", "ticket"),
        ),
        "standard": ClassObjectives(success=0.99, in_window=0.9, recovery_p95_s=120, checkpoint_age_s=7200),
        "experiment": ClassObjectives(
            success=0.9, in_window=None, recovery_p95_s=600, checkpoint_age_s=14_400, success_burns=("ticket",)
        ),
    }
)
"""Rules, boards, reports, the freeze of promotion and the documentation are made of this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    key: str
    """Of its totals: `<level>:<key>_bad:total` of `<level>:<key>:total`."""
    alert: str
    title: str
    target: float
    """The share that has to be good over `WINDOW_DAYS`."""
    advice: str
    level: Literal["workspace", "class"] = "workspace"
    job_class: str = ""
    """Of level `class`."""
    severities: tuple[Severity, ...] = ("page", "ticket")
    """Of its burns: a fast one is a page, a slow one a ticket."""


RUNS = tuple(
    Objective(
        key="runs",
        level="class",
        job_class=job_class,
        alert="RunBudgetBurns",
        title="retrains",
        target=objectives.success,
        severities=objectives.success_burns,
        advice="Neither people nor data were the cause. Run `headway status`, and compare the failure cards.",
    )
    for job_class, objectives in CLASS_OBJECTIVES.items()
)
WINDOWS = tuple(
    Objective(
        key="windows",
        level="class",
        job_class=job_class,
        alert="WindowBudgetBurns",
        title="retrains in windows",
        target=objectives.in_window,
        severities=objectives.window_burns,
        advice="Their window closed before they were done. Run `headway windows NAME --next 14d` for each.",
    )
    for job_class, objectives in CLASS_OBJECTIVES.items()
    if objectives.in_window is not None
)
CHECKPOINTS = Objective(
    key="checkpoints",
    alert="CheckpointBudgetBurns",
    title="verifications of checkpoints",
    target=0.995,
    advice="Run `headway logs`, and look at the disk and the memory of the machine that wrote them.",
)
OBJECTIVES = (*RUNS, *WINDOWS, CHECKPOINTS)


def objectives_of(job_class: str) -> ClassObjectives:
    """Of a class that a record names; one that there is no more is held to what is standard."""
    return CLASS_OBJECTIVES.get(cast(JobClass, job_class), CLASS_OBJECTIVES["standard"])
