"""What retrains of a pipeline may still cost: its bounds, less what accounts of flow runs say was spent.

Money is turned into time: so long may the devices be held. Training then stops as at a window's end, with a checkpoint
that is durable by then. A flow run counts to the month in which it began, as `headway cost --by month` has it.
"""

from __future__ import annotations

import datetime
import math
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from headway.data_contracts.store.errors import ConfigError, stop_error
from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.cost import UNPAID, costs
from headway.flows.accounts.flow_account import FlowAccount
from headway.flows.accounts.goodput import State
from headway.flows.accounts.kept_accounts import account_so_far, all_accounts, settle, unfinished_life
from headway.flows.config.cost_bound import CostBoundSpec
from headway.flows.config.profiles import PricesSpec
from headway.training.launch.base.stop_request import StopRequest

REASON: Final = "cost bound reached"
STARTING: Collection[State] = ("start", "rendezvous", "restore")
NVIDIA = Path("/proc/driver/nvidia/gpus")
_MODEL = re.compile(r"^Model:\s*(\S.*?)\s*$", re.MULTILINE)


class Bound(NamedTuple):
    """One that holds."""

    name: str
    """Its key."""
    usd: float
    spent_usd: float
    month: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.usd:,.2f}{f' in {self.month}' if self.month else ''}"


class Left(NamedTuple):
    """Of the bound that is reached first."""

    usd: float
    """Below 0 where more was spent."""
    bound: str
    """Such as `usd_per_run: 2.50`."""


@dataclass(kw_only=True)
class BoundSpending:
    """See `headway.tasks.core.devices.Spending`."""

    workspace: Workspace
    pipeline: str
    spec: CostBoundSpec
    prices: PricesSpec
    devices: int
    """That its ranks hold; before and after training they are paid for likewise."""
    kind: str
    """Of them; empty: not known before they say so, and as dear as the dearest."""
    continued_by: str
    started_unix_s: float
    flow_run: str = ""
    """Empty before it has a ledger."""
    is_one_run: bool = True
    """Trials are many, and no life of a run."""
    _lives: dict[str, Sequence[FlowAccount]] = field(default_factory=dict)
    """By run."""
    _month_usd: float | None = None
    """What other flow runs spent; they are over, or bound themselves."""

    def require(self, doing: str, run: str) -> None:
        left = self.left(run)
        if left.usd <= self._start_usd(run):
            rest = f" What is left, {left.usd:,.2f}, is less than a start of it cost before." if left.usd > 0 else ""
            raise stop_error(
                f"{REASON} ({left.bound}): {doing} was not started.{rest}",
                where=self.pipeline,
                advice=f"{self._raise(left)} `{self.continued_by}` then continues.",
                reason=REASON,
            )

    def bounding(self, stop: StopRequest, run: str) -> StopRequest:
        self.require("training", run)
        left = self.left(run, is_exact=True)
        rate = self.usd_per_s
        paid_s = left.usd / rate if rate else math.inf
        return replace(stop, paid_s=paid_s, paid_since_unix_s=time.time(), paid_detail=left.bound)

    @property
    def usd_per_s(self) -> float:
        """While the devices are held."""
        return self.devices * self._device_usd

    @property
    def _device_usd(self) -> float:
        """Of one, for a second."""
        return usd_per_device_s(self.prices, self.kind)

    def left(self, run: str, *, is_exact: bool = False) -> Left:
        """What may still be spent for a run.

        Args:
            run: its id; empty: none yet, or a new one.
            is_exact: also where enough is left; otherwise what this flow run waited for in queues counts as paid.
        """
        bounds = self.bounds(run)
        own_usd = max(time.time() - self.started_unix_s, 0.0) * self.usd_per_s
        # The ledgers of long training take their time to read, and mostly the clock says that enough is left.
        if bounds and (is_exact or min(bound.usd - bound.spent_usd for bound in bounds) <= own_usd):
            own_usd = self._own_usd()
        found = [Left(bound.usd - bound.spent_usd - own_usd, str(bound)) for bound in bounds]
        return min(found, default=Left(math.inf, ""))

    def bounds(self, run: str) -> list[Bound]:
        """Those that hold for a run, and what was spent of each before this flow run."""
        found = []
        if self.spec.usd_per_run is not None and self.is_one_run:
            found.append(Bound("usd_per_run", self.spec.usd_per_run, self._usd(self._life(run))))
        if self.spec.usd_per_month is not None:
            month = month_of(self.started_unix_s)
            if self._month_usd is None:
                others = of_month(self.workspace, self.pipeline, month)
                self._month_usd = self._usd(account for account in others if account.flow_run != self.flow_run)
            found.append(Bound("usd_per_month", self.spec.usd_per_month, self._month_usd, month))
        return found

    def _life(self, run: str) -> Sequence[FlowAccount]:
        """Flow runs of a run before this one."""
        if not run:
            return ()
        if run not in self._lives:
            settle(self.workspace)
            life = unfinished_life(self.workspace, run)
            self._lives[run] = [account for account in life if account.flow_run != self.flow_run]
        return self._lives[run]

    def _start_usd(self, run: str) -> float:
        """What it cost the last time until its first step: less would buy none."""
        trained = [each.goodput for each in self._life(run) if each.goodput.num_attempts]
        if not trained:
            return 0.0
        newest = trained[-1]
        return sum(newest.parts_s.get(state, 0.0) for state in STARTING) / newest.num_attempts * self.usd_per_s

    def _usd(self, accounts: Iterable[FlowAccount]) -> float:
        return sum(line.usd for line in costs(accounts, "pipeline", self.prices))

    def _own_usd(self) -> float:
        """Of this flow run so far; queues are free."""
        account = account_so_far(self.workspace, self.flow_run) if self.flow_run else None
        if account is None:
            return 0.0
        goodput = account.goodput
        own_usd, held_usd = _paid(goodput.parts_s) * self.usd_per_s, _paid(goodput.parts_device_s) * self._device_usd
        # What came since the last event is no more than a moment of the present one.
        now_usd = max(time.time() - goodput.end_unix_s, 0.0) * self.usd_per_s
        # Of trials side by side each holds its own; before an attempt the account knows of one device.
        return max(own_usd, held_usd) + now_usd

    def _raise(self, left: Left) -> str:
        month = " or wait for the next month" if left.bound.startswith("usd_per_month") else ""
        return f"Raise `cost_bound.{left.bound.partition(':')[0]}` in the pipeline file{month}."


