"""What every command that runs a flow in its own process does before it; heavy imports happen when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.flows.console.command_signals import install_signal_handlers

if TYPE_CHECKING:
    from headway.flows.report.terminal import JsonLines, Terminal


def watch_flows(started_unix_s: float, *, as_json: bool) -> JsonLines | Terminal:
    """From now on events of flows are shown, their start is the command's, and the command's end is theirs.

    Args:
        started_unix_s: when the command did.
    """
    from headway.flows.report.terminal import JsonLines, Terminal
    from headway.flows.run.session import command_started_unix_s, watchers

    install_signal_handlers()
    view = JsonLines() if as_json else Terminal()
    watchers.set((view,))
    command_started_unix_s.set(started_unix_s)
    return view
