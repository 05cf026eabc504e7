"""A period of a workspace, as a record: its figures beside those of the period before, and what to decide."""

from __future__ import annotations

from pydantic import BaseModel

from headway.flows.accounts.cost import CostLine
from headway.flows.accounts.data_figures import DataFigures
from headway.flows.accounts.objectives import (
    CLASS_OBJECTIVES,
)
from headway.flows.config.calendar_periods import Period
from headway.flows.show.champion_history import HistoryEntry
from headway.flows.show.status import KeptStatus


class JobClassFigures(BaseModel):
    """Of a job class; None: there was nothing to measure."""

    success: float | None = None
    in_window: float | None = None
    """Of retrains that were started for a window those that were done before it closed."""
    num_recoveries: int = 0
    recovery_p95_s: float | None = None


class Figures(BaseModel):
    """Of a period; None: there was nothing to measure."""

    num_flow_runs: int
    outcomes: dict[str, int]
    success: float | None
    """Of flow runs that neither a person nor data ended those that succeeded."""
    by_class: dict[str, JobClassFigures]
    """Those that had retrains, the most urgent first."""
    ettr: float | None
    """Of device-seconds in training those of steps that count."""
    num_recoveries: int
    recovery_p50_s: float | None
    recovery_p95_s: float | None
    num_checkpoints_verified: int
    num_checkpoints_bad: int
    num_tokens: int
    """Or rows, that count."""
    cost: CostLine


class FailedFlowRun(BaseModel):
    ended_unix_s: float
    pipeline: str
    flow_run: str
    stage: str
    cause: str
    host: str


class HostSteps(BaseModel):
    """How a host does beside the fastest one of the same pipeline."""

    host: str
    pipeline: str
    num_steps: int
    step_s: float
    ratio: float


class DeviceUse(BaseModel):
    """Of a kind of device on a host."""

    name: str
    device_hours: float
    """Paid for."""
    most_devices: int
    """That one flow run had."""
    in_use: float
    """Share of the period in which these were paid for, so far."""


class StaleFiles(BaseModel):
    """What housekeeping would remove with its defaults."""

    num_files: int
    size_bytes: int
    problem: str = ""
    """Why nobody knows."""


class ValidatedData(BaseModel):
    pipeline: str
    validated_unix_s: float
    """When the flow run ended."""
    figures: DataFigures


class ReportedMove(BaseModel):
    model: str
    entry: HistoryEntry


class PeriodReport(BaseModel):
    workspace: str
    period: Period
    begin: str
    """ISO 8601, in UTC."""
    end: str
    is_over: bool
    now: Figures
    before: Figures
    """Of the period before."""
    failed: list[FailedFlowRun]
    """The newest first."""
    causes: dict[str, int]
    by_pipeline: list[CostLine]
    by_cause: list[CostLine]
    devices: list[DeviceUse]
    """Those in use for the longest first."""
    moves: list[ReportedMove]
    hosts: list[HostSteps]
    """The slowest first."""
    data: list[ValidatedData]
    """Of each pipeline, the newest that were validated."""
    kept: KeptStatus
    """Today, whatever the period."""
    stale: StaleFiles
    """Today."""
    decide: list[str]


def urgency(job_class: str) -> tuple[int, str]:
    known = list(map(str, CLASS_OBJECTIVES))
    return (known.index(job_class) if job_class in known else len(known), job_class)


def percent(part: float | None) -> str:
    return "none" if part is None else f"{100 * part:.1f} %"
