"""The owner's own death, in every way: nothing stays behind, and the next owner goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.training.launch.base.fence import acquire
from headway.training.launch.base.gang import Attempt, LaunchSpec
from headway.training.launch.base.launcher import Handle, draw_token
from headway.training.launch.base.process_tree import (
    ALREADY_DEAD,
    is_child,
    process_state,
    processes_with,
    send_signal,
    sweep,
)
from headway.training.launch.base.protocol import NO_TOKEN, TOKEN, Command
from headway.training.launch.supervise.launchers import launcher_for
from headway.training.launch.supervise.supervisor import supervise
from headway.training.observe.ledger import read_events

TOYS = Path(__file__).parents[1] / "toys"
SPEC = LaunchSpec(lost_grace_s=2, peer_grace_s=1)
PATIENT = LaunchSpec(lost_grace_s=600)
"""For ranks that end in order, however busy the machine."""

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("toy_agents")]


@pytest.fixture
def own(toy_run, wait_until: Callable[..., object]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts an owner and waits until its ranks make steps."""
    owners: list[subprocess.Popen[bytes]] = []

    def both_are_expendable() -> bool:
        spools = [toy_run.attempt(1).rank_spool(rank) for rank in (0, 1)] if toy_run.num_attempts() else []
        return bool(spools) and all("expendable" in {e.get("what") for e in read_events(spool)} for spool in spools)

    def both_are_at_work() -> bool:
        """Toys wait for nobody: one may be far while the other is still starting its children."""
        if not toy_run.num_attempts() or not all(toy_run.attempt(1).read_status(node) for node in (0, 1)):
            return False
        spools = [toy_run.attempt(1).rank_spool(rank) for rank in (0, 1)]
        return all("step" in {event["event"] for event in read_events(spool)} for spool in spools)

    def own(*arguments: str, spec: LaunchSpec = SPEC, agents: str = "toys") -> subprocess.Popen[bytes]:
        told = (str(toy_run.folder), spec.model_dump_json(), agents, *arguments)
        command = [sys.executable, str(TOYS / "toy_owner.py"), *told]
        # A process started in the background ignores SIGINT; a person's shell does not start one so.
        owners.append(subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)))
        is_there = both_are_expendable if "--expendable" in arguments else both_are_at_work
        wait_until(is_there)
        return owners[-1]

    yield own
    for owner in owners:
        owner.kill()
        owner.wait()
    if (handle := Handle.load(toy_run.folder)) is not None:
        sweep(TOKEN, handle.token)


@pytest.mark.parametrize(
    ("number", "agents"),
    [(signal.SIGKILL, "torchrun"), (signal.SIGKILL, "forks"), (signal.SIGTERM, "toys"), (signal.SIGINT, "toys")],
)
def test_nothing_outlives_its_owner(toy_run, own, wait_until, number: signal.Signals, agents: str) -> None:
    owner = own("--steps", "9999", "--children", spec=PATIENT, agents=agents)
    # Two guards, agents and ranks, and what the ranks started.
    wait_until(lambda: len(toy_run.survivors()) >= 10)
    server = [pid for pid in processes_with(TOKEN, NO_TOKEN) if is_child(pid, of=(owner.pid,))]
    assert len(server) == (agents == "forks")

    owner.send_signal(number)

    wait_until(lambda: not toy_run.survivors())
    wait_until(lambda: all(process_state(pid) in ALREADY_DEAD for pid in server))
    assert all((toy_run.folder / f"checkpoint-{rank}.txt").exists() for rank in (0, 1)), "in order, if it can be"


def test_work_that_leaves_nothing_to_keep_ends_with_its_owner_at_once(toy_run, own, wait_until) -> None:
    own("--expendable", spec=PATIENT).terminate()
    wait_until(lambda: not toy_run.survivors())
    assert {marker.state for marker in toy_run.attempt(1).read_markers().values()} == {"stopped"}


def test_ranks_that_ignore_it_do_not_outlive_their_owner_either(toy_run, own, wait_until) -> None:
    own("--steps", "9999", "--deaf").kill()
    wait_until(lambda: not toy_run.survivors())


def test_halted_ranks_do_not_outlive_their_owner_either(toy_run, own, wait_until) -> None:
    owner = own("--steps", "9999")
    for marker in toy_run.attempt(1).read_markers().values():
        send_signal(marker.pid, signal.SIGSTOP)
    owner.kill()
    wait_until(lambda: not toy_run.survivors())


def test_a_halted_guard_lets_nobody_outlive_the_owner(toy_run, own, wait_until) -> None:
    owner = own("--steps", "9999", "--children")
    for node in (0, 1):
        send_signal(toy_run.attempt(1).read_status(node).guard_pid, signal.SIGSTOP)
    owner.kill()
    wait_until(lambda: not toy_run.survivors())


