"""Whole runs: real guards, real torchrun agents on two nodes, toy workers that import no torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headway.data_contracts.store.errors import (
    ContractViolation,
    CostBoundReached,
    EnvironmentProblem,
    RanksLost,
    RunStopped,
    TrainingFailed,
)
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.gang import Gang, LaunchSpec, attempt_folder, for_stepless_work
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.launch.base.run_lock import owning
from headway.training.launch.base.stacks import innermost_frame
from headway.training.launch.base.stop_request import StopRequest, request_stop, requested_stop
from headway.training.launch.supervise.supervisor import _Supervisor, as_error, supervise
from headway.training.observe.ledger import Ledger, read_events

SPEC = LaunchSpec(stop_grace_s=600, peer_grace_s=1, backoff_s=0)
SOON_S = 60.0
"""Long before the whole grace, even on a busy machine."""
PATIENT = SPEC.model_copy(update={"stop_grace_s": 600.0, "peer_grace_s": 600.0, "max_attempts": 1})
FAR = StopRequest(at_unix_s=time.time() + 1e6, reason="window closed")

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("toy_agents")]


def run(toy_run, gang: Gang, spec: LaunchSpec = SPEC, act: Callable[[int], None] = lambda step: None):
    """Supervise, calling `act` with the newest step as it grows."""

    def poll() -> int | None:
        step = toy_run.newest_step()
        if step is not None:
            act(step)
        return step

    return supervise(spec, gang, ledger=toy_run.ledger, budget_scope="one", poll=poll)


def trouble(kind: str, **fields: object) -> tuple[str, str]:
    return "--trouble", json.dumps({"kind": kind, "step": 3, **fields})


class KillOnce:
    """Kills one process of the second node as soon as the run has made a few steps."""

    def __init__(self, toy_run, victim: str) -> None:
        self._run, self._victim = toy_run, victim
        self.killed_unix_s = 0.0

    def __call__(self, step: int) -> None:
        if self.killed_unix_s or step < 3:
            return
        files = self._run.attempt(1)
        status, markers = files.read_status(1), files.read_markers()
        if status is None or 1 not in markers:
            return
        pid = {"rank": markers[1].pid, "agent": status.agent_pid, "guard": status.guard_pid}[self._victim]
        os.kill(pid, signal.SIGKILL)
        self.killed_unix_s = time.time()


@pytest.mark.parametrize(
    ("victim", "agents"), [("rank", "real_agents"), ("agent", "toy_agents"), ("guard", "toy_agents")]
)
def test_a_kill_costs_seconds_and_not_the_run(
    toy_run, request: pytest.FixtureRequest, victim: str, agents: str
) -> None:
    request.getfixturevalue(agents)
    kill = KillOnce(toy_run, victim)

    outcome = run(toy_run, toy_run.gang("--steps", "12", "--children"), act=kill)

    assert outcome.state == "done"
    assert toy_run.survivors() == []
    assert [record.state for record in AttemptRecords(toy_run.folder).all()] == ["failed", "done"]
    assert len(toy_run.events("rank.lost")) == len(toy_run.events("attempt.retry")) == 1
    first, second = toy_run.events("attempt")
    assert victim in str(first["what"]), "what was killed is what is named"
    ended_unix_s = float(str(first["unix_s"])) + float(str(first["duration_s"]))
    assert ended_unix_s - kill.killed_unix_s < SOON_S, "peers are ended long before the whole grace"
    assert second["step"] == 12


def test_a_break_that_is_over_before_the_next_look_is_told_too(toy_run) -> None:
    killed: list[int] = []
    enough = toy_run.folder / "enough"

    def kill_both(step: int) -> None:
        files = toy_run.attempt(1)
        statuses = [files.read_status(node) for node in (0, 1)]
        if killed or not all(statuses) or len(files.read_markers()) < 2:
            return
        killed.extend(status.guard_pid for status in statuses)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        for pid in killed:  # its first thread is a zombie a while before the last one lets it be waited for
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        enough.touch()

    assert run(toy_run, toy_run.gang("--steps", "12", "--until", str(enough)), act=kill_both).state == "done"
    (lost,) = toy_run.events("rank.lost")
    assert lost["what"] == "nodes 0, 1 were lost; the attempt is ended."


def test_peers_that_ignore_the_request_to_stop_are_not_waited_for(toy_run) -> None:
    kill = KillOnce(toy_run, "rank")
    spec = SPEC.model_copy(update={"max_attempts": 1})
    with pytest.raises(RanksLost, match=r"^rank 1 was killed"):
        run(toy_run, toy_run.gang("--deaf", "--steps", "9999"), spec, kill)
    assert time.time() - kill.killed_unix_s < SOON_S
    assert toy_run.survivors() == []


def test_a_broken_contract_comes_back_as_itself_after_one_attempt(toy_run) -> None:
    with pytest.raises(ContractViolation) as refused:
        run(toy_run, toy_run.gang(*trouble("contract"), nodes=1))
    assert str(refused.value) == "here: no receipt. Validate first."
    assert toy_run.num_attempts() == 1


def test_a_crash_that_comes_again_ends_the_run_and_quotes_the_rank(toy_run) -> None:
    spec = SPEC.model_copy(update={"max_cycles_without_progress": 1})
    with pytest.raises(TrainingFailed) as failed:
        run(toy_run, toy_run.gang(*trouble("raise"), nodes=1), spec)
    message = str(failed.value)
    assert "rank 0: ValueError: the dog ate it" in message
    assert "no further than step 3" in message
    assert "attempts/002" in message and "raise ValueError" in message
    assert toy_run.num_attempts() == 2


def test_a_rank_that_crashed_in_foreign_code_is_named_with_the_place(toy_run) -> None:
    spec = SPEC.model_copy(update={"max_attempts": 1})
    with pytest.raises(RanksLost, match=r"^rank 0 crashed: Segmentation fault in string_at \(__init__.py:\d+\)"):
        run(toy_run, toy_run.gang(*trouble("crash"), nodes=1), spec)
    assert "in crash_here" in toy_run.attempt(1).stacks(0).read_text()


def test_a_rank_that_never_comes_up_is_quoted(toy_run) -> None:
    spec = SPEC.model_copy(update={"max_attempts": 1})
    with pytest.raises(TrainingFailed, match="the early bird"):
        run(toy_run, toy_run.gang("--trouble", '{"kind": "early exit"}', nodes=1), spec)


def test_who_is_woken_by_lost_ranks_is_told_where_to_look(tmp_path: Path) -> None:
    lost = Failure(cause="infrastructure", what="rank 1 was killed.", rank=1, host="n7", retryable=True)
    error = as_error(lost, "all 5 attempts are spent.", tmp_path)
    assert isinstance(error, RanksLost) and error.advice.startswith("all 5 attempts are spent.")
    assert "`dmesg` on n7" in error.advice and "`headway doctor PIPELINE`" in error.advice


def test_who_is_woken_by_ranks_that_did_not_reach_each_other_is_sent_to_the_network(tmp_path: Path) -> None:
    words = "ConnectionError: the store of rank 0 at 10.0.0.1, port 4711: timed out"
    lost = Failure(cause="infrastructure", error="ConnectionError", what=words, rank=1, host="n7", retryable=True)
    error = as_error(lost, "all 5 attempts are spent.", tmp_path)
    assert isinstance(error, RanksLost) and words in error.what
    assert "the network between the hosts, first on n7" in error.advice and "memory" not in error.advice


def test_a_later_owner_does_not_start_when_the_budget_is_spent(toy_run) -> None:
    spec = SPEC.model_copy(update={"max_attempts": 1})
    gang = toy_run.gang("--trouble", '{"kind": "early exit"}', nodes=1)
    with pytest.raises(TrainingFailed):
        run(toy_run, gang, spec)
    with pytest.raises(TrainingFailed, match="budget is spent"):
        run(toy_run, gang, spec)
    assert toy_run.num_attempts() == 1


def test_a_halted_rank_is_named_its_peers_stacks_are_kept_and_the_run_goes_on(toy_run) -> None:
    spec = SPEC.model_copy(update={"progress_deadline_s": 4})
    # Toys do not wait for each other: rank 0 goes on to its end, and only then is nothing left that moves.
    gang = toy_run.gang(*trouble("halt", rank=1, attempt=1), "--steps", "6", "--step-s", "0.2")

    outcome = run(toy_run, gang, spec)

    assert outcome.state == "done"
    overdue = toy_run.events("attempt.overdue")[0]
    assert overdue["ranks"] == [1]
    assert "rank 1 halted at step 3" in str(overdue["what"])
    assert toy_run.survivors() == []


def test_a_hanging_rank_is_shown_with_what_it_was_doing(toy_run) -> None:
    spec = SPEC.model_copy(update={"progress_deadline_s": 4, "max_attempts": 1})
    with pytest.raises(
        TrainingFailed, match=r"no step after step 3 and no sign of life within 4 s.*in hang_here \(toy_worker.py"
    ):
        run(toy_run, toy_run.gang(*trouble("hang"), nodes=1), spec)
    assert innermost_frame(toy_run.attempt(1).stacks(0).read_text()).startswith("hang_here")
    assert not toy_run.attempt(1).missed_step.exists()


def test_a_hang_among_short_steps_is_noticed_long_before_the_configured_deadline_and_the_odd_rank_named(
    toy_run,
) -> None:
    spec = SPEC.model_copy(update={"progress_deadline_s": 600.0, "min_progress_deadline_s": 4.0, "max_attempts": 1})
    gang = toy_run.gang(*trouble("hang", step=40, rank=1), "--steps", "41")
    with pytest.raises(
        TrainingFailed, match=r"no step after step \d+ .* within [\d.]+ s; steps took .* s \(p99 .* s\); late: rank 1 "
    ):
        run(toy_run, gang, spec)
    (overdue,) = toy_run.events("attempt.overdue")
    assert overdue["ranks"] == [1] and toy_run.attempt(1).missed_step.exists()
    deadline = toy_run.events("attempt.deadline")[-1]
    assert str(deadline["what"]).startswith("a step is missed after ")
    (last_step_unix_s,) = (event["unix_s"] for event in read_events(toy_run.attempt(1).rank_spool(1))[-1:])
    assert float(str(overdue["unix_s"])) - last_step_unix_s < 10 * float(str(deadline["deadline_s"])) + SOON_S
    assert toy_run.survivors() == []


def test_a_hang_in_work_without_steps_is_noticed_and_named(toy_run) -> None:
    spec = for_stepless_work(SPEC.model_copy(update={"progress_deadline_s": 4, "max_attempts": 1}))
    with pytest.raises(TrainingFailed, match=r"no sign of life within 4 s.*in hang_here \(toy_worker.py"):
        supervise(
            spec,
            toy_run.gang(*trouble("hang"), nodes=1),
            ledger=toy_run.ledger,
            budget_scope="one",
            poll=lambda: None,
        )
    assert toy_run.survivors() == []


@pytest.mark.long
def test_work_without_steps_goes_on_while_its_ranks_say_something_or_compute(toy_run) -> None:
    spec = for_stepless_work(SPEC.model_copy(update={"progress_deadline_s": 8.0, "max_attempts": 1}))
    gang = toy_run.gang(*trouble("compute", seconds=9), "--steps", "5", nodes=1)
    outcome = supervise(spec, gang, ledger=toy_run.ledger, budget_scope="one", poll=lambda: None)
    assert outcome.state == "done"


def test_a_request_that_comes_as_ranks_end_at_their_step_is_heard_by_whoever_would_go_on(tmp_path: Path) -> None:
    events: list[str] = []
    ending = _Supervisor.__new__(_Supervisor)
    ending._gang = Gang(
        module="none",
        arguments=(),
        nodes=1,
        ranks_per_node=1,
        import_path=(),
        run_dir=tmp_path,
        stop=StopRequest(at_step=3),
    )
    ending._ledger = cast("Ledger", SimpleNamespace(event=lambda name, **fields: events.append(fields["reason"])))
    assert ending._stopped("stopped at step 3 of 9.", "step reached").reason == "step reached"
    request_stop(tmp_path, "enough")
    stopped = ending._stopped("stopped at step 3 of 9.", "step reached")
    assert stopped.reason == "requested" and "enough" in stopped.what
    assert events == ["step reached", "requested"] and requested_stop(tmp_path) is None


def test_a_request_to_stop_keeps_checkpoints_and_the_next_run_goes_on_from_them(toy_run, real_agents) -> None:
    gang = toy_run.gang("--steps", "30", "--in-step")

    def ask(step: int) -> None:
        if step > 3 and toy_run.num_attempts() == 1:
            request_stop(toy_run.folder, "asked by a test")

    with pytest.raises(RunStopped):
        run(toy_run, gang, act=ask)
    kept = [int((toy_run.folder / f"checkpoint-{rank}.txt").read_text()) for rank in (0, 1)]
    assert min(kept) >= 3
    assert requested_stop(toy_run.folder) is None, "a request is honoured once"

    assert run(toy_run, gang).state == "done"
    assert AttemptRecords(toy_run.folder).all()[0].state == "stopped"
    assert toy_run.events("rank.lost") == [], "neither who stops nor who is done is lost"


@pytest.fixture
def end_the_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the clock by which the supervisor knows the time behind `FAR`; ranks keep theirs."""
    return lambda: monkeypatch.setattr("headway.training.launch.base.stop_request.time.time", lambda: FAR.at_unix_s)


