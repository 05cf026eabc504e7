"""Who works on a run, from its training to its registration: one flow run at a time; others are refused, or wait.

The lock of a run's folder is held for as long as its ranks train; the one in `flow/` below it, by the flow run that
makes any of the run's stages, until that flow run ends. So whoever waited finds everything.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from headway.data_contracts.store.errors import RunBusy
from headway.data_contracts.store.publication import make_folder
from headway.tasks.core.context import RunContext
from headway.tasks.core.lease_records import remote_owner
from headway.tasks.core.run_progress import read_progress
from headway.training.launch.base.run_lock import owner_of, owning

FLOW = "flow"
"""The folder in a run's own with the lock of the flow run that works on it."""
POLL_S = 0.5
REPORT_EVERY_S = 5.0
POLL_STORE_S = 5.0
"""Of a claim on another machine: every look is a request to the store."""


def lock_run(context: RunContext) -> bool:
    """Keep other flow runs from the run that this one is at, until it ends.

    Returns:
        Whether that is new: what another flow run made meanwhile is to be looked for.

    Raises:
        RunBusy: another process works on the run; the message names it.
    """
    run = context.at.run
    if not run or run in context.owned.runs:
        return False
    folder = context.workspace.local_path(f"runs/{run}/{FLOW}")
    make_folder(folder)
    # Held past the stage, until the flow run ends: the run's later stages are its own as well.
    context.owned.held.enter_context(owning(folder, run))
    context.owned.runs.add(run)
    return True


def wait_for_other(context: RunContext, busy: RunBusy) -> None:
    """Return when nobody works any more on the run that this flow run is at; watchers are told who does, and how far.

    Raises:
        RunBusy: it is not to be waited for, or not any longer.
        RunStopped: the flow run's time is over.
    """
    if context.wait_s is None:
        raise busy
    if context.owned.runs - {context.at.run}:
        # Two searches that each hold what the other waits for would wait for ever.
        raise RunBusy(
            busy.what,
            where=busy.where,
            advice="A search with trials of its own waits for none. The same command continues once that has ended.",
        ) from busy
    context.devices.release()  # whoever works on the run may need them
    run_dir = context.workspace.local_path(f"runs/{context.at.run}")
    # Below 0, so that the first look is reported, even just after the machine has started.
    started_s, reported_s = time.monotonic(), -REPORT_EVERY_S
    with context.ledger.span("run.wait", run=context.at.run):
        while owner := _owner(context, run_dir, busy):
            now_s = time.monotonic()
            if now_s - started_s >= context.wait_s:
                what = f"{busy.what.rstrip('.')}, and still does after {now_s - started_s:,.0f} s."
                raise RunBusy(what, where=busy.where, advice=busy.advice) from busy
            context.require_time("waiting for another retrain")
            if now_s - reported_s >= REPORT_EVERY_S:
                reported_s = now_s
                waited = f"waited {now_s - started_s:,.0f} s"
                message = f"{owner} works on run {context.at.run}: {read_progress(run_dir)}; {waited}"
                context.ledger.event("run.waiting", run=context.at.run, owner=owner, message=message)
            time.sleep(POLL_S if context.workspace.is_local else POLL_STORE_S)


def _owner(context: RunContext, run_dir: Path, busy: RunBusy) -> str | None:
    """Who works on the run, here or on another machine; None when nobody does."""
    here = None
    if context.at.run not in context.owned.runs:  # else it is ours, and another run's folder is busy
        here = owner_of(run_dir / FLOW) or owner_of(run_dir)
    if here is None:
        with contextlib.suppress(OSError):  # of a claim in an object store this is no folder
            here = owner_of(Path(busy.where))
    return here or (None if context.workspace.is_local else remote_owner(context.workspace, context.at.run))
