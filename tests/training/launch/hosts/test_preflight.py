"""Before any rank: every fault is found, all in one message, and a host in order has none."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.training.launch.base import host_facts
from headway.training.launch.base.channel import Listener
from headway.training.launch.base.gang import LaunchSpec, PreflightSpec
from headway.training.launch.base.host_facts import PATIENCE_S, HostFacts, collect_host_facts
from headway.training.launch.base.ports import LOOPBACK
from headway.training.launch.base.retry_budget import AttemptRecords
from headway.training.launch.hosts import links
from headway.training.launch.hosts.links import NetworkLink, measure
from headway.training.launch.hosts.preflight import ObservedHost, find_faults, require_no_fault
from headway.training.launch.supervise.supervisor import supervise

GOOD = HostFacts(versions={"Python": "3.11.7", "torch": "2.13.0"}, unix_s=1000.0, free_bytes=10**12)
FAST = NetworkLink(latency_s=1e-4, bytes_per_s=1e9)


def faults(
    facts: HostFacts = GOOD, link: NetworkLink | str = FAST, environ: dict[str, str] | None = None, **asked: object
):
    seen = ObservedHost(host="b", facts=facts, request_unix_s=999.5, response_unix_s=1000.5)
    spec = PreflightSpec.model_validate(asked)
    return find_faults(spec, here=GOOD, seen=[seen], links={("a", "b"): link}, environ=environ or {}, ranks_per_node=1)


def test_hosts_that_are_as_the_launching_one_have_no_fault() -> None:
    assert faults() == []
    require_no_fault([])


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (faults(environment=("HF_TOKEN",)), "HF_TOKEN is not set"),
        (faults(environ={"HF_TOKEN": ""}, environment=("HF_TOKEN",)), "HF_TOKEN is not set"),
        (
            faults(replace(GOOD, versions={"Python": "3.11.7", "torch": "2.12.0"})),
            "b: torch is 2.12.0 there and 2.13.0 where the run is launched",
        ),
        (faults(replace(GOOD, versions={"Python": "3.11.7"})), "b: torch is none there"),
        (faults(replace(GOOD, unix_s=1010.0)), "b: its clock is 9.5 s off"),
        (faults(replace(GOOD, unix_s=990.0)), "b: its clock is 9.5 s off"),
        (faults(replace(GOOD, storage_problem="it is read only")), "b: the run's folder: it is read only"),
        (faults(replace(GOOD, free_bytes=10**9), min_free_bytes=2 * 10**9), "b: 1.0 GB are free"),
        (faults(replace(GOOD, resolve_s=PATIENCE_S)), "b: its name service takes over 2.0 s"),
        (faults(replace(GOOD, gpu_problem="GPU 3 has 1 uncorrected memory errors")), "b: GPU 3 has 1"),
        (faults(link=NetworkLink(latency_s=0.2, bytes_per_s=1e9)), "a to b: 200.0 ms"),
        (faults(link=NetworkLink(latency_s=1e-4, bytes_per_s=1e5)), "a to b: 0.10 MB/s"),
        (faults(link="timed out"), "a to b: timed out"),
    ],
)
def test_each_fault_is_found_and_named_with_its_host(found: list[str], told: str) -> None:
    (fault,) = found
    assert fault.startswith(told)


def test_hosts_whose_ranks_would_take_gpus_among_hosts_whose_would_not_are_named() -> None:
    """They would wait for each other for ever."""

    def found(*numbers: int, problem: str = "", ranks: int = 4) -> list[str]:
        facts = [replace(GOOD, num_gpus=number) for number in numbers]
        facts[0] = replace(facts[0], gpu_problem=problem)
        seen = [ObservedHost(f"host-{number}", each, 999.5, 1000.5) for number, each in enumerate(facts)]
        return find_faults(PreflightSpec(), here=GOOD, seen=seen, links={}, environ={}, ranks_per_node=ranks)

    assert found(8, 8, 8) == found(0, 0) == found(8, 4) == found(3, 0, 1) == []
    assert found(8, 0, 8) == ["host-1: 0 GPUs for its 4 ranks, where host-0 has 8"]
    assert found(1, 8, 2) == ["host-1: 8 GPUs for its 4 ranks, where host-0 has 1"]
    assert found(1, 2, ranks=2) == ["host-0: 1 GPUs for its 2 ranks, where host-1 has 2"]
    assert found(0, 8, problem="no answer") == ["host-0: no answer"], "how many it has is not known"


def test_all_faults_come_in_one_message_that_says_what_to_do() -> None:
    found = faults(replace(GOOD, unix_s=0.0, gpu_problem="no driver"), "refused", environment=("KEY",))
    assert len(found) == 4
    with pytest.raises(EnvironmentProblem) as refused:
        require_no_fault(found)
    assert all(fault in refused.value.what for fault in found) and "headway doctor" in str(refused.value)


def test_this_machine_says_what_it_is_in_a_moment_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = collect_host_facts(tmp_path, LOOPBACK)
    assert found.versions["torch"].startswith("2.") and found.versions["Python"].startswith("3.")
    assert abs(found.unix_s - time.time()) < 60 and found.free_bytes > 0
    assert (found.storage_problem, list(tmp_path.iterdir())) == ("", [])


def test_storage_that_overwrites_what_it_should_create_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems do; two owners of a run would follow."""
    real = os.open
    monkeypatch.setattr(host_facts.os, "open", lambda path, flags, *mode: real(path, flags & ~os.O_EXCL, *mode))
    assert "exclusively" in collect_host_facts(tmp_path, LOOPBACK).storage_problem


