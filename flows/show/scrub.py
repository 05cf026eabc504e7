"""`headway scrub`: stored files read again, and what of them is damaged."""

from __future__ import annotations

import datetime

from rich.console import Console

from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.types.report_text import count
from headway.flows.console.console import plain_console
from headway.flows.console.progress_line import ProgressLine
from headway.tasks.prove.scrub import ScrubReport, scrub

GB = 10**9
MAX_SHOWN = 20
HOW_TO_MEND = (
    "Look at the disk and the kernel's log first. Then put each file back from a copy; `headway verify MODEL` says "
    "what of a model still holds."
)


def scrub_workspace(workspace_uri: str, max_gb: float | None) -> ScrubReport:
    """
    Args:
        max_gb: about so much is read; None: all.

    Raises:
        EnvironmentProblem: there is no workspace, or it cannot be used.
        RegistryError: another scrub is at work here.
    """
    workspace = Workspace.existing(workspace_uri)
    with ProgressLine(lambda done, total: f"read {done / GB:,.2f} of {total / GB:,.2f} GB") as progress:
        return scrub(workspace, max_bytes=None if max_gb is None else int(max_gb * GB), on_bytes=progress)


def damage(report: ScrubReport, workspace_uri: str) -> IntegrityError | None:
    """What to raise of a report; None where all that was looked at is whole."""
    if not report.damaged:
        return None
    first, num_more = report.damaged[0], len(report.damaged) - 1
    more = f" and {count(num_more, 'other file')}" if num_more else ""
    what = f"{first.path}{more} cannot be trusted: {first.fault} {first.needed_by} needs it."
    return IntegrityError(what, where=workspace_uri, advice=HOW_TO_MEND)


def print_scrub(report: ScrubReport, console: Console | None = None) -> None:
    console = console or plain_console()
    console.print(
        f"read       {count(report.num_checked, 'file')}, {report.checked_bytes / GB:,.3f} GB, of "
        f"{count(report.num_files, 'file')}, {report.size_bytes / GB:,.3f} GB, that champions and unfinished runs need"
    )
    if report.num_never_checked:
        console.print(f"to come    {count(report.num_never_checked, 'file')} that no scrub has read yet")
    elif report.oldest_check_unix_s is not None:
        oldest = datetime.datetime.fromtimestamp(report.oldest_check_unix_s, datetime.UTC)
        console.print(f"so far     each was read since {oldest.isoformat(timespec='seconds')}")
    for each in report.damaged[:MAX_SHOWN]:
        console.print(f"DAMAGED    {each.path}: {each.fault} Needed by {each.needed_by}.", soft_wrap=True)
    if num_more := len(report.damaged[MAX_SHOWN:]):
        console.print(f"           and {count(num_more, 'other file')}: `--json` has all")
    if not report.damaged:
        console.print("damaged    none")
