"""The guard of one node: parent and only owner of one torchrun agent, and of all that descends from it.

    owner ──lifeline and pidfd or lease──► guard ──death signal──► agent ──death signal──► ranks

The first line down the lifeline, its stdin, is the guard's order; single bytes follow. When the owner goes, the
lifeline ends and the pidfd fires; on another host than the guard's, where a link may be cut and no pidfd reaches, the
owner's beat stays out instead. When the guard or the agent goes, the kernel kills what is
below; what a rank started for itself comes to the guard as an orphan and is killed at the end. Standard library only,
and one thread, but for one that waits for the case that a file system never answers. The guard stands in a session of
its own, so that no terminal or process group reaches it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headway.training.launch.base import protocol
from headway.training.launch.base.log_times import LogTimes
from headway.training.launch.base.process_tree import (
    ALREADY_DEAD,
    adopt_orphans,
    descendants,
    die_with_parent,
    kill_descendants,
    process_state,
    send_signal,
)
from headway.training.launch.base.protocol import AttemptFiles, Command, NodeOrder, NodeStatus, write_json
from headway.training.launch.node.guard_watchdog import GuardWatchdog
from headway.training.launch.node.json_log import JsonLog, take_pipe
from headway.training.launch.node.node_ranks import NodeRanks
from headway.training.observe.ledger import Ledger

TICK_S = 0.1
CHILDLESS_S = 1.0
"""While stopping: how long an agent without ranks may linger in its own teardown."""
LIFELINE = 0


StartAgent = Callable[[Sequence[str], Mapping[str, str], Callable[[], None]], int]
"""Takes the agent's command, its environment and what the agent does first; returns its number."""


