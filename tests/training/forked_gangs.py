"""Gangs whose ranks are forks of the nursery, for tests of what a flow makes of its ranks and not of how they start.

Supervisor and ranks are the real ones, each rank a process of its own on the path of its frozen code. Guards and
agents are left out, and the imports, with them most of what a small retrain costs: every rank of its four gangs
imports torch. Ranks die with the nursery as they do with an agent.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from headway.training.launch.base.gang import Attempt, Gang, LaunchSpec
from headway.training.launch.base.host_probe import Host
from headway.training.launch.base.launcher import Handle, NodeCommand, NodeReport
from headway.training.launch.base.ports import LOOPBACK
from headway.training.launch.base.protocol import Command, NodeStatus
from headway.training.launch.hosts.owned import OwnedLauncher
from headway.training.launch.hosts.probe import LocalTransport
from headway.training.launch.supervise import supervisor
from tests.training.nursery import ForkedRank, session_nursery

SIGNALS = {Command.STOP: signal.SIGTERM, Command.PEER_LOST: signal.SIGTERM, Command.STACKS: signal.SIGUSR2}


class ForkingLauncher(OwnedLauncher):
    def __init__(self, spec: LaunchSpec) -> None:
        super().__init__(spec, LocalTransport())
        self._nodes: list[list[ForkedRank]] = []
        self._told: set[Command] = set()

    def submit(self, gang: Gang, attempt: Attempt) -> Handle:
        handle = Handle(
            launcher="local",
            host=socket.gethostname(),
            owner_pid=attempt.owner_pid,
            token=attempt.token,
            attempt=attempt.number,
        )
        handle.save(gang.run_dir)
        self._nodes, self._told = [], set()
        for node in self.render(gang, attempt):
            self._nodes.append([_start(gang, attempt, node, local) for local in range(gang.ranks_per_node)])
        return handle

    def poll(self, handle: Handle, *, wait_s: float) -> tuple[NodeReport, ...]:
        living = {rank.fileno(): rank for ranks in self._nodes for rank in ranks if rank.poll() is None}
        if living:
            select.select(list(living), [], [], wait_s)
        return tuple(self._report(node, ranks) for node, ranks in enumerate(self._nodes))

    def _report(self, node: int, ranks: list[ForkedRank]) -> NodeReport:
        codes = [rank.poll() for rank in ranks]
        if any(codes):  # as an agent does with what is left of its ranks
            self._tell(ranks, signal.SIGTERM)
        has_ended, is_bad = None not in codes, any(codes)
        status = NodeStatus(
            node=node,
            guard_pid=os.getpid(),
            agent_pid=os.getpid(),
            state="ended" if has_ended else "running",
            why="stop" if Command.STOP in self._told else "",
            agent_exit=int(is_bad) if has_ended else None,
        )
        guard_exit = int(is_bad) if has_ended else None
        return NodeReport(node=node, status=status, guard_exit=guard_exit, place=Host(name=socket.gethostname()))

    def signal(self, handle: Handle, command: Command) -> None:
        self._told.add(command)
        for ranks in self._nodes:
            self._tell(ranks, SIGNALS[command])

    @staticmethod
    def _tell(ranks: list[ForkedRank], number: signal.Signals) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    def close(self, handle: Handle) -> tuple[str, ...]:
        for rank in [rank for ranks in self._nodes for rank in ranks if rank.poll() is None]:
            rank.kill()
            rank.wait()
        return ()

    def _wait_for_all(self, patience_s: float) -> None:
        living = [rank for ranks in self._nodes for rank in ranks if rank.poll() is None]
        for rank in living:
            rank.has_ended(patience_s / len(living))


def _start(gang: Gang, attempt: Attempt, node: NodeCommand, local: int) -> ForkedRank:
    """With the surroundings that torchrun would give it."""
    rank = node.node * gang.ranks_per_node + local
    log = attempt.folder / "logs" / f"node-{node.node}" / "attempt_0" / str(local) / "stderr.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        **node.environment,
        "PYTHONPATH": node.rank_python_path,
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(node.node),
        "WORLD_SIZE": str(gang.world_size),
        "LOCAL_WORLD_SIZE": str(gang.ranks_per_node),
        "TORCHELASTIC_RUN_ID": attempt.rendezvous_id,
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(attempt.members[0].port),
    }
    return session_nursery().start(gang.module, gang.arguments, folder=Path.cwd(), log=log, environment=environment)


@contextlib.contextmanager
def forked_gangs() -> Iterator[None]:
    """What this process supervises meanwhile runs on forks."""
    with mock.patch.object(supervisor, "launcher_for", ForkingLauncher):
        yield
