"""The main process of every pod: `python -m training.launch.pod RUN_DIR`; starts what the supervisor asks for.

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
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from training.launch.manifests import EXIT_LEAVING
from training.launch.order import DetachedFiles
from training.launch.pods import CONNECT_S, END_MARK, SILENT_S, PodPlace, notice_silence, places_of, read_line
from training.launch.protocol import JOB, MACHINE, POD, POD_ADDRESS, PODS
from training.launch.spec import inherited_environment

LOOK_S = 0.2
OVER_LOOK_S = 1.0
"""How often the first pod's word is looked for: it may lie on a file system far away."""
DEAF_S = 1.0
"""How long no connection is taken after one could not be."""
INDEX = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in every pod of an Indexed Job."""


class Pod:
    def __init__(self, run_dir: Path, environ: Mapping[str, str]) -> None:
        self._run_dir, self._files = run_dir, DetachedFiles(run_dir)
        address = environ[POD_ADDRESS]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self._place = PodPlace(
            job=environ[JOB],
            index=int(environ[INDEX]),
            pod=environ[POD],
            address=address,
            port=self._listener.getsockname()[1],
            key=secrets.token_hex(32),
            machine=environ.get(MACHINE, ""),
        )
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._told = False
        self._num_started = 0
        self._lock = threading.Lock()
        self._looked_s = 0.0

    def run(self) -> int:
        """Returns the exit status: 0 where the job's work is done, and no other pod is to come."""
        signal.signal(signal.SIGTERM, self._hear)
        for place in places_of(self._files.pods, self._place.job):
            if place.index == self._place.index:
                (self._files.pods / f"{place.pod}.json").unlink(missing_ok=True)
        self._place.save(self._files.pods)
        threading.Thread(target=self._listen, daemon=True).start()
        print(f"pod {self._place.pod} of job {self._place.job} at {self._place.address}", flush=True)
        if self._place.index == 0:
            self._start_supervisor()
        while (status := self._status()) is None:
            time.sleep(LOOK_S)
        return status

    def _hear(self, _number: int, _frame: object) -> None:
        self._told = True

    def _status(self) -> int | None:
        """None while there is something to stay for."""
        if self._told and self._place.state == "here":
            self._leave()
        if self._supervisor is not None:
            return self._after_supervisor(self._supervisor.poll())
        if self._place.state == "leaving":
            return None if self._num_started else EXIT_LEAVING
        if time.monotonic() - self._looked_s < OVER_LOOK_S:
            return None
        self._looked_s = time.monotonic()
        with contextlib.suppress(OSError):  # what cannot be listed now is looked at again
            first = [place for place in places_of(self._files.pods, self._place.job) if place.index == 0]
            return 0 if any(place.state == "over" for place in first) else None
        return None

    def _leave(self) -> None:
        print("told to end", flush=True)
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
        return EXIT_LEAVING if self._told else _exit_status(status)

    def _start_supervisor(self) -> None:
        with self._files.log(self._place.job).open("ab") as log:
            self._supervisor = subprocess.Popen(
                (sys.executable, "-m", "training.launch.detached", str(self._run_dir)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, PODS: str(self._files.pods)},
                start_new_session=True,
            )

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
                with contextlib.ExitStack() as unserved:
                    unserved.enter_context(connection)
                    threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
                    unserved.pop_all()
            except (OSError, RuntimeError) as error:
                # Too many files or threads are open, which passes; a pod that is deaf for good would only look alive.
                print(f"no connection can be taken now: {error}", flush=True)
                time.sleep(DEAF_S)

    def _serve(self, connection: socket.socket) -> None:
        """Start one process for whoever has the key; the connection is its stdin, stdout and stderr."""
        with connection, contextlib.suppress(OSError):
            connection.settimeout(CONNECT_S)
            nonce = secrets.token_hex(16)
            connection.sendall(nonce.encode() + b"\n")
            wish = _read_wish(read_line(connection))
            if wish is None:
                return
            proof = self._place.proof(nonce, wish.argv).encode()
            with self._lock:
                if self._place.state != "here" or not secrets.compare_digest(proof, wish.proof):
                    return
                self._num_started += 1
            try:
                connection.settimeout(None)
                notice_silence(connection)
                status = self._run(wish.argv, connection)
            finally:
                with self._lock:
                    self._num_started -= 1
            connection.sendall(END_MARK + str(status).encode() + b"\n")
            _part(connection)

    def _run(self, argv: list[str], connection: socket.socket) -> int:
        end = connection.fileno()
        process = subprocess.Popen(
            argv,
            stdin=end,
            stdout=end,
            stderr=end,
            env=inherited_environment(os.environ),
            start_new_session=True,
        )
        return _exit_status(process.wait())


class _Wish(NamedTuple):
    """A process that is to be started."""

    argv: list[str]
    proof: bytes


def _read_wish(line: bytes) -> _Wish | None:
    """None: it is none, and whoever said it a stranger."""
    with contextlib.suppress(ValueError, RecursionError):
        match json.loads(line):
            case {"argv": [*argv], "proof": str(proof)}:
                return _Wish(argv, proof.encode())
    return None


def _part(connection: socket.socket) -> None:
    """Close once the other end has: one that is closed with its words unread is reset, and loses what it was told."""
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(SILENT_S)
    while connection.recv(1 << 12):
        pass


def _exit_status(code: int) -> int:
    """As a shell tells it."""
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(Pod(Path(sys.argv[1]), os.environ).run())