class NodeGuard:
    """Args:
    owner: a descriptor that fires when the owner ends, for a guard that is not its child.
    start_agent: where the agent is no program that is started afresh.
    """

    def __init__(self, order: NodeOrder, owner: int | None = None, start_agent: StartAgent | None = None) -> None:
        self._order, self._given_owner, self._fork_agent = order, owner, start_agent
        self._plan = plan = order.plan
        self._files = AttemptFiles(Path(plan.attempt_dir))
        self._ledger = Ledger(self._files.node_spool(plan.node), node=plan.node, attempt=plan.attempt)
        self._log_times = LogTimes(self._files, plan.node)
        self._json_log = JsonLog(
            self._files, plan.node, plan.num_ranks, plan.attempt, order.environment, take_pipe(os.environ)
        )
        self._poll = select.poll()
        self._status: NodeStatus
        self._ranks: NodeRanks
        self._watchdog = GuardWatchdog(LIFELINE, plan.lease_s, plan.lost_grace_s)
        self._deadline: float | None = None
        self._stopping_since = 0.0
        self._childless_since: float | None = None
        self._is_childless = False
        # A set: a process that is killed in one round is seen again in the next until it has been reaped.
        self._swept: set[int] = set()
        self._signals: list[int] = []
        self._last_command_s = time.monotonic()

    def run(self) -> int:
        """Start the agent, watch it to its end, leave nobody behind.

        Returns:
            0 when the agent ended well, 1 otherwise; the status file says more.
        """
        # Before the agent exists: what a rank detaches by a double fork would otherwise become init's child.
        adopt_orphans()
        self._listen()
        # Held to the end: an unused Popen would reap the agent behind our back, and its exit status would be lost.
        agent = self._start_agent()
        agent_pid = agent if isinstance(agent, int) else agent.pid
        self._status = NodeStatus(
            node=self._plan.node,
            host=socket.gethostname(),
            guard_pid=os.getpid(),
            agent_pid=agent_pid,
            state="running",
        )
        self._ranks = NodeRanks(self._files, self._plan.node, self._plan.num_ranks, agent_pid)
        self._watchdog.start()
        self._publish()
        self._ledger.event("agent.begin", pid=agent_pid)
        while not self._is_childless:
            # Commands come before ranks: a stop that arrives in this round must not be read as ranks that vanished.
            self._watchdog.begin_round()
            self._read_commands()
            self._reap()
            self._watch_ranks()
            self._ranks.note_vitals()
            self._log_times.look()
            self._json_log.look()
            self._hurry_a_childless_agent()
            # Once the agent is gone nobody passes signals on to its ranks, so what it left behind is killed at once.
            if self._status.agent_exit is not None or self._is_over_deadline():
                self._swept |= kill_descendants()
        self._publish_last_status()
        return 0 if self._status.agent_exit == 0 else 1

    def _listen(self) -> None:
        # Python resumes an interrupted `poll`, so a handler alone would wake nobody; a byte in this pipe does.
        receiver, sender = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: self._signals.append(number))
        # It does nothing, but without a handler Python writes no wake-up byte, and a child's end wakes nobody.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        self._wakeup = receiver
        # The first line was read blocking; from here on a half-sent command must not hold the guard up.
        os.set_blocking(LIFELINE, False)
        self._owner = self._given_owner
        if self._owner is None and self._plan.owner_pid is not None:
            self._owner = _watch_parent(self._plan.owner_pid)
        for descriptor in (self._wakeup, LIFELINE, self._owner):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    def _start_agent(self) -> subprocess.Popen[bytes] | int:
        guard_pid = os.getpid()

        def tie_to_guard() -> None:
            # The signal is asked for first, and the parent compared afterwards: the guard may have died in between.
            die_with_parent()
            if os.getppid() != guard_pid:
                os._exit(1)

        environment = {
            **os.environ,
            **self._order.environment,
            protocol.GUARD_PID: str(guard_pid),
            "PYTHONPATH": self._plan.rank_python_path,
        }
        if self._fork_agent is not None:
            return self._fork_agent(self._plan.argv, environment, tie_to_guard)
        # The guard has one thread, so running code between fork and exec is safe.
        return subprocess.Popen(
            self._plan.argv,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            preexec_fn=tie_to_guard,
        )

    def _read_commands(self) -> None:
        """Wait a tick for signals, commands and the owner's end."""
        # The pidfd could not be opened: the owner was gone, or the guard had another parent, before the watch began.
        if self._owner is None and self._plan.owner_pid is not None and self._status.state == "running":
            self._stop(protocol.OWNER_GONE, self._plan.lost_grace_s)
        lease_s = self._plan.lease_s
        if (
            lease_s is not None
            and self._status.state == "running"
            and time.monotonic() - self._last_command_s > lease_s
        ):
            self._stop(protocol.OWNER_SILENT, self._plan.lost_grace_s)
        # Short, because ranks leave markers and no events: they are looked at once a round.
        for descriptor, _ in self._poll.poll(TICK_S * 1000):
            if descriptor == self._wakeup:
                os.read(descriptor, 4096)
            elif descriptor == LIFELINE:
                self._read_lifeline()
            else:
                # A pidfd stays readable for good, and the loop would spin.
                self._poll.unregister(descriptor)
                self._stop(protocol.OWNER_ENDED, self._plan.lost_grace_s)
        while self._signals:
            self._stop(f"{signal.Signals(self._signals.pop()).name} came", self._plan.stop_grace_s)

    def _read_lifeline(self) -> None:
        try:
            data = os.read(LIFELINE, 64)
        except BlockingIOError:
            return
        if not data:
            self._poll.unregister(LIFELINE)
            self._stop(protocol.OWNER_RELEASED, self._plan.lost_grace_s)
        # Any byte renews the lease, so that a command needs no beat beside it.
        self._last_command_s = time.monotonic()
        for byte in data:
            self._obey(Command(bytes([byte])))

    def _obey(self, command: Command) -> None:
        if command is Command.STOP:
            self._stop("stop", self._plan.stop_grace_s)
        elif command is Command.PEER_LOST:
            self._stop("a peer was lost", self._plan.peer_grace_s)
        elif command is Command.STACKS:
            for pid in self._ranks.pids():
                send_signal(pid, signal.SIGUSR2)

    def _stop(self, why: str, grace_s: float) -> None:
        """Ask the agent, which asks its ranks; a later reason may shorten the grace, never lengthen it."""
        now = time.monotonic()
        self._deadline = min(self._deadline or now + grace_s, now + grace_s)
        if self._status.state != "running" or self._status.agent_exit is not None:
            return
        # Who vanished before anybody was asked to stop broke the gang, though its peers were the first to say so.
        # A dead agent takes its ranks with it; those would look like ranks that vanished first.
        if process_state(self._status.agent_pid) not in ALREADY_DEAD:
            self._note_lost_ranks()
        self._stopping_since = now
        self._change(state="stopping", why=why)
        self._ledger.event("agent.stop", why=why, grace_s=grace_s)
        # To the agent alone: torchrun passes it on, and so knows that its ranks' ends were asked for.
        send_signal(self._status.agent_pid, signal.SIGTERM)

    def _watch_ranks(self) -> None:
        """A rank that vanished or failed breaks the gang: its peers wait for nothing."""
        if self._status.state != "running" or self._status.agent_exit is not None:
            return
        lost = self._note_lost_ranks()
        if lost and process_state(self._status.agent_pid) in ALREADY_DEAD:
            # They fell with their agent, whose end the next round hears of.
            return
        if lost:
            self._stop(f"rank {lost[0]} vanished", self._plan.peer_grace_s)
        elif failed := self._ranks.failed():
            self._stop(f"rank {failed[0]} failed", self._plan.peer_grace_s)

    def _note_lost_ranks(self) -> tuple[int, ...]:
        lost = self._ranks.lost()
        if lost and lost != self._status.lost_ranks:
            self._change(lost_ranks=lost)
            self._ledger.event("rank.lost", ranks=lost)
        return lost

    def _reap(self) -> None:
        # Any child, as a subreaper: orphans of ranks arrive here without ever having been started by this process.
        while not self._is_childless:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_childless = True
                return
            if pid == 0:
                return
            if pid == self._status.agent_pid:
                self._change(agent_exit=os.waitstatus_to_exitcode(status))
                if self._status.state == "running":
                    # `_watch_ranks` does nothing from now on, so ranks that vanished before their agent are noted here.
                    self._note_lost_ranks()

    def _hurry_a_childless_agent(self) -> None:
        if self._deadline is None or self._status.agent_exit is not None:
            # torchrun may linger in its own teardown after its ranks have ended, for as long as the whole grace.
            return
        now = time.monotonic()
        if descendants(self._status.agent_pid):
            self._childless_since = None
        else:
            self._childless_since = self._childless_since or now
            if now - self._childless_since > CHILDLESS_S:
                self._deadline = now

    def _is_over_deadline(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _change(self, **changes: object) -> None:
        self._status = dataclasses.replace(self._status, **changes)  # type: ignore[arg-type]
        self._publish()

    def _publish(self) -> None:
        # A full disk must not cost the guard its duty.
        with contextlib.suppress(OSError):
            write_json(self._files.status(self._plan.node), dataclasses.asdict(self._status))

    def _publish_last_status(self) -> None:
        self._log_times.look(at_once=True)
        self._json_log.finish()
        stop_s = time.monotonic() - self._stopping_since if self._stopping_since else 0.0
        self._change(state="ended", swept=tuple(sorted(self._swept)), stop_s=round(stop_s, 3))
        self._ledger.event(
            "agent.end", exit=self._status.agent_exit, why=self._status.why, swept=len(self._swept), stop_s=stop_s
        )


def _watch_parent(pid: int) -> int | None:
    """A descriptor that fires when the parent ends, or None when it already has."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    # Checked after the open: while the parent is unchanged its number cannot have been reused.
    if os.getppid() == pid:
        return descriptor
    os.close(descriptor)
    return None


def _read_line(descriptor: int) -> bytes:
    """Without a byte of what follows; empty where the end comes first."""
    # Byte by byte: a larger read would swallow the commands that follow the line.
    line = bytearray()
    while not line.endswith(b"\n"):
        if not (byte := os.read(descriptor, 1)):
            return b""
        line += byte
    return bytes(line)


def main(owner: int | None = None, start_agent: StartAgent | None = None) -> int:
    """Args: as `NodeGuard`."""
    line = _read_line(LIFELINE)
    if not line:
        # The owner went away before it gave its order; nothing was started, so nothing has to be swept.
        return 2
    order = NodeOrder.from_line(line)
    # What a rank leaves behind must not hold the connection by which the guard was started.
    log = os.open(
        AttemptFiles(Path(order.plan.attempt_dir)).node_log(order.plan.node),
        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
        0o644,
    )
    for stream in (1, 2):
        os.dup2(log, stream)
    return NodeGuard(order, owner, start_agent).run()


if __name__ == "__main__":
    sys.exit(main())
