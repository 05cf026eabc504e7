"""The command `headway triggers`. Heavy imports happen inside it."""

from __future__ import annotations

from headway.flows.console.environment import default_workspace
from headway.flows.console.options import AsJson, Pipeline, WorkspaceUri
from headway.flows.console.output import print_json


def triggers(pipeline: Pipeline, workspace: WorkspaceUri = "", as_json: AsJson = False) -> None:
    """Show each trigger's figure beside its limit. Events are asked of PREFECT_API_URL.

    It looks at the data as a retrain would, which finds what this made; it asks for nothing.
    """
    from headway.flows.triggers.report import print_report, report

    found = report(pipeline, workspace or default_workspace())
    if as_json:
        print_json(found)
    else:
        print_report(found)
