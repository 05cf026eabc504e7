"""Another user of this machine: asks our servers what a browser, a client and a thief would, and takes their ports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from headway.flows.prefect_api.listeners import users_listening
from headway.training.launch.base.ports import free_port
from tests.waiting import DEADLINE_S, wait_until

NOBODY = 65534
REFUSED = ("401", "403")
STRANGER = """
import http.client, json, os, sys
ports, files, pids = json.loads(sys.argv[1])
"127.0.0.1".encode("idna")  # what is imported late would be out of reach
os.setgroups([]), os.setgid(65534), os.setuid(65534)
ASKED = [
    (0, "GET", "/api/admin/version", None), (0, "GET", "/api/admin/settings", None),
    (0, "POST", "/api/flow_runs/filter", {}), (0, "POST", "/api/flows/", {"name": "theirs"}),
    (0, "POST", "/api/deployments/filter", {}), (0, "POST", "/api/block_documents/filter", {}),
    (0, "POST", "/api/admin/database/clear", {"confirm": False}), (0, "GET", "/api/csrf-token?client=theirs", None),
    (0, "GET", "/api/openapi.json", None), (0, "GET", "/api/../api/admin/version", None),
    (1, "GET", "/", None), (1, "POST", "/api/2.0/mlflow/experiments/search", {"max_results": 5}),
    (1, "POST", "/ajax-api/2.0/mlflow/experiments/search", {"max_results": 5}),
    (1, "POST", "/api/2.0/mlflow/registered-models/create", {"name": "theirs"}),
    (1, "GET", "/get-artifact?run_id=1&path=a", None), (1, "GET", "//health/../version", None),
]
HEADERS = [
    {}, {"Authorization": "Basic aGVhZHdheTo="}, {"Authorization": "Bearer x"}, {"Origin": "http://evil.example"},
    {"Host": "evil.example"}, {"Host": "localhost", "Origin": "http://localhost"}, {"Content-Type": "text/plain"},
]
answers = {}
for place, method, path, body in ASKED:
    if ports[place] is None:
        continue
    for given in HEADERS:
        connection = http.client.HTTPConnection("127.0.0.1", ports[place], timeout=120)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **given})
        answers.setdefault(connection.getresponse().status, []).append((place, method, path, given))
        connection.close()
read = []
for file in files:
    try:
        read.append(open(file).read())
    except OSError:
        pass
command_lines = b" ".join(open(f"/proc/{pid}/cmdline", "rb").read() for pid in pids).decode()
print(json.dumps([answers, read, command_lines]))
"""


class Met(NamedTuple):
    """What it came to."""

    let_in: dict[str, list[Any]]
    """What was asked, by the status that answered it, where that is no refusal."""
    read: list[str]
    """Contents of the files that could be read."""
    command_lines: str


def stranger(prefect: int, mlflow: int | None = None, *, files: Sequence[str] = (), pids: Sequence[int] = ()) -> Met:
    """
    Args:
        prefect, mlflow: ports on loopback.
        files: that it tries to read.
        pids: whose command lines it reads, which everybody may.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    given = json.dumps([[prefect, mlflow], list(files), list(pids)])
    command = (sys.executable, "-I", "-c", STRANGER, given)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    answers, read, command_lines = json.loads(done.stdout)
    return Met({code: asked for code, asked in answers.items() if code not in REFUSED}, read, command_lines)


SQUATTER = """
import os, re, socket, sys, time
family = int(sys.argv[1])
os.setgroups([]), os.setgid(65534), os.setuid(65534)
listening, seen = [], set()

def belongs(pid, parents):
    while pid in parents and pid != family:
        pid = parents[pid]
    return pid == family

strange = {}  # how often a process was found to be no child of theirs; most are none, and need no further look

while True:
    time.sleep(0.02)  # many times in the seconds for which a server imports
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    strange = {pid: strange[pid] for pid in pids if pid in strange}
    parents, lines = {}, {}
    for pid in pids:
        if strange.get(pid, 0) < 3:
            try:
                parents[pid] = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
                lines[pid] = open(f"/proc/{pid}/cmdline", "rb").read().decode(errors="replace")
            except OSError:
                pass
    for pid, line in lines.items():
        if pid == os.getpid() or not belongs(pid, parents):
            strange[pid] = strange.get(pid, 0) + 1
            continue
        for number in {int(digits) for digits in re.findall(r"(?<![0-9])[0-9]{4,5}(?![0-9])", line)} - seen:
            seen.add(number)
            door = socket.socket()
            try:
                door.bind(("127.0.0.1", number))
                door.listen()
            except (OSError, OverflowError):
                continue
            listening.append(door)
"""
"""Of command lines of other tests' processes it keeps away."""


@contextmanager
def squatter() -> Iterator[None]:
    """Another user, who takes every port of loopback that stands on a command line of our children."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    bait = free_port()
    with (
        subprocess.Popen((sys.executable, "-I", "-c", SQUATTER, str(os.getpid()))) as looking,
        subprocess.Popen((sys.executable, "-I", "-c", "input()", str(bait)), stdin=subprocess.PIPE) as shows_a_port,
    ):
        try:
            wait_until(lambda: users_listening(bait) == {NOBODY} or looking.poll() is not None, what="the squatter")
            yield
            assert looking.poll() is None, "to the end"
        finally:
            looking.kill()
            shows_a_port.kill()
