"""The guard against stand-in agents, small enough to start in milliseconds; real agents in test_supervisor.py."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from headway.training.launch.base.process_tree import processes_with, sweep
from headway.training.launch.base.protocol import (
    OWNER_SILENT,
    TOKEN,
    AttemptFiles,
    Command,
    NodeOrder,
    NodePlan,
    NodeStatus,
    RankMarker,
    write_json,
)
from headway.training.launch.node import node_ranks
from headway.training.launch.node.guard_watchdog import EXIT_STUCK
from headway.training.launch.node.node_ranks import NodeRanks
from headway.training.observe.ledger import read_events
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.process

OBEDIENT = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"
ENDLESS_S = 600.0
"""A grace that no test waits for."""
NEVER_ANSWERS = """
import os
import time

stat = os.stat


def never(path, *arguments, **named):
    if str(path).endswith("rank-4.json") and os.path.lexists(path):
        os.open(path, os.O_RDONLY)  # the test sees it here
        time.sleep(1e6)
    return stat(path, *arguments, **named)


os.stat = never
"""
"""A guard's `sitecustomize`: who asks for the marker of rank 4 waits for ever, as for a server that is gone."""
DEAF = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


class GuardedAgent:
    def __init__(self, folder: Path, script: str, **plan: Any) -> None:
        self.files = AttemptFiles(folder)
        self.token = secrets.token_hex(8)
        graces = dict.fromkeys(("stop_grace_s", "lost_grace_s", "peer_grace_s"), ENDLESS_S)
        values = {"owner_pid": os.getpid(), "node": 0, "attempt": 1, "attempt_dir": str(folder)}
        values |= {"argv": ("sh", "-c", script), "num_ranks": 1, "rank_python_path": "for ranks"}
        order = NodeOrder(plan=NodePlan(**values | graces | plan), environment={TOKEN: self.token})
        self.log = self.files.node_log(0)
        with self.log.open("wb") as log:
            self.guard = subprocess.Popen(
                [sys.executable, "-m", "headway.training.launch.node.node_guard"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | {TOKEN: self.token},
                start_new_session=True,
            )
        assert self.guard.stdin is not None
        self.guard.stdin.write(order.to_line())
        self.guard.stdin.flush()

    @property
    def status(self) -> NodeStatus | None:
        return self.files.read_status(0)

    @property
    def ended(self) -> NodeStatus:
        status = self.status
        assert status is not None and status.state == "ended", self.log.read_text()
        return status

    def tell(self, command: Command) -> None:
        assert self.guard.stdin is not None
        self.guard.stdin.write(command.value)
        self.guard.stdin.flush()

    def survivors(self) -> list[int]:
        return processes_with(TOKEN, self.token)


@pytest.fixture
def start(tmp_path: Path, wait_until: Callable[..., object]) -> Iterator[Callable[..., GuardedAgent]]:
    started: list[GuardedAgent] = []

    def start(script: str, **plan: Any) -> GuardedAgent:
        started.append(GuardedAgent(tmp_path, script, **plan))
        wait_until(lambda: started[-1].status is not None)
        wait_until(lambda: "ready" not in script or "ready" in started[-1].log.read_text())
        return started[-1]

    yield start
    for agent in started:
        agent.guard.kill()
        agent.guard.wait()
        sweep(TOKEN, agent.token)
        if agent.guard.stdin is not None:
            agent.guard.stdin.close()


def test_an_agent_that_ends_well_ends_its_guard_well(start: Callable[..., GuardedAgent]) -> None:
    agent = start("exit 0")
    assert agent.guard.wait(DEADLINE_S) == 0
    assert (agent.ended.agent_exit, agent.ended.why, agent.ended.swept) == (0, "", ())


def test_the_agents_end_is_told_and_written_into_the_guards_ledger(start: Callable[..., GuardedAgent]) -> None:
    agent = start("exit 7")
    assert agent.guard.wait(DEADLINE_S) == 1
    assert agent.ended.agent_exit == 7
    names = [event["event"] for event in read_events(agent.files.node_spool(0))]
    assert names == ["agent.begin", "agent.end"]


def test_a_guard_says_nothing_but_what_its_agent_says(start: Callable[..., GuardedAgent]) -> None:
    agent = start("echo palette")
    agent.guard.wait(DEADLINE_S)
    assert agent.log.read_text() == "palette\n"


def test_no_agents_end_is_missed_however_soon_it_comes(start: Callable[..., GuardedAgent]) -> None:
    for _ in range(5):
        agent = start("exit 0")
        agent.guard.wait(DEADLINE_S)
        assert agent.ended.agent_exit == 0


def test_ranks_import_from_their_own_path_and_know_their_guard(start: Callable[..., GuardedAgent]) -> None:
    agent = start('echo "$PYTHONPATH $HEADWAY_GUARD_PID"')
    agent.guard.wait(DEADLINE_S)
    assert agent.log.read_text() == f"for ranks {agent.guard.pid}\n"


@pytest.mark.parametrize("how", ["stop", "terminate", "interrupt", "lifeline"])
def test_an_obedient_agent_is_ended_in_order(start: Callable[..., GuardedAgent], how: str) -> None:
    agent = start(OBEDIENT)
    assert agent.guard.stdin is not None
    {
        "stop": lambda: agent.tell(Command.STOP),
        "terminate": agent.guard.terminate,
        "interrupt": lambda: agent.guard.send_signal(signal.SIGINT),
        "lifeline": agent.guard.stdin.close,
    }[how]()
    agent.guard.wait(DEADLINE_S)
    assert agent.ended.agent_exit in (0, -signal.SIGTERM)
    assert agent.ended.why
    assert agent.survivors() == []


@pytest.mark.parametrize(
    ("command", "grace"), [(Command.STOP, "stop_grace_s"), (Command.PEER_LOST, "peer_grace_s"), (None, "lost_grace_s")]
)
def test_a_deaf_agent_is_killed_when_its_grace_is_over(
    start: Callable[..., GuardedAgent], command: Command | None, grace: str
) -> None:
    # The stand-in keeps a child, so that it is not taken for an agent that lingers without ranks.
    agent = start(f"trap '' TERM; sleep 6000 & {DEAF}", **{grace: 0.5})
    if command is None:
        assert agent.guard.stdin is not None
        agent.guard.stdin.close()
    else:
        agent.tell(command)
    agent.guard.wait(DEADLINE_S)
    assert agent.ended.agent_exit == -signal.SIGKILL
    assert 0.5 <= agent.ended.stop_s < ENDLESS_S
    assert agent.survivors() == []


def test_a_later_reason_may_shorten_the_grace_but_never_lengthen_it(start: Callable[..., GuardedAgent]) -> None:
    agent = start(f"sleep 6000 & {DEAF}", peer_grace_s=0.5)
    agent.tell(Command.STOP)
    agent.tell(Command.PEER_LOST)
    agent.tell(Command.STOP)
    agent.guard.wait(DEADLINE_S)
    assert agent.ended.why == "stop"


def test_an_agent_that_lingers_without_ranks_is_not_waited_for(start: Callable[..., GuardedAgent]) -> None:
    deaf_alone = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)"
    agent = start(f'exec {sys.executable} -c "{deaf_alone}; time.sleep(6000)"')
    agent.tell(Command.STOP)
    agent.guard.wait(DEADLINE_S)
    assert agent.ended.agent_exit == -signal.SIGKILL