@pytest.mark.long
def test_at_the_end_of_the_time_checkpoints_are_kept_no_retry_is_spent_and_the_next_run_goes_on(
    toy_run, end_the_time, monkeypatch
) -> None:
    gang = replace(toy_run.gang("--steps", "9999", "--in-step"), stop=FAR, continued_by="headway retrain toys")

    with pytest.raises(RunStopped) as stopped:
        run(toy_run, gang, PATIENT, act=lambda step: end_the_time() if step >= 3 else None)

    monkeypatch.undo()
    assert stopped.value.reason == "window closed"
    assert "window closed (the time was over at" in stopped.value.what and "stopped at step" in stopped.value.what
    assert stopped.value.advice == "`headway retrain toys` continues it."
    (told,) = toy_run.events("run.stopped")
    assert told["reason"] == "window closed" and told["continued_by"] == "headway retrain toys"
    (record,) = AttemptRecords(toy_run.folder).all()
    assert (record.state, record.failure.reason) == ("stopped", "window closed")
    assert record.continued_by == "headway retrain toys"
    steps = str(toy_run.newest_step() + 3)
    assert run(toy_run, toy_run.gang("--steps", steps), SPEC.model_copy(update={"max_attempts": 1})).state == "done"


def test_when_the_time_is_over_nothing_is_started(toy_run) -> None:
    gang = replace(toy_run.gang(), stop=StopRequest(at_unix_s=time.time(), reason="budget spent"))
    with pytest.raises(RunStopped, match=r"budget spent .*: no attempt was started"):
        run(toy_run, gang)
    assert toy_run.num_attempts() == 0


