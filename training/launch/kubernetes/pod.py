"""The main process of every pod, `headway.training.launch.kubernetes.pod RUN_DIR`: starts what the supervisor asks for.

The pod of index 0 has the supervisor as well, and ends with it. The others end when its pod says that the work is done.
SIGTERM is notice: the supervisor, told of it through the run's folder, keeps a checkpoint and ends what it has here,
and then the pod ends, with a status by which its job makes another. Standard library only, but for the environment's
rules.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from headway.data_contracts.store.regular_files import open_to_write
from headway.training.launch.base.channel import Channel, Listener
from headway.training.launch.base.gang import inherited_environment
from headway.training.launch.base.protocol import JOB, LOG_PIPE, MACHINE, POD, POD_ADDRESS, PODS
from headway.training.launch.jobs.job_request import DetachedFiles
from headway.training.launch.kubernetes.manifests import EXIT_LEAVING
from headway.training.launch.kubernetes.pods import (
    OUTPUT,
    PART_BYTES,
    SILENT_S,
    STATUS,
    PodPlace,
    notice_silence,
    places_of,
)

STDOUT = 1
POLL_S = 0.2
ENDED_POLL_S = 1.0
"""How often the first pod's word is looked for: it may lie on a file system far away."""
LINES_S = 1.0
"""How long the last lines of a guard may take to the pod's stdout."""
INDEX = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in every pod of an Indexed Job."""


class Pod:
    def __init__(self, run_dir: Path, environ: Mapping[str, str]) -> None:
        self._run_dir, self._files = run_dir, DetachedFiles(run_dir)
        # A fresh key for each pod: one that was replaced cannot be impersonated by who knew the old key.
        address, key = environ[POD_ADDRESS], secrets.token_hex(32)
        self._listener = Listener(address, 0, key, self._serve)
        self._place = PodPlace(
            job=environ[JOB],
            index=int(environ[INDEX]),
            pod=environ[POD],
            address=address,
            port=self._listener.port,
            key=key,
            machine=environ.get(MACHINE, ""),
        )
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._is_terminating = False
        self._num_started = 0
        self._lock = threading.Lock()
        self._looked_s = 0.0

    def run(self) -> int:
        """Returns the exit status: 0 where the job's work is done, and no other pod is to come."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        # A pod of the same index that was replaced left its place; the supervisor would go on trying to reach it.
        for place in places_of(self._files.pods, self._place.job):
            if place.index == self._place.index:
                (self._files.pods / f"{place.pod}.json").unlink(missing_ok=True)
        # The socket listens already, so a supervisor that reads the place at once gets its connection.
        self._place.save(self._files.pods)
        self._listener.start()
        print(f"pod {self._place.pod} of job {self._place.job} at {self._place.address}", flush=True)
        if self._place.index == 0:
            self._start_supervisor()
        while (status := self._status()) is None:
            time.sleep(POLL_S)
        return status

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        self._is_terminating = True

    def _status(self) -> int | None:
        """None while there is something to stay for."""
        if self._is_terminating and self._place.state == "here":
            self._leave()
        if self._supervisor is not None:
            return self._after_supervisor(self._supervisor.poll())
        # Its guards keep a checkpoint first; leaving earlier would cut them off.
        if self._place.state == "leaving":
            return None if self._num_started else EXIT_LEAVING
        # Each look lists a folder on shared storage, from every pod.
        if time.monotonic() - self._looked_s < ENDED_POLL_S:
            return None
        self._looked_s = time.monotonic()
        with contextlib.suppress(OSError):  # what cannot be listed now is looked at again
            first = [place for place in places_of(self._files.pods, self._place.job) if place.index == 0]
            return 0 if any(place.state == "over" for place in first) else None
        return None

    def _leave(self) -> None:
        print("asked to end", flush=True)
        self._place = self._place.changed("leaving")
        self._place.save(self._files.pods)
        if self._supervisor is not None:
            self._supervisor.terminate()

    def _after_supervisor(self, status: int | None) -> int | None:
        if status is None:
            return None
        if status == 0:
            # Also where it was told to end meanwhile: nothing is left to do for another pod.
            self._place.changed("over").save(self._files.pods)
            return 0
        # A supervisor that failed while it was asked to end failed for that reason.
        return EXIT_LEAVING if self._is_terminating else _exit_status(status)

    def _start_supervisor(self) -> None:
        # Appended: a job's later start writes to the same file.
        with open_to_write(self._files.log(self._place.job), "ab") as log:
            self._supervisor = subprocess.Popen(
                (sys.executable, "-P", "-m", "headway.training.launch.supervise.detached", str(self._run_dir)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # The whole environment, secrets included: the supervisor hands them to ranks,
                # and sends none over the network.
                env={**os.environ, PODS: str(self._files.pods)},
                start_new_session=True,
            )

    def _serve(self, channel: Channel, deadline_s: float) -> None:
        """Start one process for whoever has the key; the channel is its stdin, stdout and stderr."""
        argv = json.loads(channel.receive(deadline_s))
        # State and count under one lock: a process that starts just as the pod leaves would be counted by nobody.
        with self._lock:
            if self._place.state != "here":
                return
            self._num_started += 1
        try:
            # The handshake's timeout was for a stranger; a guard may be silent for hours.
            channel.connection.settimeout(None)
            notice_silence(channel.connection)
            _run(argv, channel)
        finally:
            with self._lock:
                self._num_started -= 1


def _run(argv: list[str], channel: Channel) -> None:
    # What a guard writes there is for whoever collects the pod's logs. A pipe, for the pod's stdout itself may keep its
    # writers waiting, and a guard has no time for that.
    reading, writing = os.pipe()
    lines = threading.Thread(target=_pass_on_lines, args=(reading,), daemon=True)
    lines.start()
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=inherited_environment(os.environ) | {LOG_PIPE: str(writing)},
            pass_fds=(writing,),
            # A group of its own, so that a signal to the pod's main process does not reach
            # guards before their order to stop.
            start_new_session=True,
            # Unbuffered: an order has to reach the guard when it comes, not when a buffer is full.
            bufsize=0,
        )
    finally:
        os.close(writing)
    stdin = threading.Thread(target=_pass_on_stdin, args=(channel, process), daemon=True)
    stdin.start()
    with contextlib.suppress(OSError):  # the client is gone, and the process hears of it by the end of its stdin
        _pass_on_output(process, channel)
    status = _exit_status(process.wait())
    # Before its end is known: the pod may end with it.
    lines.join(LINES_S)
    channel.send(STATUS + str(status).encode())
    channel.connection.shutdown(socket.SHUT_WR)
    # A connection that is closed with the client's words unread is reset, and loses what the client was told.
    stdin.join(SILENT_S)