def test_what_ranks_started_for_themselves_is_swept(start: Callable[..., GuardedAgent]) -> None:
    agent = start("setsid sleep 6000 & (setsid sleep 6001 &) ; sleep 0.2; exit 0")
    agent.guard.wait(DEADLINE_S)
    assert len(agent.ended.swept) == 2
    assert agent.survivors() == []


def test_a_killed_guard_takes_its_agent_with_it(
    start: Callable[..., GuardedAgent], wait_until: Callable[..., object]
) -> None:
    agent = start("exec sleep 6000")
    wait_until(lambda: len(agent.survivors()) == 2)
    agent.guard.kill()
    agent.guard.wait()
    wait_until(lambda: not agent.survivors())


def test_a_guard_whose_owner_is_gone_already_starts_nothing_that_stays(start: Callable[..., GuardedAgent]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    agent = start("exec sleep 6000", owner_pid=gone.pid)
    agent.guard.wait(DEADLINE_S)
    assert "owner was gone" in agent.ended.why


def _marker(agent: GuardedAgent, **fields: Any) -> RankMarker:
    status = agent.status
    assert status is not None
    values = {"rank": 3, "pid": 999_999_999, "parent_pid": status.agent_pid, "state": "running", "unix_s": 0.0}
    return RankMarker(**values | fields)


def test_a_rank_that_vanished_without_a_word_ends_the_node(start: Callable[..., GuardedAgent]) -> None:
    agent = start(f"sleep 6000 & {OBEDIENT}")
    write_json(agent.files.marker(3), asdict(_marker(agent)))
    agent.guard.wait(DEADLINE_S)
    assert agent.ended.lost_ranks == (3,)
    assert agent.ended.why == "rank 3 vanished"


def test_a_rank_that_vanished_is_named_though_the_peers_it_left_are_heard_of_first(
    start: Callable[..., GuardedAgent],
) -> None:
    agent = start(f"sleep 6000 & {OBEDIENT}")
    agent.guard.send_signal(signal.SIGSTOP)  # as on a busy machine
    write_json(agent.files.marker(3), asdict(_marker(agent)))
    agent.tell(Command.PEER_LOST)
    agent.guard.send_signal(signal.SIGCONT)
    agent.guard.wait(DEADLINE_S)
    assert (agent.ended.why, agent.ended.lost_ranks) == ("a peer was lost", (3,))


def test_a_rank_that_failed_ends_the_node_however_long_the_agent_would_wait(start: Callable[..., GuardedAgent]) -> None:
    agent = start(f"sleep 6000 & {DEAF}", peer_grace_s=0.3)
    write_json(agent.files.marker(3), asdict(_marker(agent, state="failed")))
    agent.guard.wait(DEADLINE_S)
    assert (agent.ended.why, agent.ended.lost_ranks) == ("rank 3 failed", ())


def test_a_rank_of_another_node_is_not_this_guards_business(
    start: Callable[..., GuardedAgent], wait_until: Callable[..., object]
) -> None:
    agent = start("sleep 0.5; exit 0")
    write_json(agent.files.marker(3), asdict(_marker(agent, parent_pid=1)))
    # On another host, whose processes are counted like ours.
    write_json(agent.files.marker(4), asdict(_marker(agent, rank=4, node=1)))
    assert agent.guard.wait(DEADLINE_S) == 0
    assert agent.ended.lost_ranks == ()


def test_a_guard_that_knows_its_ranks_reads_what_no_other_writes(
    start: Callable[..., GuardedAgent], wait_until: Callable[..., object], tmp_path: Path
) -> None:
    number = tmp_path / "number"
    agent = start(f"sleep 6000 & echo $! > {number}; {OBEDIENT}")
    write_json(agent.files.marker(3), asdict(_marker(agent, pid=int(number.read_text()))))
    wait_until(lambda: 3 in agent.files.read_vitals())
    os.mkfifo(agent.files.marker(4))  # who reads it waits for ever
    seen = agent.files.vitals(0).stat().st_mtime_ns
    wait_until(lambda: agent.files.vitals(0).stat().st_mtime_ns > seen)
    agent.files.marker(4).unlink()
    write_json(agent.files.marker(3), asdict(_marker(agent, state="failed")))
    agent.guard.wait(DEADLINE_S)
    assert agent.ended.why == "rank 3 failed"


def test_an_owner_on_another_host_that_falls_silent_is_taken_for_gone(
    start: Callable[..., GuardedAgent], wait_until: Callable[..., object]
) -> None:
    agent = start(f"sleep 6000 & {DEAF}", owner_pid=None, lease_s=1.0, lost_grace_s=0.5)
    started_s = time.monotonic()
    while time.monotonic() - started_s < 3.0:
        agent.tell(Command.BEAT)
        time.sleep(0.1)
    status = agent.status
    assert status is not None and status.state == "running", "its owner's beat came in time"
    agent.guard.wait(DEADLINE_S)
    assert agent.ended.why == OWNER_SILENT
    assert agent.survivors() == []


@pytest.mark.parametrize("how", ["lets go", "is silent"])
def test_nobody_outlives_the_owner_by_a_file_system_that_never_answers(
    start: Callable[..., GuardedAgent],
    wait_until: Callable[..., object],
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "sitecustomize.py").write_text(NEVER_ANSWERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "python"))
    told = {"owner_pid": None, "lease_s": 1.0} if how == "is silent" else {}
    agent = start(f"setsid sleep 6000 & {DEAF}", lost_grace_s=0.3, **told)
    os.mkfifo(agent.files.marker(4))

    def is_held_up() -> int | None:
        with contextlib.suppress(OSError):
            return os.open(agent.files.marker(4), os.O_WRONLY | os.O_NONBLOCK)
        return None

    held = wait_until(is_held_up)
    assert isinstance(held, int)
    agent.tell(Command.BEAT)  # which nobody reads
    assert agent.guard.stdin is not None and agent.guard.poll() is None
    if how == "lets go":
        agent.guard.stdin.close()
    assert agent.guard.wait(DEADLINE_S) == EXIT_STUCK
    wait_until(lambda: not agent.survivors())
    os.close(held)