def test_what_may_be_paid_for_is_used_up_by_attempts_since_it_was_reckoned(toy_run) -> None:
    gang = replace(toy_run.gang("--steps", "1"), stop=StopRequest(paid_s=3600.0, paid_since_unix_s=time.time()))
    assert run(toy_run, gang).state == "done"
    (record,) = AttemptRecords(toy_run.folder).all()
    assert record.end_unix_s is not None
    took_s = record.end_unix_s - record.start_unix_s
    stop = replace(gang.stop, paid_s=took_s, paid_detail="usd_per_run: 1.00")
    with pytest.raises(
        CostBoundReached, match=r"cost bound reached \(usd_per_run: 1.00\): no attempt was started"
    ) as why:
        run(toy_run, replace(gang, stop=stop))
    assert "continues it once that bound in the pipeline file lets it" in why.value.advice
    assert toy_run.num_attempts() == 1


def test_what_an_attempt_held_whose_owner_was_lost_is_paid_for_too(toy_run) -> None:
    """As of a job that Slurm starts again after its node went down; it was as good as free."""
    start_unix_s = time.time() - 600.0
    AttemptRecords(toy_run.folder).begin(AttemptRecord(attempt=1, scope="one", start_unix_s=start_unix_s))
    spool = AttemptFiles(attempt_folder(toy_run.folder, 1)).rank_spool(0)
    spool.parent.mkdir(parents=True)
    spool.touch()
    os.utime(spool, (start_unix_s + 100.0, start_unix_s + 100.0))
    for paid_s, is_refused in ((99.0, True), (3600.0, False)):
        stop = StopRequest(paid_s=paid_s, paid_since_unix_s=start_unix_s, paid_detail="usd_per_run: 1.00")
        gang = replace(toy_run.gang("--steps", "1"), stop=stop)
        with pytest.raises(CostBoundReached) if is_refused else contextlib.nullcontext():
            assert run(toy_run, gang).state == "done"


