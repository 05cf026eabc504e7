"""A gang of one rank has an agent that imports nothing: it starts in a moment, and keeps torchrun's promises."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

from headway.data_contracts.store.errors import RunStopped
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.stop_request import request_stop
from headway.training.launch.node.lone_agent import environment, main
from headway.training.launch.supervise.supervisor import supervise
from tests.waiting import wait_until

pytestmark = pytest.mark.process

SPEC = LaunchSpec(nodes=1, backoff_s=0.0)


def run(toy_run, *arguments: str):
    gang = toy_run.gang(*arguments, nodes=1)
    return supervise(SPEC, gang, ledger=toy_run.ledger, budget_scope="one", poll=toy_run.newest_step)


def test_the_rank_finds_what_torchrun_would_tell_it_and_writes_where_its_ranks_do(tmp_path, monkeypatch) -> None:
    (tmp_path / "told.py").write_text("import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "127.0.0.1:4711")
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert main(str(tmp_path / "logs"), "t-4", "told", "--run", "abc") == 0
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    told, argv = json.loads((tmp_path / "logs" / "t-4" / "attempt_0" / "0" / "stdout.log").read_text())
    assert told.items() >= environment("t-4", "127.0.0.1:4711").items() and argv == ["--run", "abc"]
    assert (told["RANK"], told["WORLD_SIZE"], told["MASTER_PORT"]) == ("0", "1", "4711")


def test_it_is_done_without_torchrun_and_its_words_are_kept(toy_run) -> None:
    assert run(toy_run, "--steps", "3").state == "done"
    (log,) = toy_run.attempt(1).rank_logs(0).glob("**/stdout.log")
    assert log.read_text().splitlines() == [f"toy 0 at {step}" for step in (1, 2, 3)]
    assert log.parts[-3:-1] == ("attempt_0", "0")
    assert "torch" not in toy_run.attempt(1).node_log(0).read_text()


@pytest.mark.parametrize("victim", ["rank", "agent", "guard"])
def test_a_kill_costs_an_attempt_and_leaves_nobody(toy_run, victim: str) -> None:
    def kill_at_the_first_step() -> None:
        wait_until(lambda: toy_run.newest_step() is not None)
        status, marker = toy_run.attempt(1).read_status(0), toy_run.attempt(1).read_markers()[0]
        pids = {"rank": marker.pid, "agent": status.agent_pid, "guard": status.guard_pid}
        assert marker.parent_pid == status.agent_pid
        os.kill(pids[victim], signal.SIGKILL)

    killer = threading.Thread(target=kill_at_the_first_step)
    killer.start()
    outcome = run(toy_run, "--steps", "20", "--children")
    killer.join()
    assert outcome.state == "done" and toy_run.num_attempts() == 2
    assert toy_run.survivors() == []
    assert toy_run.events("attempt")[0]["cause"] == "infrastructure"


def test_a_request_to_stop_reaches_the_rank_which_keeps_a_checkpoint(toy_run) -> None:
    def stop() -> None:
        wait_until(lambda: toy_run.newest_step() is not None)
        request_stop(toy_run.folder, "enough")

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(RunStopped, match="enough"):
        run(toy_run, "--steps", "100000")
    stopper.join()
    assert int((toy_run.folder / "checkpoint-0.txt").read_text()) > 0
    assert toy_run.attempt(1).read_markers()[0].state == "stopped"