def test_a_guard_without_an_order_starts_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headway.training.launch.node.node_guard"], input=b'{"plan": {', cwd=tmp_path
    )
    assert done.returncode == 2


def test_the_guard_looks_at_its_ranks_processes(
    start: Callable[..., GuardedAgent], wait_until: Callable[..., object], tmp_path: Path
) -> None:
    number = tmp_path / "number"
    agent = start(f"sleep 6000 & echo $! > {number}; echo ready; sleep 6001")
    pid = int(number.read_text())
    write_json(agent.files.marker(3), asdict(_marker(agent, pid=pid)))
    wait_until(lambda: 3 in agent.files.read_vitals())
    assert agent.files.read_vitals()[3].state == "S"
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: agent.files.read_vitals()[3].state == "T")


def test_a_rank_that_begins_while_the_guard_looks_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its marker may be read after a look at the processes that came too early for it."""
    looking = NodeRanks(AttemptFiles(tmp_path), node=0, num_ranks=1, agent_pid=os.getpid())
    rank = subprocess.Popen(["sleep", "600"])
    try:
        running = RankMarker(rank=3, pid=rank.pid, parent_pid=os.getpid(), state="running", unix_s=0.0)
        write_json(AttemptFiles(tmp_path).marker(3), asdict(running))
        really, looks = node_ranks.is_child, itertools.count()
        monkeypatch.setattr(node_ranks, "is_child", lambda pid, of: bool(next(looks)) and really(pid, of=of))
        assert looking.lost() == ()
    finally:
        rank.kill()
        rank.wait()
    assert looking.lost() == (3,)


def test_a_marker_is_read_again_only_once_it_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, read = AttemptFiles(tmp_path), list[object]()
    really = AttemptFiles.read_markers
    monkeypatch.setattr(
        AttemptFiles, "read_markers", lambda self, ranks=None: read.append(ranks) or really(self, ranks)
    )
    looking = NodeRanks(files, node=0, num_ranks=1, agent_pid=os.getpid())
    running = RankMarker(rank=3, pid=os.getpid(), parent_pid=os.getpid(), state="failed", unix_s=0.0)

    def write(marker: RankMarker, mtime_ns: int) -> None:
        write_json(files.marker(3), asdict(marker))
        os.utime(files.marker(3), ns=(mtime_ns, mtime_ns))

    write(running, 1)
    assert [looking.failed() for _ in range(5)] == [[3]] * 5
    assert read == [None, {3}]
    write(replace(running, state="stopped"), 2)
    assert [looking.failed() for _ in range(5)] == [[]] * 5
    assert read == [None, {3}, {3}]
    # What was written within the clock's tick may be written over by what looks like it.
    write(running, time.time_ns() + 10**9)
    read.clear()
    assert [looking.failed() for _ in range(3)] == [[3]] * 3 and read == [{3}] * 3


def test_no_rank_is_lost_by_a_marker_that_only_looks_like_the_one_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = AttemptFiles(tmp_path)
    looking = NodeRanks(files, node=0, num_ranks=1, agent_pid=os.getpid())
    running = RankMarker(rank=3, pid=os.getpid(), parent_pid=os.getpid(), state="running", unix_s=0.0)
    write_json(files.marker(3), asdict(running))
    os.utime(files.marker(3), ns=(1, 1))
    monkeypatch.setattr(node_ranks, "is_child", lambda *_, **__: True)
    assert looking.lost() == () and looking.lost() == ()
    before = files.marker(3).stat()
    text = json.dumps({**asdict(running), "state": "stopped"})
    files.marker(3).write_text(text)  # the same inode, size and time
    os.utime(files.marker(3), ns=(1, 1))
    after = files.marker(3).stat()
    assert (before.st_ino, before.st_size, before.st_mtime_ns) == (after.st_ino, after.st_size, after.st_mtime_ns)
    monkeypatch.setattr(node_ranks, "is_child", lambda *_, **__: False)
    assert looking.lost() == ()
