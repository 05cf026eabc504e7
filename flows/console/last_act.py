"""What a command does last for whoever watches: bounded in time, and it fails nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headway.data_contracts.store.errors import HeadwayError


def problem_within(seconds: float, act: Callable[[], object], name: str) -> str:
    """Do it, and wait so long at most. What was in the way, in a few words without a full stop; empty: nothing.

    Args:
        name: of its thread.
    """
    problems: list[str] = []

    def make() -> None:
        try:
            act()
        except HeadwayError as error:
            problems.append(f"{error.what.rstrip('.')} ({error.where})")
        except Exception as error:
            # By its class alone: what it says may quote a header, or an address with a password.
            problems.append(f"{type(error).__name__} was raised")

    # A thread: a name service or a file system that never answers knows no deadline. A daemon, for nobody ends it.
    thread = threading.Thread(target=make, name=name, daemon=True)
    try:
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            return f"it took longer than {seconds:g} s"
    except RuntimeError as error:  # the machine has no thread left
        return str(error).rstrip(".")
    return problems[0] if problems else ""
