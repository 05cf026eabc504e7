"""Launcher `local`: every node an agent on this machine, a true multi-node rehearsal; the run ends with its owner."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from training.launch.launcher import Handle, NodeCommand, NodeReport
from training.launch.process_tree import processes_with, sweep
from training.launch.protocol import TOKEN, AttemptFiles, Command, NodePlan, write_json
from training.launch.spec import Attempt, Gang, LaunchSpec, rank_environment, rank_python_path, torchrun_argv

SWEEP_S = 5.0
CANCEL_MARGIN_S = 5.0
"""Beyond the grace: the guards' own time to kill and reap."""
HEADWAY_HOME = str(Path(__file__).resolve().parents[2])
"""Guards run the supervisor's own version of Headway; ranks run their frozen code."""


class LocalLauncher:
    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self._guards: list[subprocess.Popen[bytes]] = []
        self._files = AttemptFiles(Path())

    def render(self, gang: Gang, attempt: Attempt) -> tuple[NodeCommand, ...]:
        return tuple(
            NodeCommand(
                node=node,
                agent_argv=torchrun_argv(gang, attempt, self._spec, node),
                environment=rank_environment(gang, attempt, self._spec, node, os.environ),
                rank_python_path=rank_python_path(gang, os.environ),
            )
            for node in range(gang.nodes)
        )

    def submit(self, gang: Gang, attempt: Attempt) -> Handle:
        self._guards, self._files = [], AttemptFiles(attempt.folder)
        handle = Handle(
            launcher="local",
            host=socket.gethostname(),
            owner_pid=attempt.owner_pid,
            token=attempt.token,
            attempt=attempt.number,
        )
        handle.save(gang.run_dir)
        for command in self.render(gang, attempt):
            self._guards.append(self._start_guard(command, attempt))
        return handle

    def _start_guard(self, command: NodeCommand, attempt: Attempt) -> subprocess.Popen[bytes]:
        plan = NodePlan(
            node=command.node,
            attempt=attempt.number,
            attempt_dir=str(attempt.folder),
            owner_pid=attempt.owner_pid,
            argv=command.agent_argv,
            rank_python_path=command.rank_python_path,
            stop_grace_s=self._spec.stop_grace_s,
            lost_grace_s=self._spec.lost_grace_s,
            peer_grace_s=self._spec.peer_grace_s,
        )
        path = self._files.plan(command.node)
        write_json(path, asdict(plan))
        with self._files.node_log(command.node).open("ab") as log:
            return subprocess.Popen(
                (sys.executable, "-m", "training.launch.guard", str(path)),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=command.environment | {"PYTHONPATH": HEADWAY_HOME},
                start_new_session=True,
            )

    def poll(self, handle: Handle, *, wait_s: float) -> tuple[NodeReport, ...]:
        _wait_for_an_end([guard for guard in self._guards if guard.poll() is None], wait_s)
        # Exit first, then status: a guard that has ended has written its last word.
        exits = [guard.poll() for guard in self._guards]
        return tuple(
            NodeReport(node=node, status=self._files.read_status(node), guard_exit=code)
            for node, code in enumerate(exits)
        )

    def signal(self, handle: Handle, command: Command) -> None:
        for guard in self._guards:
            with contextlib.suppress(OSError, ValueError):
                if guard.poll() is None and guard.stdin is not None:
                    os.write(guard.stdin.fileno(), command.value)

    def cancel(self, handle: Handle, *, grace_s: float) -> None:
        try:
            self.signal(handle, Command.STOP)
            self._wait_for_all(grace_s + CANCEL_MARGIN_S)
        finally:
            # A second interrupt ends the patience, never the cleaning up.
            self.close(handle)

    def close(self, handle: Handle) -> list[int]:
        for guard in self._guards:
            if guard.poll() is None:
                guard.kill()
        swept = sweep(TOKEN, handle.token, patience_s=SWEEP_S)
        for guard in self._guards:
            guard.wait()
            if guard.stdin is not None:
                with contextlib.suppress(OSError):
                    guard.stdin.close()
        return swept

    def reattach(self, run_dir: Path) -> Handle | None:
        left = Handle.load(run_dir)
        if left is None or left.host != socket.gethostname():
            return None
        # The guards of a dead owner are ending their ranks already, which may be keeping a checkpoint.
        deadline = time.monotonic() + self._spec.lost_grace_s + 1.0
        while time.monotonic() < deadline and processes_with(TOKEN, left.token):
            time.sleep(0.05)
        sweep(TOKEN, left.token, patience_s=SWEEP_S)
        return None

    def _wait_for_all(self, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while (living := [guard for guard in self._guards if guard.poll() is None]) and time.monotonic() < deadline:
            _wait_for_an_end(living, 0.2)


def _wait_for_an_end(guards: list[subprocess.Popen[bytes]], wait_s: float) -> None:
    if not guards:
        return
    poll = select.poll()
    descriptors = []
    try:
        for guard in guards:
            # A guard is this process's child and not yet waited for, so its number is its own.
            descriptors.append(os.pidfd_open(guard.pid))
            poll.register(descriptors[-1], select.POLLIN)
        poll.poll(wait_s * 1000)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
