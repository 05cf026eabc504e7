"""The command `headway clean`. Heavy imports happen inside it."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.flows.console.environment import default_workspace
from headway.flows.console.options import AsJson, WorkspaceUri
from headway.flows.console.output import print_json, print_lines


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

    where = workspace or default_workspace()
    if why:
        print_lines(cleaning.why(where, why, keep_last=keep_last, older_than=older_than))
        return
    report = cleaning.clean(where, apply=apply, keep_last=keep_last, older_than=older_than)
    if as_json:
        print_json(report)
    else:
        cleaning.print_clean(report)
