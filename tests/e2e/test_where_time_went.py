"""Time that is lost shows under the name of what lost it, and everything named sums to the wall."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest

import headway.tasks.stages.snapshot
from headway.training.observe.ledger import read_events

pytestmark = pytest.mark.long

LOST_S = 1.5


def account_of_the_newest_run(project):
    from headway.flows.accounts.time_account import account
    from headway.flows.report.summary import rank_events

    spool = max(project.files("ledger/*/flow.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    events = read_events(spool)
    started = next(event["started_unix_s"] for event in events if event["event"] == "flow.begin")
    return account([*events, *rank_events(events)], started, events[-1]["unix_s"])


def test_a_slow_source_shows_as_reading_the_source(project, train_here, monkeypatch: pytest.MonkeyPatch) -> None:
    take_snapshot, took_s = headway.tasks.stages.snapshot.take_snapshot, []

    def slow(*arguments, **options):
        started_s = time.monotonic()
        time.sleep(LOST_S)
        try:
            return take_snapshot(*arguments, **options)
        finally:
            took_s.append(time.monotonic() - started_s)

    monkeypatch.setattr(headway.tasks.stages.snapshot, "take_snapshot", slow)
    train_here(project)
    account = account_of_the_newest_run(project)
    assert account.parts_s["snapshot.read"] == pytest.approx(*took_s, rel=0.1), "as long as it was, here and now"
    assert sum(account.parts_s.values()) == pytest.approx(account.wall_s)


def test_a_rank_that_stands_still_shows_as_waiting_for_it(project, train_here, wait_until) -> None:
    project.forget_training()

    def hold_rank_1() -> None:
        wait_until(lambda: project.newest_step() >= 25)
        pid = project.rank_pid(1)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(LOST_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=hold_rank_1)
    thread.start()
    train_here(project, guarded=True)
    thread.join()
    account = account_of_the_newest_run(project)
    assert account.parts_s["train.sync"] >= 0.9 * LOST_S, account.parts_s
    assert account.parts_s["end"] > 0, "what forked its guards ends after the last stage"
    assert sum(account.parts_s.values()) == pytest.approx(account.wall_s)
    assert account.unattributed_ratio <= 0.01, account.parts_s
