"""The commands about alerts: which there are, and whether they reach a person."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import typer

from headway.flows.console.options import AsJson
from headway.flows.console.output import emit, print_json

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List alerts, and try out whether they arrive.")

OfSeverity = Annotated[Literal["page", "ticket"] | None, typer.Option("--severity", help="Only these.")]


@app.command("list")
def list_alerts(severity: OfSeverity = None, as_json: AsJson = False) -> None:
    """List every alert."""
    from headway.flows.monitoring.alert_delivery import chosen, print_alerts

    alerts = chosen(severity)
    if as_json:
        print_json([dataclasses.asdict(alert) for alert in alerts])
    else:
        print_alerts(alerts)


@app.command("test")
def test_alerts(
    alertmanager: Annotated[
        str, typer.Option(metavar="URL", help="Where Alertmanager is; http://127.0.0.1:9093 without --profile.")
    ] = "",
    profile: Annotated[str, typer.Option(metavar="NAME", help="Tell whom this profile names, too.")] = "",
    severity: OfSeverity = None,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Try the routes of this owner.")] = "",
    runbooks: Annotated[str, typer.Option(metavar="URL", help="Where the documentation is served, for links.")] = "",
    within: Annotated[float, typer.Option(metavar="SECONDS", min=1, max=600, help="How long to wait.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Send one of each alert, marked as a test.

    They end by themselves: pages after a minute, tickets after fifteen. Exit code 8: nobody takes them, or nothing
    goes out.
    """
    from headway.flows.config.profiles import load_profile
    from headway.flows.console.environment import project_folder
    from headway.flows.monitoring.alert_delivery import chosen, print_delivery, try_alertmanager, try_blocks

    blocks = load_profile(project_folder(), profile)[1].blocks if profile else {}
    if profile and not blocks:
        raise typer.BadParameter(f"the profile {profile} names no `notify`.", param_hint="--profile")
    if alertmanager or not profile:
        address = alertmanager or "http://127.0.0.1:9093"
        found = try_alertmanager(address, chosen(severity), owner=owner, runbooks=runbooks, within_s=within)
        emit(found, print_delivery, as_json=as_json)
    if blocks:
        wanted = {each: block for each, block in blocks.items() if severity in (None, each)}
        emit(try_blocks(wanted), print_delivery, as_json=as_json)
