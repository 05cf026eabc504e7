"""What every command that runs a flow in its own process does around it; heavy imports happen when it begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flows.command_signals import hear_of_the_end

if TYPE_CHECKING:
    from flows.terminal import JsonLines, Terminal


@contextlib.contextmanager
def watched_flow(began_unix_s: float, *, as_json: bool) -> Iterator[JsonLines | Terminal]:
    """While the body runs the flow, its events are shown, Prefect has an API, and the command's end is its end.

    Args:
        began_unix_s: when the command did.
    """
    from flows.own_server import prefect_api
    from flows.session import command_began_unix_s, watchers
    from flows.terminal import JsonLines, Terminal

    hear_of_the_end()
    view = JsonLines() if as_json else Terminal()
    watchers.set((view,))
    command_began_unix_s.set(began_unix_s)
    with prefect_api():
        yield view
