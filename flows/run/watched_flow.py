"""What every command that runs a flow in its own process does around it; heavy imports happen when it begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.flows.console.command_signals import install_signal_handlers

if TYPE_CHECKING:
    from headway.flows.report.terminal import JsonLines, Terminal


@contextlib.contextmanager
def watched_flow(started_unix_s: float, *, as_json: bool) -> Iterator[JsonLines | Terminal]:
    """While the body runs the flow, its events are shown, Prefect has an API, and the command's end is its end.

    Args:
        started_unix_s: when the command did.
    """
    from headway.flows.prefect_api.ephemeral_server import prefect_api
    from headway.flows.report.terminal import JsonLines, Terminal
    from headway.flows.run.session import command_started_unix_s, watchers

    install_signal_handlers()
    view = JsonLines() if as_json else Terminal()
    watchers.set((view,))
    command_started_unix_s.set(started_unix_s)
    with prefect_api():
        yield view
