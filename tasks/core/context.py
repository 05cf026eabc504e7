"""What every task of one flow run shares: where it writes, what it remembers, and whom it tells."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.tables.digest_cache import DigestCache
from headway.tasks.core.devices import Devices, Spending, UnboundSpending, UnlimitedDevices
from headway.training.launch.base.stop_request import NEVER, StopRequest
from headway.training.observe.ledger import Ledger


@dataclass(slots=True)
class CurrentWork:
    """What the flow run is at."""

    run: str = ""
    """Named as its folder is; empty until one is described or carried on."""


@dataclass(frozen=True, slots=True)
class OwnedRuns:
    """Those that no other flow run may work on until this one ends; see `run_locks`."""

    runs: set[str] = field(default_factory=set)
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    pipeline: str
    workspace: Workspace
    base: Path
    """The pipeline file's folder: relative paths in it start here, and a user's recipe is found here."""
    ledger: Ledger
    digests: DigestCache
    scratch: Path
    """A local folder that goes with the flow run."""
    budget_scope: str
    """One retry budget for all attempts that serve the same flow run."""
    started_unix_s: float = 0.0
    """When the flow run did."""
    blocked_promotion: str = ""
    """Why nothing may be promoted; empty: it may."""
    may_register: bool = True
    stop: StopRequest = NEVER
    """Until when the flow run may continue."""
    devices: Devices = field(default_factory=UnlimitedDevices)
    """What ranks occupy."""
    spending: Spending = field(default_factory=UnboundSpending)
    """What it may still cost."""
    at: CurrentWork = field(default_factory=CurrentWork)
    owned: OwnedRuns = field(default_factory=OwnedRuns)
    wait_s: float | None = None
    """How long a run that another process works on is waited for; None: not at all."""
    continued_by: str = "headway retrain"
    """The command that continues it."""
    finds_only: bool = False
    """Nothing is made: the first stage that is not found ends the flow run."""
    reported_damage: set[str] = field(default_factory=set)
    """A record is looked up by several stages, and again once the run is locked."""
    traceparent: str = ""
    """The flow run's own span, as W3C's header has it: what ranks write down names the same trace."""

    def report_damage(self, stage: str, message: str) -> None:
        """Say once that a record of a stage, or what it names, is damaged: it is made again."""
        if message not in self.reported_damage:
            self.reported_damage.add(message)
            self.ledger.event("stage.damaged", stage=stage, message=message)

    def require_time(self, doing: str) -> None:
        """Raises `RunStopped` when the time is over, or the bound on the cost is reached."""
        self.stop.require_time(doing, advice=f"`{self.continued_by}` continues it.")
        self.spending.require(doing, self.at.run)
