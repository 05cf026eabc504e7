"""What of a run another user of the machine can reach, and what comes of it."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.launcher import Handle
from headway.training.launch.base.ports import EPHEMERAL
from headway.training.launch.base.process_tree import processes_with
from headway.training.launch.base.protocol import TOKEN
from headway.training.launch.diagnosis.outcome import AttemptOutcome
from headway.training.launch.supervise.supervisor import supervise
from tests.listening import listening
from tests.stranger import squatter
from tests.training.launch.conftest import TOYS, ToyRun
from tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.long

WATCHING = """
import os, sys
def note(event, arguments, path=os.environ["UNPICKLED"]):
    if event == "pickle.find_class":
        os.write(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), f"{arguments}\\n".encode())
sys.addaudithook(note)
"""
"""As `sitecustomize`, of agents and ranks: what they unpickle."""
ATTACK = """
import base64, os, pickle, select, signal, sys, time
from datetime import timedelta
import torch.distributed as dist
owned, *ports = sys.argv[1:]
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)

class Evil:
    def __reduce__(self):
        return os.mkdir, (owned,)

def attack(port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2))
    for key in store.list_keys():
        store.set(key, base64.b64encode(pickle.dumps(Evil())).decode())

tries = {}
for port in ports:
    if (pid := os.fork()) == 0:
        try:
            attack(int(port))
            os._exit(0)
        finally:
            os._exit(1)
    tries[os.pidfd_open(pid)] = port
reached, deadline = [], time.monotonic() + 5  # what is no store may never answer
while tries and (ended := select.select(list(tries), [], [], max(0, deadline - time.monotonic()))[0]):
    for descriptor in ended:
        port = tries.pop(descriptor)
        if os.waitid(os.P_PIDFD, descriptor, os.WEXITED).si_status == 0:
            reached.append(int(port))
for descriptor in tries:
    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
print(reached)
"""
"""What gave another user a process of the trainer's: a pickle in torchrun's store."""


@pytest.fixture
def running(toy_run: ToyRun, tmp_path: Path) -> Iterator[list[AttemptOutcome]]:
    """Two nodes of two ranks under real agents, with gloo; filled with the outcome at the end."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WATCHING)
    gang = dataclasses.replace(
        toy_run.gang(module="meeting_worker"),
        ranks_per_node=2,
        import_path=(str(site), str(TOYS)),
        environment={"UNPICKLED": str(tmp_path / "unpickled")},
    )
    outcomes: list[AttemptOutcome] = []

    def run() -> None:
        spec = LaunchSpec(ranks_per_node=2, max_attempts=1)
        outcomes.append(supervise(spec, gang, ledger=toy_run.ledger, budget_scope="one", poll=toy_run.newest_step))

    supervisor = threading.Thread(target=run)
    supervisor.start()
    wait_until(lambda: outcomes or toy_run.newest_step() is not None, what="the first step")
    yield outcomes
    (tmp_path / "enough").touch()
    supervisor.join(DEADLINE_S)


def test_nothing_of_a_run_listens_beyond_this_machine_and_another_user_gets_no_process_of_the_trainers(
    toy_run: ToyRun, running: list[AttemptOutcome], tmp_path: Path
) -> None:
    handle = Handle.load(toy_run.folder)
    assert handle is not None
    doors = {pid: listening(pid) for pid in (os.getpid(), *processes_with(TOKEN, handle.token))}
    ports = sorted({port for found in doors.values() for _, port in found})
    assert len(doors) >= 9, "guards, agents, ranks and this process"
    attack = [sys.executable, "-c", ATTACK, str(tmp_path / "owned"), *map(str, ports)]
    reached = json.loads(subprocess.run(attack, check=True, capture_output=True, timeout=DEADLINE_S).stdout)
    step = toy_run.newest_step() or 0
    wait_until(lambda: running or (toy_run.newest_step() or 0) > step + 5, what="more steps")
    (tmp_path / "enough").touch()
    wait_until(lambda: running, what="the end")

    assert not (tmp_path / "owned").exists()
    assert reached == [], "no store of torch's answers"
    unpickled = tmp_path / "unpickled"
    assert not unpickled.exists() or unpickled.read_text() == ""
    addresses = {address for found in doors.values() for address, _ in found}
    assert {address for address in addresses if not ipaddress.ip_address(address).is_loopback} == set()
    assert [outcome.state for outcome in running] == ["done"]
    assert len(ports) <= 1 + 2 * 4, "rank 0's store, and of each rank gloo's, one for each of its two groups"
    store = toy_run.attempt(1).store
    assert store.stat().st_mode & 0o077 == 0, "the key is the user's alone"


def test_who_takes_every_port_that_command_lines_show_keeps_no_gang_from_meeting(toy_run: ToyRun) -> None:
    (toy_run.folder / "enough").touch()
    gang, spec = toy_run.gang(module="meeting_worker"), LaunchSpec(max_attempts=1)
    with squatter():
        outcome = supervise(spec, gang, ledger=toy_run.ledger, budget_scope="one", poll=toy_run.newest_step)
    assert outcome.state == "done"
    place = toy_run.attempt(1).read_store()
    assert place is not None
    assert place.port < int(EPHEMERAL.read_text().split()[0]), "the one that was drawn, and no other for want of it"
