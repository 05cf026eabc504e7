"""The owned launcher: every node a guarded agent, here or on other hosts; the run ends with its owner.

    owner ──lifeline──► transport's client (none on this machine) ──► guard ──► agent ──► ranks

A guard learns what to do, and its ranks' environment, by the first line down its lifeline, so that nothing of either
appears in a list of processes or a file. On another host it also gets a beat every second: a lifeline does not
end when a link is cut or the owner is halted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from headway.data_contracts.store.regular_files import open_to_write
from headway.training.launch.base.gang import (
    Attempt,
    Gang,
    LaunchSpec,
    agent_argv,
    inherited_environment,
    rank_environment,
    rank_python_path,
)
from headway.training.launch.base.host_facts import collect_host_facts
from headway.training.launch.base.host_probe import Host, HostProbe, Member
from headway.training.launch.base.launcher import Handle, NodeCommand, NodeReport
from headway.training.launch.base.process_tree import sweep, sweep_later
from headway.training.launch.base.protocol import TOKEN, AttemptFiles, Command, NodeOrder, NodePlan
from headway.training.launch.hosts.links import NetworkLink
from headway.training.launch.hosts.preflight import ObservedHost, find_faults, require_no_fault
from headway.training.launch.hosts.probe import Transport, module_command, probe_hosts, run_on_all
from headway.training.launch.node.forked_guards import ForkedGuard, guard_forks

Guard = subprocess.Popen[bytes] | ForkedGuard
SWEEP_S = 5.0
CANCEL_MARGIN_S = 5.0
"""Beyond the grace: the guards' own time to kill and reap."""
BEAT_S = 1.0
ANSWER_S = 30.0
"""How long a busy host may take to say whether it can take a node; one that is gone the transport gives up sooner."""


def _no_room(_gang: Gang, _machines: Collection[str]) -> bool:
    return False