def _pass_on_lines(lines: int) -> None:
    """To stdout, whole lines at a time: there may be several guards."""
    with os.fdopen(lines, "rb") as pipe, contextlib.suppress(OSError):
        for line in pipe:
            while line:
                line = line[os.write(STDOUT, line) :]


def _pass_on_stdin(channel: Channel, process: subprocess.Popen[bytes]) -> None:
    """Until the client or the connection ends; a frame that is not the client's is the connection's end."""
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin as stdin:
        # An empty frame is the end of the client's stdin, and closing ours passes it on.
        while data := channel.receive():
            # The process may end first; what the client still sends has no reader.
            with contextlib.suppress(BrokenPipeError):
                stdin.write(data)


def _pass_on_output(process: subprocess.Popen[bytes], channel: Channel) -> None:
    """Until the process ends, whoever of its children still holds the other end."""
    assert process.stdout is not None
    poll, ended = select.poll(), os.pidfd_open(process.pid)
    try:
        with process.stdout as stdout:
            output = stdout.fileno()
            for descriptor in (ended, output):
                poll.register(descriptor, select.POLLIN)
            has_ended = False
            while True:
                # After the process has ended only what is in the pipe is read: a grandchild may hold it open for ever.
                ready = {descriptor for descriptor, _ in poll.poll(0 if has_ended else None)}
                has_ended |= ended in ready
                if output in ready:
                    if data := os.read(output, PART_BYTES):
                        channel.send(OUTPUT + data)
                    else:
                        poll.unregister(output)
                elif has_ended:
                    return
    finally:
        os.close(ended)


def _exit_status(code: int) -> int:
    """As a shell tells it."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(Pod(Path(sys.argv[1]), os.environ).run())