def _paid(parts_s: Mapping[State, float]) -> float:
    return sum(max(seconds, 0.0) for state, seconds in parts_s.items() if state not in UNPAID)


def month_of(unix_s: float) -> str:
    """Such as 2026-11, in UTC."""
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime("%Y-%m")


def of_month(workspace: Workspace, pipeline: str, month: str) -> Iterator[FlowAccount]:
    """Accounts of a pipeline's flow runs that began in a month; of those that go on here, so far."""
    so_far = (account_so_far(workspace, flow_run) for flow_run in settle(workspace))
    for account in (*all_accounts(workspace), *so_far):
        if account is not None and account.pipeline == pipeline and month_of(account.begin_unix_s) == month:
            yield account


def usd_per_device_s(prices: PricesSpec, kind: str, where: str = "cost_bound") -> float:
    """Of the dearest there is where the kind is not known yet: a bound is not to be overrun for that.

    Args:
        where: the key that bounds the cost.

    Raises:
        ConfigError: no price is declared of the kind, so that it would be free.
    """
    if not kind:
        return max(prices.device_hour_usd.values()) / 3600.0
    if (price := prices.price_of(kind)) is None:
        raise ConfigError(
            f"no price is declared of {kind}, so that no bound on the cost would ever be reached.",
            where=where,
            advice=f"Give the profile `prices: {{device_hour_usd: {{{kind}: USD}}}}`, or one of `any`.",
        )
    return price / 3600.0


def expected_kind(workspace: Workspace, pipeline: str, *, is_here: bool) -> str:
    """Of the devices that a pipeline's ranks will have; empty where nothing tells.

    Args:
        is_here: whether they will be this machine's; else it is as the last time.
    """
    if is_here:
        return kind_here()
    newest = newest_trained(workspace, pipeline)
    return "" if newest is None else newest.device


def newest_trained(workspace: Workspace, pipeline: str) -> FlowAccount | None:
    """The account of a pipeline's newest flow run that came to a new step; None where none has."""
    trained = (each for each in all_accounts(workspace) if each.pipeline == pipeline and each.goodput.num_steps)
    return max(trained, key=lambda account: account.begin_unix_s, default=None)


def kind_here() -> str:
    """As a rank on this machine would name its device."""
    # Torch would say, and takes seconds to import.
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "cpu"
    for information in sorted(NVIDIA.glob("*/information")):
        if (found := _MODEL.search(information.read_text(encoding="utf-8", errors="replace"))) is not None:
            return found[1]
    return "cpu"