def test_warm_up_and_evaluation_end_as_soon_as_the_time_is_over(toy_run, end_the_time) -> None:
    def poll() -> None:
        if all_are_expendable(toy_run):
            end_the_time()

    gang = replace(toy_run.gang("--expendable"), stop=FAR)
    with pytest.raises(RunStopped, match=r"window closed .*stopped while there was nothing new to keep"):
        supervise(PATIENT, gang, ledger=toy_run.ledger, budget_scope="one", poll=poll)
    assert toy_run.survivors() == [] and toy_run.num_attempts() == 1
    ranks = {marker.pid for marker in toy_run.attempt(1).read_markers().values()}
    swept = {pid for node in (0, 1) for pid in toy_run.attempt(1).read_status(node).swept}
    assert len(ranks) == 2 and not ranks & swept, "no rank had to be killed"


@pytest.mark.parametrize(
    ("victim", "agents"), [("rank", "toy_agents"), ("agent", "real_agents"), ("guard", "toy_agents")]
)
def test_whoever_is_terminated_while_there_is_nothing_to_keep_ends_all_in_order(
    toy_run, request: pytest.FixtureRequest, victim: str, agents: str
) -> None:
    request.getfixturevalue(agents)
    terminated: list[int] = []

    def poll() -> None:
        if not terminated and all_are_expendable(toy_run):
            files = toy_run.attempt(1)
            status, markers = files.read_status(1), files.read_markers()
            pid = {"rank": markers[1].pid, "agent": status.agent_pid, "guard": status.guard_pid}[victim]
            terminated.append(pid)
            os.kill(pid, signal.SIGTERM)

    with pytest.raises((RunStopped, TrainingFailed)) as ended:
        supervise(PATIENT, toy_run.gang("--expendable"), ledger=toy_run.ledger, budget_scope="one", poll=poll)

    assert toy_run.survivors() == []
    # A guard that is told to end speaks for its machine, which another attempt may do without.
    assert isinstance(ended.value, TrainingFailed if victim == "guard" else RunStopped), ended.value
    assert {marker.state for marker in toy_run.attempt(1).read_markers().values()} == {"stopped"}


