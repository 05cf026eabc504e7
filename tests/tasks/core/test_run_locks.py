"""A run that another process works on is refused by name, or waited for and then found."""

from __future__ import annotations

import dataclasses
import os
import time

import pytest

from headway.data_contracts.store.documents import Registration
from headway.data_contracts.store.errors import EnvironmentProblem, RunBusy, RunStopped
from headway.data_contracts.store.publication import make_folder
from headway.tasks.core import run_locks
from headway.tasks.core.context import OwnedRuns, RunContext
from headway.tasks.core.run_locks import FLOW, lock_run
from headway.tasks.core.stage import StageOutput, find_or_make
from headway.training.launch.base.protocol import write_json
from headway.training.launch.base.run_lock import NAME, owner_of, owning
from headway.training.launch.base.stop_request import StopRequest
from headway.training.observe.ledger import Event, Ledger

RUN = "a" * 16


@pytest.fixture(autouse=True)
def at_the_run(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    context.at.run = RUN
    monkeypatch.setattr(run_locks, "POLL_S", 0.01)


@pytest.fixture
def document(context: RunContext, register) -> Registration:
    registration, _ = register(1)
    return context.workspace.load(registration, Registration)


def other(context: RunContext) -> RunContext:
    """Another flow run that is at the same run."""
    return dataclasses.replace(context, owned=OwnedRuns())


def test_who_does_not_wait_is_told_at_once_who_works_on_the_run(context, document) -> None:
    holder = other(context)
    assert lock_run(holder)
    with holder.owned.held, pytest.raises(RunBusy, match=rf"\(pid {os.getpid()} on ") as told:
        find_or_make(context, "verify", {}, lambda: StageOutput(document=document), exclusive=True)
    assert told.value.exit_code == 8 and "--wait" in told.value.advice


def test_a_run_is_owned_from_its_first_stage_to_the_end_of_the_flow_run(context, document) -> None:
    folder = context.workspace.local_path(f"runs/{RUN}/{FLOW}")
    with context.owned.held:
        find_or_make(context, "launch", {}, lambda: StageOutput(document=document), exclusive=True)
        assert owner_of(folder) == f"pid {os.getpid()} on {os.uname().nodename}"
        find_or_make(context, "verify", {}, lambda: StageOutput(document=document), exclusive=True)
    assert owner_of(folder) is None


def test_what_is_found_needs_nobodys_leave(context, document) -> None:
    find_or_make(context, "verify", {}, lambda: StageOutput(document=document), exclusive=True)
    context.owned.held.close()
    holder = other(context)
    lock_run(holder)
    with holder.owned.held:
        late = other(context)
        assert find_or_make(late, "verify", {}, pytest.fail, exclusive=True) == document.link
        assert not late.owned.runs


def test_who_waits_finds_what_the_other_made_and_hears_how_far_that_is(context, document) -> None:
    holder, told = other(context), list[Event]()
    lock_run(holder)
    attempt = context.workspace.local_path(f"runs/{RUN}/attempts/002")
    make_folder(attempt)
    ledger = Ledger(attempt / "ledger" / "rank-0.jsonl")
    ledger.event("step", step=40, duration_s=0.1)
    ledger.close()

    def finish_once_waited_for(event: Event) -> None:
        if event["event"] == "run.waiting":
            told.append(event)
            find_or_make(holder, "launch", {}, lambda: StageOutput(document=document), exclusive=True)
            holder.owned.held.close()

    context.ledger.listeners.append(finish_once_waited_for)
    waiting = dataclasses.replace(context, wait_s=300.0, owned=OwnedRuns())
    assert find_or_make(waiting, "launch", {}, pytest.fail, exclusive=True) == document.link
    assert told[0]["message"].startswith(f"pid {os.getpid()} on ")
    assert f"works on run {RUN}: attempt 2, step 40; waited 0 s" in told[0]["message"]
    assert len(told) == 1


def test_where_the_other_failed_who_waited_makes_it(context, document) -> None:
    holder = other(context)
    lock_run(holder)
    context.ledger.listeners.append(lambda event: event["event"] == "run.waiting" and holder.owned.held.close())
    waiting = dataclasses.replace(context, wait_s=300.0, owned=OwnedRuns())
    with waiting.owned.held:
        assert (
            find_or_make(waiting, "launch", {}, lambda: StageOutput(document=document), exclusive=True) == document.link
        )
        assert waiting.owned.runs == {RUN}


def test_waiting_ends_with_its_length_with_the_time_to_stop_and_with_an_interrupt(context) -> None:
    holder = other(context)
    lock_run(holder)
    with holder.owned.held:
        brief = dataclasses.replace(context, wait_s=0.0, owned=OwnedRuns())
        with pytest.raises(RunBusy, match="and still does after 0 s"):
            find_or_make(brief, "launch", {}, pytest.fail, exclusive=True)
        bound = StopRequest(at_unix_s=time.time() + 0.2)
        bounded = dataclasses.replace(context, wait_s=300.0, owned=OwnedRuns(), stop=bound)
        with pytest.raises(RunStopped):
            find_or_make(bounded, "launch", {}, pytest.fail, exclusive=True)

        def interrupt(event: Event) -> None:
            if event["event"] == "run.waiting":
                raise KeyboardInterrupt

        context.ledger.listeners.append(interrupt)
        waiting = dataclasses.replace(context, wait_s=300.0, owned=OwnedRuns())
        with pytest.raises(KeyboardInterrupt):
            find_or_make(waiting, "launch", {}, pytest.fail, exclusive=True)
        assert not waiting.owned.runs


def test_a_champions_folder_that_another_process_works_in_is_waited_for_too(context, document) -> None:
    folder = context.workspace.local_path("runs/another/evaluate")
    make_folder(folder)
    write_json(folder / "unrelated.json", {})
    busy = [RunBusy("another process trains this run already.", where=str(folder))]

    def make() -> StageOutput:
        if busy:
            raise busy.pop()
        return StageOutput(document=document)

    waiting = dataclasses.replace(context, wait_s=300.0, owned=OwnedRuns())
    with waiting.owned.held:
        assert find_or_make(waiting, "evaluate", {}, make, exclusive=True) == document.link


def test_a_pipe_in_the_place_of_the_lock_is_nobodys_and_cannot_be_held(tmp_path) -> None:
    os.mkfifo(tmp_path / NAME)
    assert owner_of(tmp_path) is None
    with pytest.raises(EnvironmentProblem, match="a pipe, not a file"), owning(tmp_path):
        pass


def test_two_that_each_hold_what_the_other_waits_for_do_not_wait_for_ever(context: RunContext) -> None:
    holder, searching = other(context), dataclasses.replace(other(context), wait_s=60.0)
    assert lock_run(holder)
    with holder.owned.held, searching.owned.held:
        context.at.run = "b" * 16
        assert lock_run(searching)
        context.at.run = RUN
        with pytest.raises(RunBusy) as busy:
            lock_run(searching)
        with pytest.raises(RunBusy, match="another process trains this run") as refused:
            run_locks.wait_for_other(searching, busy.value)
    assert "waits for none" in refused.value.advice
