"""`headway goodput`: what the device-seconds of a run's whole life were good for."""

from __future__ import annotations

import datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.data_contracts.store import plain_text
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count, length
from headway.flows.accounts.goodput import MEANING, RunGoodput, run_goodput
from headway.flows.accounts.kept_accounts import all_accounts, life_of
from headway.flows.accounts.scaling import ScalingLine, scaling_of
from headway.flows.console.console import plain_console, print_table
from headway.flows.show.status import run_asked


class GoodputReport(RunGoodput):
    scaling: list[ScalingLine]
    """Of the run's pipeline, by number of devices; the newest run on each."""


def read_goodput(workspace_uri: str, run: str) -> GoodputReport:
    """The account of a run, as far as its flow runs' accounts and this machine's ledgers have it.

    Args:
        run: the beginning of a run's id, or a flow run's; empty: the one that runs, or the newest.

    Raises:
        ConfigError: no such run, or several; nothing of its training is here.
    """
    workspace = Workspace(workspace_uri)
    found = run_goodput(life_of(workspace, run_asked(workspace_uri, run).run))
    return GoodputReport(**dict(found), scaling=scaling_of(all_accounts(workspace), found.pipeline))


def print_goodput(account: GoodputReport, console: Console | None = None) -> None:
    """The ratio first, then where the time went, then what each recovery took."""
    console = console or plain_console()
    so_far = "" if account.is_over else ", so far"
    console.print(
        Text(
            f"{account.run}  {plain_text.one_line(account.pipeline)}  {length(account.wall_s)} "
            f"on {count(account.devices, 'device')}{so_far}\n"
            f"effective training time {100 * account.ettr:.1f} %, forward, backward and update "
            f"{100 * account.productive_ratio:.1f} %\n"
            f"{count(account.num_steps, 'step')} that count, {account.num_redone_steps:,} made again; "
            f"{count(account.num_attempts, 'attempt')} in {count(account.num_flow_runs, 'flow run')}\n"
            f"{_epochs(account)}"
        )
    )
    table = Table("state", "device-seconds", "share", "what it is", box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:3]:
        column.justify = "right"
    for state, seconds in account.parts_device_s.items():
        table.add_row(state, f"{seconds:,.1f}", f"{100 * seconds / account.device_s:.1f} %", MEANING[state])
    print_table(console, table)
    # One number of devices scales with nothing.
    if len(account.scaling) > 1:
        console.print()
        print_table(console, _scaling(account))
    if account.recoveries:
        console.print()
        print_table(console, _recoveries(account))


def _epochs(account: RunGoodput) -> str:
    """Empty where nobody knows how many steps are one."""
    if account.num_epochs is None or account.epoch_s is None or account.epoch_wall_s is None:
        return ""
    return (
        f"{account.num_epochs:.3g} epochs; one takes {account.epoch_s:,.1f} s of steps, "
        f"{account.epoch_wall_s:,.1f} s with all else\n"
    )


def _scaling(account: GoodputReport) -> Table:
    names = ("devices", "run", "steps", "targets/s", "a device", "efficiency")
    table = Table(*names, box=None, padding=(0, 2, 0, 0))
    for line in account.scaling:
        rates = (f"{line.tokens_per_s:,.1f}", f"{line.tokens_per_device_s:,.1f}", f"{100 * line.efficiency:.1f} %")
        table.add_row(f"{line.devices:,}", plain_text.one_line(line.run), f"{line.num_steps:,}", *rates)
    return table


def _recoveries(account: RunGoodput) -> Table:
    table = Table("recovery", "attempt", "cause", "took", "steps again", "most of it", box=None, padding=(0, 2, 0, 0))
    for each in account.recoveries:
        when = datetime.datetime.fromtimestamp(each.begin_unix_s, datetime.UTC).isoformat(sep=" ", timespec="seconds")
        largest = sorted(each.parts_s.items(), key=lambda part: -part[1])[:3]
        spent = ", ".join(f"{state} {seconds:,.1f} s" for state, seconds in largest)
        took = f"{each.total_s:,.1f} s"
        table.add_row(when, str(each.attempt), each.cause, took, f"{each.lost_steps:,}", spent)
    return table