class OwnedLauncher:
    """Args:
    has_capacity_beside: whether the scheduler, in whose job the owner is, has another machine at once.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        transport: Transport,
        has_capacity_beside: Callable[[Gang, Collection[str]], bool] = _no_room,
    ) -> None:
        self._spec, self._transport, self.has_capacity_beside = spec, transport, has_capacity_beside
        self._guards: list[Guard] = []
        """Or the transport's clients, by which guards on other hosts are held."""
        self._files = AttemptFiles(Path())
        self._hosts: tuple[Host, ...] = ()
        self._beats: _Beats | None = None

    def is_gathered(self, gang: Gang, min_nodes: int) -> bool:
        return self._transport.is_gathered(gang.nodes, min_nodes)

    def probe_hosts(self, gang: Gang, without: Collection[str] = ()) -> HostProbe:
        return probe_hosts(self._transport, gang.nodes, gang.run_dir, ANSWER_S, without)

    def preflight(self, gang: Gang, found: HostProbe) -> None:
        spec = self._spec.preflight
        seen = [
            ObservedHost(str(host), facts, found.request_unix_s, found.response_unix_s)
            for host, facts in found.facts.items()
        ]
        here = collect_host_facts(gang.run_dir, "")
        environ = {**os.environ, **gang.environment}
        links = {} if self._transport.is_local else self._links(found.members, gang.run_dir)
        faults = find_faults(
            spec, here=here, seen=seen, links=links, environ=environ, ranks_per_node=gang.ranks_per_node
        )
        require_no_fault(faults)

    def _links(self, members: Sequence[Member], folder: Path) -> dict[tuple[str, str], NetworkLink | str]:
        """Each host's way to the next, in a ring.

        Args:
            folder: that all see.
        """
        if len(members) < 2:
            return {}
        ring = list(zip(members, (*members[1:], members[0]), strict=True))

        def collect_host_facts(key_file: str) -> dict[tuple[str, str], NetworkLink | str]:
            arguments: dict[Host, tuple[str, ...]] = {
                one: (key_file, one.address, str(one.port), other.address, str(other.port)) for one, other in ring
            }
            answers = run_on_all(
                self._transport, list(arguments), "headway.training.launch.hosts.links", arguments, ANSWER_S
            )
            return {(str(one), str(other)): answers[one].read(NetworkLink) for one, other in ring}

        with tempfile.NamedTemporaryFile("w", prefix=".links-", dir=folder) as key_file:  # for their user alone
            key_file.write(secrets.token_hex(32))
            key_file.flush()
            found = collect_host_facts(key_file.name)
            if any(isinstance(link, str) for link in found.values()):
                # Where one gave up before its neighbour began, or lost its first packets twice, that was chance; what
                # is cut is cut again.
                again = collect_host_facts(key_file.name)
                found = {way: again[way] if isinstance(link, str) else link for way, link in found.items()}
            return found

    def render(self, gang: Gang, attempt: Attempt) -> tuple[NodeCommand, ...]:
        is_local = self._transport.is_local
        carried = {} if self._transport.has_environment else os.environ
        return tuple(
            NodeCommand(
                node=node,
                agent_argv=agent_argv(gang, attempt, node, self._transport.python),
                num_ranks=gang.ranks_per_node,
                environment=rank_environment(gang, attempt, self._spec, node, carried, is_local=is_local),
                rank_python_path=rank_python_path(gang, os.environ),
            )
            for node in range(gang.nodes)
        )

    def submit(self, gang: Gang, attempt: Attempt) -> Handle:
        self._guards, self._files = [], AttemptFiles(attempt.folder)
        self._hosts = attempt.members
        handle = Handle(
            launcher=self._transport.name,
            host=socket.gethostname(),
            owner_pid=attempt.owner_pid,
            token=attempt.token,
            attempt=attempt.number,
        )
        handle.save(gang.run_dir)
        # Written down before the first process: whoever comes after a crash here knows what to sweep.
        for host, command in zip(self._hosts, self.render(gang, attempt), strict=True):
            self._guards.append(self._start_guard(host, command, attempt))
        if not self._transport.is_local:
            # A guard on another host has no pidfd of the owner, and a cut link does not end its lifeline.
            self._beats = _Beats(self._guards)
        return handle

    def _start_guard(self, host: Host, command: NodeCommand, attempt: Attempt) -> Guard:
        is_local = self._transport.is_local
        plan = NodePlan(
            node=command.node,
            attempt=attempt.number,
            attempt_dir=str(attempt.folder),
            owner_pid=attempt.owner_pid if is_local else None,
            argv=command.agent_argv,
            num_ranks=command.num_ranks,
            rank_python_path=command.rank_python_path,
            stop_grace_s=self._spec.stop_grace_s,
            lost_grace_s=self._spec.lost_grace_s,
            peer_grace_s=self._spec.peer_grace_s,
            lease_s=None if is_local else self._spec.lease_s,
        )
        with open_to_write(self._files.node_log(command.node), "ab") as log:
            forks = guard_forks() if is_local else None
            forked = None if forks is None else forks.fork(log.fileno(), attempt.token, command.rank_python_path)
            guard: Guard = forked or subprocess.Popen(
                module_command(
                    self._transport, host, "headway.training.launch.node.node_guard", **{TOKEN: attempt.token}
                ),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A client carries the token too: what is swept by it here holds no guard elsewhere any longer.
                env=inherited_environment(os.environ) | {TOKEN: attempt.token},
                start_new_session=True,
            )
        assert guard.stdin is not None
        # A guard that died at once is reported by the next poll, with its exit status.
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.write(NodeOrder(plan=plan, environment=command.environment).to_line())
            guard.stdin.flush()
        # A guard whose pipe is full must not block the thread that sends beats to all others.
        os.set_blocking(guard.stdin.fileno(), False)
        return guard

    def poll(self, handle: Handle, *, wait_s: float) -> tuple[NodeReport, ...]:
        _wait_for_an_end([guard for guard in self._guards if guard.poll() is None], wait_s)
        # Exit first, then status: a guard that has ended has written its last word.
        exits = [guard.poll() for guard in self._guards]
        return tuple(
            NodeReport(node=node, status=self._files.read_status(node), guard_exit=code, place=self._hosts[node])
            for node, code in enumerate(exits)
        )

    def signal(self, handle: Handle, command: Command) -> None:
        for guard in self._guards:
            _write(guard, command.value)

    def cancel(self, handle: Handle, *, grace_s: float) -> None:
        try:
            self.signal(handle, Command.STOP)
            self._wait_for_all(grace_s + CANCEL_MARGIN_S)
        finally:
            # A second interrupt ends the patience, never the cleaning up.
            self.close(handle)

    def close(self, handle: Handle) -> tuple[str, ...]:
        if self._beats is not None:
            self._beats.end()
        unfinished = [report.place for report in self.poll(handle, wait_s=0) if not report.has_ended_completely]
        for guard in self._guards:
            if guard.poll() is None:
                # Its lifeline may be held up by a link: killing the client closes it.
                guard.kill()
        # By token, not by pid: what a guard lost track of, such as a rank's own daemon, still carries it.
        sweep(TOKEN, handle.token, patience_s=SWEEP_S)
        for guard in self._guards:
            guard.wait()
            # Only after they have ended: closing earlier would tell living guards that their owner is gone.
            if guard.stdin is not None:
                with contextlib.suppress(OSError):
                    guard.stdin.close()
        return self._sweep_remote(unfinished, handle.token, 0.0)

    def reattach(self, run_dir: Path) -> Handle | None:
        left = Handle.load(run_dir)
        if left is None or left.launcher != self._transport.name or not left.is_of(run_dir):
            return None
        # The guards of a dead owner are ending their ranks already, which may be keeping a checkpoint.
        patience_s = self._spec.lost_grace_s + 1.0
        if left.host == socket.gethostname():
            sweep_later(TOKEN, left.token, patience_s=patience_s, sweep_s=SWEEP_S)
        self._sweep_remote(self._transport.hosts(self._spec.nodes), left.token, patience_s)
        return None

    def sweeps(self, token: str) -> list[list[str]]:
        if self._transport.is_local:
            return []
        hosts = self._transport.hosts(self._spec.nodes)
        return [module_command(self._transport, host, *_sweeper(token, 0.0)) for host in hosts]

    def _sweep_remote(self, hosts: Sequence[Host], token: str, patience_s: float) -> tuple[str, ...]:
        """End what is left of the run on other hosts; returns those that cannot be reached."""
        if self._transport.is_local or not hosts:
            return ()
        module, *arguments = _sweeper(token, patience_s)
        within_s = patience_s + SWEEP_S + ANSWER_S
        answers = run_on_all(self._transport, hosts, module, dict.fromkeys(hosts, arguments), within_s)
        return tuple(str(host) for host, answer in answers.items() if answer.problem)

    def _wait_for_all(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while (living := [guard for guard in self._guards if guard.poll() is None]) and time.monotonic() < deadline:
            _wait_for_an_end(living, 0.2)


class _Beats:
    """Keeps sending guards their owner's beat, whatever its main thread is busy with."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self._guards, self._is_over = guards, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="launch-beats", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        # A thread of its own: the supervisor may be busy for minutes in a file system or a preflight.
        while not self._is_over.wait(BEAT_S):
            for guard in self._guards:
                _write(guard, Command.BEAT.value)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


def _sweeper(token: str, patience_s: float) -> tuple[str, ...]:
    return ("headway.training.launch.base.process_tree", TOKEN, token, str(patience_s), str(SWEEP_S))


def _write(guard: Guard, data: bytes) -> None:
    """To one that may be gone, or out of reach."""
    with contextlib.suppress(OSError, ValueError):
        if guard.stdin is not None:
            os.write(guard.stdin.fileno(), data)


def _wait_for_an_end(guards: list[Guard], wait_s: float) -> None:
    if not guards:
        return
    poll = select.poll()
    descriptors = []
    try:
        for guard in guards:
            if isinstance(guard, ForkedGuard):
                poll.register(guard.fileno(), select.POLLIN | select.POLLHUP)
                continue
            # A guard is this process's child and not yet waited for, so its number is its own.
            descriptors.append(os.pidfd_open(guard.pid))
            poll.register(descriptors[-1], select.POLLIN)
        poll.poll(wait_s * 1000)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