def test_one_halted_guard_of_two_lets_nobody_outlive_the_owner(toy_run, own, wait_until) -> None:
    owner = own("--steps", "9999", "--children")
    send_signal(toy_run.attempt(1).read_status(1).guard_pid, signal.SIGSTOP)
    owner.kill()
    wait_until(lambda: not toy_run.survivors())


def test_a_guard_killed_with_its_owner_lets_nobody_outlive_them(toy_run, own, wait_until) -> None:
    owner = own("--steps", "9999", "--children")
    for pid in (*(toy_run.attempt(1).read_status(node).guard_pid for node in (0, 1)), owner.pid):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not toy_run.survivors())


def test_the_next_owner_ends_what_is_left_before_it_goes_on(toy_run, own) -> None:
    owner = own("--steps", "9999", "--children")
    left = Handle.load(toy_run.folder)
    assert left is not None
    # Guard and owner at once: what ranks started for themselves has nobody to end it.
    guards = [toy_run.attempt(1).read_status(node).guard_pid for node in (0, 1)]
    for pid in (*guards, owner.pid):
        os.kill(pid, signal.SIGKILL)
    owner.wait()
    assert processes_with(TOKEN, left.token)

    steps = str(toy_run.newest_step() + 3)
    gang = toy_run.gang("--steps", steps)
    outcome = supervise(SPEC, gang, ledger=toy_run.ledger, budget_scope="one", poll=toy_run.newest_step)

    assert outcome.state == "done"
    assert processes_with(TOKEN, left.token) == []
    assert toy_run.num_attempts() == 2


def attempt_of(toy_run, token: str) -> Attempt:
    return Attempt(
        number=1,
        folder=toy_run.folder / "attempts" / "001",
        token=token,
        rendezvous_id="t",
        members=launcher_for(SPEC).probe_hosts(toy_run.gang()).members,
        owner_pid=os.getpid(),
    )


def test_rendering_starts_nothing_and_writes_nothing(toy_run) -> None:
    attempt = attempt_of(toy_run, "t")
    before = sorted(toy_run.folder.iterdir())
    commands = launcher_for(SPEC).render(toy_run.gang(), attempt)
    assert [command.node for command in commands] == [0, 1]
    assert sorted(toy_run.folder.iterdir()) == before


def test_a_handle_is_json_that_leads_back(toy_run) -> None:
    handle = Handle(launcher="local", host="here", owner_pid=1, token="t", attempt=3)
    handle.save(toy_run.folder)
    assert json.loads((toy_run.folder / "launch.json").read_text())["attempt"] == 3
    assert Handle.load(toy_run.folder) == handle


def test_a_handle_of_what_waits_to_fork_is_of_no_attempt(toy_run) -> None:
    """To end what is left of such an attempt would end the servers that wait to fork, of any run."""
    Handle(launcher="local", host="here", owner_pid=1, token=NO_TOKEN, attempt=3).save(toy_run.folder)
    assert Handle.load(toy_run.folder) is None


@pytest.mark.parametrize("change", ["planted", "copied"])
def test_a_handle_that_was_put_or_copied_there_ends_no_other_run(toy_run, tmp_path: Path, change: str) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    theirs.mkdir()
    token = draw_token(theirs)
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, TOKEN: token})
    try:
        Handle(launcher="local", host=socket.gethostname(), owner_pid=1, token=token, attempt=1).save(theirs)
        if change == "copied":
            shutil.copytree(theirs, mine)
        else:
            mine.mkdir()
            (mine / "launch.json").write_bytes((theirs / "launch.json").read_bytes())
        launcher = launcher_for(LaunchSpec(lost_grace_s=0))
        launcher.reattach(mine)
        assert other.poll() is None
        launcher.reattach(theirs.rename(tmp_path / "renamed"))
        assert process_state(other.pid) in ALREADY_DEAD, "of its own folder, whatever that is called by now"
    finally:
        other.kill()
        other.wait()


def test_a_second_interrupt_ends_the_patience_and_not_the_cleaning_up(toy_run, wait_until, monkeypatch) -> None:
    launcher = launcher_for(SPEC)
    attempt = attempt_of(toy_run, "token-of-this-test")
    attempt.folder.mkdir(parents=True)
    acquire(toy_run.folder, attempt.folder)
    handle = launcher.submit(toy_run.gang(), attempt)
    wait_until(lambda: len(toy_run.survivors()) >= 4)

    def interrupted(_patience_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "_wait_for_all", interrupted)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launcher.cancel(handle, grace_s=600)
    assert time.monotonic() - begin < 600
    assert toy_run.survivors() == []
    launcher.signal(handle, Command.STOP)  # to nobody, and no error