def test_storage_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    file = tmp_path / "no-folder"
    file.write_text("")
    assert "cannot be written" in host_facts._storage_problem(file)
    if os.getuid():
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        assert "cannot be written" in collect_host_facts(tmp_path, LOOPBACK).storage_problem


@pytest.mark.parametrize("elsewhere", ["checkpoints", "attempts"])
def test_checkpoints_that_cannot_be_renamed_into_place_are_found(new_disk, tmp_path: Path, elsewhere: str) -> None:
    for name in ("attempts", "checkpoints"):
        new_disk(64 << 10, tmp_path / name) if name == elsewhere else (tmp_path / name).mkdir()
    assert "must lie in one file system" in collect_host_facts(tmp_path, LOOPBACK).storage_problem
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_run_of_one_file_system_that_has_checkpoints_has_no_fault(tmp_path: Path) -> None:
    for name in ("attempts", "checkpoints"):
        (tmp_path / name).mkdir()
    assert collect_host_facts(tmp_path, LOOPBACK).storage_problem == ""
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_name_service_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(host_facts, "PATIENCE_S", 0.05)
    monkeypatch.setattr(socket, "gethostbyaddr", lambda _: hangs.wait())
    try:
        assert collect_host_facts(tmp_path, LOOPBACK).resolve_s == 0.05
    finally:
        hangs.set()


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo '0, 0'; echo '1, 2'", "GPU 1 has 2 uncorrected"),
        ("echo '0, [N/A]'", ""),
        ("echo 'No devices were found' >&2; exit 6", ""),
        ("echo 'Driver/library version mismatch' >&2; exit 18", "nvidia-smi fails: Driver/library version mismatch"),
        ("sleep 600", "does not answer"),
    ],
)
def test_what_is_wrong_with_gpus_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script.replace('sleep', 'exec sleep')}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(host_facts, "PATIENCE_S", 1.0)
    found = collect_host_facts(tmp_path, LOOPBACK)
    assert found.gpu_problem == told if not told else told in found.gpu_problem
    assert found.num_gpus == script.count("'0, ") + script.count("'1, ")


def test_a_link_is_measured_and_one_that_nobody_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    neighbour = Listener(LOOPBACK, 0, "key", links.serve_probe)
    neighbour.start()
    link = measure(LOOPBACK, neighbour.port, "key")
    neighbour.close()
    assert 0 < link.latency_s < 1 and link.bytes_per_s > 1e5
    monkeypatch.setattr(links, "PATIENCE_S", 0.1)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))  # and does not listen
        with pytest.raises(OSError, match="refused"):
            measure(LOOPBACK, taken.getsockname()[1], "key")


@pytest.mark.process
def test_a_host_whose_neighbours_stay_away_says_so_alone_and_its_end_is_in_order(tmp_path: Path) -> None:
    """What a thread writes while Python ends would abort it, and be its last line."""
    (tmp_path / "key").write_text("key")
    told = (str(tmp_path / "key"), LOOPBACK, "0", LOOPBACK, "1")
    impatient = f"from headway.training.launch.hosts import links; links.PATIENCE_S = 0.3; links.main(*{told})"
    ended = subprocess.run([sys.executable, "-c", impatient], capture_output=True, text=True, check=True)
    assert "refused" in json.loads(ended.stdout)["problem"] and ended.stderr == ""


@pytest.mark.process
def test_what_preflight_refuses_starts_no_rank_and_is_not_tried_again(toy_run) -> None:
    spec = LaunchSpec(preflight=PreflightSpec(environment=("NO_SUCH_SECRET",), min_free_bytes=1 << 62))
    with pytest.raises(EnvironmentProblem, match=r"NO_SUCH_SECRET is not set.*; .* GB are free for checkpoints, not"):
        supervise(spec, toy_run.gang(), ledger=toy_run.ledger, budget_scope="one", poll=toy_run.newest_step)
    assert toy_run.num_attempts() == 1
    folder = toy_run.attempt(1).folder
    assert list(folder.iterdir()) == [folder / "fence"] and list((folder / "fence").iterdir()) == []
    (record,) = AttemptRecords(toy_run.folder).all()
    assert (record.state, record.failure.cause, record.failure.retryable) == ("failed", "environment", False)


@pytest.mark.process
def test_hosts_that_preflight_let_through_are_not_looked_at_again(toy_run) -> None:
    gang = toy_run.gang("--trouble", json.dumps({"kind": "kill", "attempt": 1, "step": 1}), nodes=1)
    spec = LaunchSpec(nodes=1, backoff_s=0.0)
    supervise(spec, gang, ledger=toy_run.ledger, budget_scope="one", poll=toy_run.newest_step)
    assert (len(toy_run.events("attempt")), len(toy_run.events("attempt.preflight"))) == (2, 1)
