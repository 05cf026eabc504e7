"""What device-seconds cost, and what energy they took by a declared model, from accounts of flow runs.

Time is paid for while devices are held. Closed windows, queues, a person's stop and time with nobody at work are free.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator
from typing import Literal, NamedTuple

from pydantic import BaseModel

from headway.flows.accounts.flow_account import FlowAccount
from headway.flows.accounts.goodput import FORWARD, State
from headway.flows.config.profiles import PricesSpec

By = Literal["pipeline", "run", "month", "state", "cause"]
UNPAID: Collection[State] = ("closed_window", "queue", "stopped", "down")
PRODUCTIVE, OVERHEAD = "productive", "overhead"
"""Of costs by cause: steps that count; and what is neither they nor a recovery, such as starts and evaluations."""
HOUR_S = 3600.0
JOULES_PER_KWH = 3.6e6


class CostLine(BaseModel):
    """Of all flow runs that share a name, or of a share of theirs."""

    name: str
    num_flow_runs: int
    device_hours: float
    """Paid for."""
    usd: float
    productive_usd: float
    """Steps that count, whole."""
    wasted_usd: float
    """From the failure of an attempt until the run was further than before it."""
    num_tokens: int
    """Of steps that count; 0 where lines are no whole flow runs."""
    usd_per_million_tokens: float | None
    joules: float | None
    """By the declared power of each device; None: none is declared."""
    grams_co2: float | None


class Held(NamedTuple):
    """Device-seconds of one flow run that were paid for under one name."""

    name: str
    device_s: float
    productive_s: float
    wasted_s: float
    num_tokens: int


class CostLines:
    """A line for each name, added up one flow run at a time."""

    def __init__(self, by: By, prices: PricesSpec) -> None:
        self._by, self._prices = by, prices
        self._lines: dict[str, CostLine] = {}

    def take(self, account: FlowAccount) -> None:
        for held in _held(account, self._by):
            line = self._lines.setdefault(held.name, _empty(held.name, self._prices))
            _add(line, held, account.device, self._prices)

    def all(self) -> list[CostLine]:
        """Months in order and all else the dearest first; together they are what all cost."""
        in_order = sorted(self._lines.values(), key=lambda line: line.name)
        return in_order if self._by == "month" else sorted(in_order, key=lambda line: (-line.usd, -line.device_hours))


def costs(accounts: Iterable[FlowAccount], by: By, prices: PricesSpec) -> list[CostLine]:
    """The lines of all."""
    lines = CostLines(by, prices)
    for account in accounts:
        lines.take(account)
    return lines.all()


def total(lines: Iterable[CostLine], num_flow_runs: int) -> CostLine:
    """The sum of lines.

    Args:
        num_flow_runs: that they are of; one may be in several.
    """
    lines = list(lines)
    numbers = ("device_hours", "usd", "productive_usd", "wasted_usd", "num_tokens", "joules", "grams_co2")
    sums = {name: _sum(getattr(line, name) for line in lines) for name in numbers}
    found = CostLine(name="all", num_flow_runs=num_flow_runs, usd_per_million_tokens=None, **sums)
    found.usd_per_million_tokens = _per_million(found)
    return found


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if known and None in known else sum(value for value in known if value is not None)


def _per_million(line: CostLine) -> float | None:
    return line.usd / line.num_tokens * 1e6 if line.num_tokens else None


def _held(account: FlowAccount, by: By) -> Iterator[Held]:
    goodput = account.goodput
    # Below zero is no time: a clock that was set back, or somebody who would have a bound on the cost forgotten.
    paid_s = {state: max(seconds, 0.0) for state, seconds in goodput.parts_device_s.items() if state not in UNPAID}
    wasted_s = {
        cause: sum(max(seconds, 0.0) for state, seconds in parts.items() if state not in UNPAID)
        for cause, parts in goodput.wasted_device_s.items()
    }
    productive_s = sum(paid_s.get(state, 0.0) for state in FORWARD)
    if by == "state":
        for state, seconds in paid_s.items():
            of_recoveries_s = sum(parts.get(state, 0.0) for parts in goodput.wasted_device_s.values())
            yield Held(state, seconds, seconds if state in FORWARD else 0.0, of_recoveries_s, 0)
    elif by == "cause":
        overhead_s = sum(paid_s.values()) - productive_s - sum(wasted_s.values())
        yield Held(PRODUCTIVE, productive_s, productive_s, 0.0, 0)
        yield Held(OVERHEAD, max(overhead_s, 0.0), 0.0, 0.0, 0)
        yield from (Held(cause, seconds, 0.0, seconds, 0) for cause, seconds in wasted_s.items())
    else:
        name = _name(account, by)
        yield Held(name, sum(paid_s.values()), productive_s, sum(wasted_s.values()), goodput.num_tokens)


def _name(account: FlowAccount, by: By) -> str:
    if by == "month":
        return datetime.datetime.fromtimestamp(account.begin_unix_s, datetime.UTC).strftime("%Y-%m")
    return account.pipeline if by == "pipeline" else account.run or "no run"


def _empty(name: str, prices: PricesSpec) -> CostLine:
    has_energy = bool(prices.device_watts)
    return CostLine(
        name=name,
        num_flow_runs=0,
        device_hours=0.0,
        usd=0.0,
        productive_usd=0.0,
        wasted_usd=0.0,
        num_tokens=0,
        usd_per_million_tokens=None,
        joules=0.0 if has_energy else None,
        grams_co2=0.0 if has_energy and prices.grams_co2_per_kwh is not None else None,
    )


def _add(line: CostLine, held: Held, device: str, prices: PricesSpec) -> None:
    usd_per_s = prices.usd_per_device_s(device)
    line.num_flow_runs += 1
    line.device_hours += held.device_s / HOUR_S
    line.usd += held.device_s * usd_per_s
    line.productive_usd += held.productive_s * usd_per_s
    line.wasted_usd += held.wasted_s * usd_per_s
    line.num_tokens += held.num_tokens
    line.usd_per_million_tokens = _per_million(line)
    if line.joules is not None:
        joules = held.device_s * (prices.watts(device) or 0.0)
        line.joules += joules
        if line.grams_co2 is not None:
            line.grams_co2 += joules / JOULES_PER_KWH * (prices.grams_co2_per_kwh or 0.0)
