"""The command `headway deploy`. Heavy imports happen inside it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headway.flows.console.environment import project_folder
from headway.flows.console.options import AsJson
from headway.flows.console.output import print_json


def deploy(
    profile: Annotated[str, typer.Argument(help="A profile of deployments/profiles.yaml, such as production.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take over what others made under a name that is wanted.")
    ] = False,
    render: Annotated[
        bool, typer.Option("--render", help="Print its deployments as a file for `prefect deploy`; no server is asked.")
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
    from headway.flows.deploy.deploying import rendered

    if render:
        if dry_run or adopt or as_json:
            raise typer.BadParameter("--render stands alone: it does nothing on a server.")
        sys.stdout.write(rendered(project_folder(), profile))
        return

    # For machines the account goes to standard error, the result to standard output.
    console = plain_console(stderr=as_json)
    made = run_deploy(project_folder(), profile, dry_run=dry_run, adopt=adopt, console=console)
    if as_json:
        print_json(made.model_dump(mode="json", exclude={"changes": {"__all__": {"wanted"}}}))
