"""`headway deploy` and `headway clean`. Heavy imports happen inside them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headway.flows.console.environment import project_folder
from headway.flows.console.options import AsJson, WorkspaceUri
from headway.flows.console.output import emit, print_json, print_lines


def deploy(
    profile: Annotated[str, typer.Argument(help="A profile of deployments/profiles.yaml, such as production.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over what others made under a name that is wanted.")
    ] = False,
    render: Annotated[
        bool, typer.Option("--render", help="Print its deployments as a file for `prefect deploy`; no server is asked.")
    ] = False,
    exporter: Annotated[
        bool, typer.Option("--render-exporter", help="Print the manifests of its exporter of metrics on Kubernetes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a Prefect server what deployments/ says. Pool, deployments, schedules, automations, limits, variables.

    The difference is shown first, then done; a second time there is none. What was deployed earlier and is gone from
    the files is removed; what others made is left alone. Exit code 8: the server does not answer, or refuses a step;
    the message names what was done, and the same command does the rest.
    """
    from headway.flows.console.console import plain_console
    from headway.flows.deploy.deploying import deploy as run_deploy
    from headway.flows.deploy.deploying import rendered, rendered_exporter

    if render or exporter:
        if dry_run or adopt or as_json or (render and exporter):
            option = "--render" if render else "--render-exporter"
            raise typer.BadParameter(f"{option} stands alone: it does nothing on a server.")
        sys.stdout.write((rendered if render else rendered_exporter)(project_folder(), profile))
        return

    # For machines the account goes to standard error, the result to standard output.
    console = plain_console(stderr=as_json)
    made = run_deploy(project_folder(), profile, dry_run=dry_run, adopt=adopt, console=console)
    if as_json:
        print_json(made.model_dump(mode="json", exclude={"changes": {"__all__": {"wanted"}}}))


def clean(
    workspace: WorkspaceUri = "",
    apply: Annotated[bool, typer.Option("--apply", help="Take it away; without, only say what would go.")] = False,
    keep_last: Annotated[
        int, typer.Option(metavar="N", min=0, help="Finished runs of each pipeline that stay however old they are.")
    ] = 3,
    older_than: Annotated[
        str, typer.Option(metavar="LENGTH", help="What was written or used since stays: 30d, 12d12h; a day at least.")
    ] = "30d",
    why: Annotated[str, typer.Option(metavar="PATH", help="Say why this file stays, and no more.")] = "",
    as_json: AsJson = False,
) -> None:
    """List what nothing needs any more. --apply removes it. Exit code 5: damage."""
    from headway.flows.act import clean as cleaning

    if why:
        print_lines(cleaning.why(workspace, why, keep_last=keep_last, older_than=older_than))
        return
    report = cleaning.clean(workspace, apply=apply, keep_last=keep_last, older_than=older_than)
    emit(report, cleaning.print_clean, as_json=as_json)