def all_are_expendable(toy_run) -> bool:
    files = toy_run.attempt(1)
    return files.read_status(1) is not None and all(
        "expendable" in {event.get("what") for event in read_events(files.rank_spool(rank))} for rank in (0, 1)
    )


def test_one_rank_that_stops_by_itself_stops_the_run(toy_run) -> None:
    with pytest.raises(RunStopped):
        run(toy_run, toy_run.gang(*trouble("stop"), "--steps", "9999", "--in-step"))
    assert {marker.state for marker in toy_run.attempt(1).read_markers().values()} == {"stopped"}


def test_an_interrupt_ends_everything_in_order_and_travels_on(toy_run) -> None:
    def interrupt_it(step: int) -> None:
        # Toys wait for nobody: both have to be at work.
        spools = [toy_run.attempt(1).rank_spool(rank) for rank in (0, 1)]
        if step >= 3 and all(spool.exists() and '"step"' in spool.read_text() for spool in spools):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(toy_run, toy_run.gang("--steps", "9999", "--children"), act=interrupt_it)

    assert toy_run.survivors() == []
    assert all((toy_run.folder / f"checkpoint-{rank}.txt").exists() for rank in (0, 1))
    assert AttemptRecords(toy_run.folder).all()[0].state == "stopped"


def test_a_run_has_one_owner(toy_run) -> None:
    with owning(toy_run.folder), pytest.raises(EnvironmentProblem, match=str(os.getpid())):
        run(toy_run, toy_run.gang())
    assert toy_run.num_attempts() == 0
