"""Whether a version is what it claims to be: every digest again, and training again. Heavy imports happen inside."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from headway.flows.console.command_signals import terminate
from headway.flows.console.options import AsJson, ModelUri, WorkspaceUri
from headway.flows.console.output import emit


def verify(
    model_uri: ModelUri,
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Re-hash everything a version stands on, offline. The first broken link is named."""
    from headway.flows.show.verify import verify_model

    sys.exit(verify_model(model_uri, workspace, as_json=as_json))


def scrub(
    workspace: WorkspaceUri = "",
    max_gb: Annotated[
        float | None, typer.Option("--max-gb", metavar="N", min=0.001, help="Read about so much, and the rest later.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Re-hash what champions and unfinished runs need. Longest unread first. Exit code 5: damage."""
    from headway.flows.show import scrub as scrubbing

    report = scrubbing.scrub_workspace(workspace, max_gb)
    emit(report, scrubbing.print_scrub, as_json=as_json)
    if (damaged := scrubbing.damage(report, workspace)) is not None:
        raise damaged


def reproduce(
    model_uri: ModelUri,
    again: Annotated[bool, typer.Option("--again", help="From the first step, whatever an earlier one left.")] = False,
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Train a version again and compare the bits. Nothing kept is touched. Exit code 10: other bits."""
    from headway.flows.act.reproduce import reproduce_model

    signal.signal(signal.SIGTERM, terminate)
    reproduce_model(model_uri, workspace, again=again, as_json=as_json)
