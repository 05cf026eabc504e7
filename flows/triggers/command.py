"""The command `headway triggers`. Heavy imports happen inside it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flows.environment import default_workspace


def triggers(
    pipeline: Annotated[str, typer.Argument(help="A pipeline file, or the name of one in deployments/.")],
    workspace: Annotated[
        str, typer.Option("--workspace", "-w", help="Where data, checkpoints and models are kept.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON for machines instead of text for people.")] = False,
) -> None:
    """What would start a retrain now: each trigger's figure beside its limit. Events are asked of PREFECT_API_URL.

    It looks at the data as a retrain would, which finds what this made; it asks for nothing.
    """
    from flows.triggers.report import print_report, report

    found = report(pipeline, workspace or default_workspace())
    if as_json:
        print(json.dumps(found.model_dump(mode="json")))
    else:
        print_report(found)
