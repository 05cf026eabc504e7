"""`headway cost`: what flow runs of a workspace cost, by pipeline, run, month, state or cause."""

from __future__ import annotations

import datetime
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.data_contracts.store import plain_text
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count
from headway.flows.accounts.cost import JOULES_PER_KWH, By, CostLine, costs, total
from headway.flows.accounts.flow_account import FlowAccount
from headway.flows.accounts.kept_accounts import account_so_far, all_accounts, settle
from headway.flows.config.profiles import PricesSpec, load_profile
from headway.flows.console.console import plain_console, print_table


class CostReport(BaseModel):
    workspace: str
    by: By
    since: str
    """ISO 8601, in UTC; empty: from the first flow run that is known."""
    unpriced: list[str]
    """Kinds of devices that no price is declared of; they cost nothing here."""
    lines: list[CostLine]
    """The dearest first."""
    total: CostLine


def read_cost(workspace_uri: str, by: By, project: Path, profile: str, since_unix_s: float = 0.0) -> CostReport:
    """What is known of: kept accounts, and what goes on here, so far.

    Args:
        project: the folder with `deployments/`.
        profile: whose prices hold; empty: device-hours alone.

    Raises:
        ConfigError: no such profile.
        EnvironmentProblem: there is no workspace.
    """
    prices = load_profile(project, profile)[1].prices if profile else PricesSpec()
    workspace = Workspace.existing(workspace_uri)
    so_far = (account_so_far(workspace, flow_run) for flow_run in settle(workspace))
    known = [*all_accounts(workspace), *(account for account in so_far if account is not None)]
    accounts = [account for account in known if account.begin_unix_s >= since_unix_s]
    lines = costs(accounts, by, prices)
    since = datetime.datetime.fromtimestamp(since_unix_s, datetime.UTC).isoformat() if since_unix_s else ""
    return CostReport(
        workspace=workspace.uri,
        by=by,
        since=since,
        unpriced=_unpriced(accounts, prices) if profile else [],
        lines=lines,
        total=total(lines, len(accounts)),
    )


def _unpriced(accounts: list[FlowAccount], prices: PricesSpec) -> list[str]:
    kinds = {account.device for account in accounts if account.device}
    return sorted(kind for kind in kinds if prices.price_of(kind) is None)


def print_cost(report: CostReport, console: Console | None = None) -> None:
    """The sum first, then a line each."""
    console = console or plain_console()
    if not report.lines:
        console.print(Text("no flow run is known here, or none since then"))
        return
    whole = report.total
    words = [f"{count(whole.num_flow_runs, 'flow run')}, {whole.device_hours:,.2f} device-hours"]
    if whole.usd:
        words.append(f"{whole.usd:,.2f} USD: {_share(whole.productive_usd, whole)} productive, "
                     f"{_share(whole.wasted_usd, whole)} wasted")  # fmt: skip
    if whole.joules is not None:
        words.append(f"{whole.joules / JOULES_PER_KWH:,.2f} kWh by the declared power of devices")
    if whole.grams_co2 is not None:
        words.append(f"{whole.grams_co2 / 1000:,.2f} kg CO2")
    console.print(Text("\n".join(words)))
    for kind in report.unpriced:
        console.print(Text(f"! no price of {plain_text.one_line(kind)}: it counts as free", style="yellow"))
    console.print()
    # Without prices no column of money: 0.00 would be taken for one.
    has_targets = bool(whole.usd) and any(line.usd_per_million_tokens is not None for line in report.lines)
    money = ("USD", "productive", "wasted", *(("USD a million targets",) if has_targets else ())) if whole.usd else ()
    table = Table(report.by, "flow runs", "device-hours", *money, box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for line in report.lines:
        shares = (_share(line.productive_usd, line), _share(line.wasted_usd, line))
        of_money = (f"{line.usd:,.2f}", *shares, f"{line.usd_per_million_tokens or 0.0:,.4f}")[: len(money)]
        hours, runs = f"{line.device_hours:,.2f}", f"{line.num_flow_runs:,}"
        table.add_row(plain_text.one_line(line.name), runs, hours, *of_money)
    print_table(console, table)
    if not whole.usd and not report.unpriced:
        console.print(Text("\nno prices: `--profile NAME` takes those of a profile"))


def _share(part: float, line: CostLine) -> str:
    return f"{100 * part / line.usd:.0f} %" if line.usd else ""
