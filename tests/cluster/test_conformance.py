"""What every launcher does alike, each over the real thing but for Kubernetes, which is emulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from headway.training.config.checkpoints import CheckpointSpec
from headway.training.config.launcher_specs import SecretKey
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.process_tree import processes_with
from headway.training.launch.base.protocol import TOKEN
from headway.training.launch.base.stop_request import request_stop
from tests.cluster.conftest import PATIENT, QUICK, OwnedRun, delete_all, kubernetes_spec, ssh_spec
from tests.cluster.namespaces import NamespaceHosts
from tests.listening import listening
from tests.training.conftest import TINY, make_project
from tests.waiting import wait_until

BACKENDS = ("local", "ssh", "slurm", "kubernetes")
SECRET = "a-word-that-nobody-else-says"


@pytest.fixture(params=BACKENDS)
def start(
    request: pytest.FixtureRequest, new_run: Callable[..., OwnedRun], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., OwnedRun]:
    """Starts a run of two nodes on the backend; where it takes secrets by reference, by that alone.

    Its agents are toys but where it is said that the real ones do the same.
    """
    if request.param != "kubernetes":
        monkeypatch.setenv("PALETTE_KEY", SECRET)

    def start(
        *words: str, module: str = "toy_worker", agents: Literal["real", "toys"] = "toys", **fields: Any
    ) -> OwnedRun:
        if request.param == "ssh":
            hosts = request.getfixturevalue("hosts")
            run = new_run(ssh_spec(hosts, **fields), hosts.hosts[0], agents)
        elif request.param == "kubernetes":
            cluster = request.getfixturevalue("kubernetes")
            request.addfinalizer(lambda: delete_all(cluster))
            cluster.secrets["palette"] = {"key": SECRET}
            pods = {"secrets": {"PALETTE_KEY": SecretKey(secret="palette", key="key")}}
            spec = kubernetes_spec(tmp_path, toys=agents == "toys", pods=pods, **fields)
            run = new_run(spec, None, agents)
        else:
            if request.param == "slurm":
                request.getfixturevalue("slurm")
            run = new_run(LaunchSpec(launcher=request.param, **QUICK | PATIENT | fields), None, agents)
        run.begin(*words, module=module)
        return run

    return start


def trouble(kind: str, **fields: object) -> tuple[str, str]:
    return "--trouble", json.dumps({"kind": kind, "step": 3, "rank": 1, "attempt": 1, **fields})


@pytest.mark.parametrize("agents", ["toys", pytest.param("real", marks=pytest.mark.soak)])
def test_a_run_comes_to_its_end_over_a_killed_rank_and_leaves_nobody(
    start: Callable[..., OwnedRun], agents: Literal["real", "toys"]
) -> None:
    """Over the real agents, which import torch on each node, also `test_drill` and `test_soak` lose a rank."""
    run = start("--steps", "8", "--children", *trouble("kill"), agents=agents)
    assert run.ends() == 0, run.message
    assert [record["state"] for record in run.records()] == ["failed", "done"]
    assert "rank 1 was killed" in run.records()[0]["failure"]["what"]
    assert processes_with(TOKEN, run.token) == []
    assert {marker.node for marker in run.files.read_markers().values()} == {0, 1}
    assert all(list(run.files.rank_logs(node).glob("**/stdout.log")) for node in (0, 1))


def test_a_secret_of_the_owners_environment_reaches_ranks_and_is_nowhere_to_be_read(
    start: Callable[..., OwnedRun],
) -> None:
    run = start("--steps", "999999")
    run.until_it_steps(1)

    def told() -> list[int]:
        return [pid for pid in run.processes() if SECRET.encode() in _bytes(f"/proc/{pid}/environ")]

    wait_until(lambda: len(told()) >= 2 * 2, what="the secret in the environment of agents and ranks")
    there = list(run.processes())
    assert not any(SECRET.encode() in _bytes(f"/proc/{pid}/cmdline") for pid in there)
    assert not [path for path in run.folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_a_run_that_is_asked_to_stop_keeps_its_place_and_the_next_owner_goes_on(start: Callable[..., OwnedRun]) -> None:
    run = start("--steps", "999999")
    run.until_it_steps(1)
    request_stop(run.folder, "enough")
    assert run.ends() == 75, run.message
    assert {marker.state for marker in run.files.read_markers().values()} == {"stopped"}
    kept = int((run.folder / "checkpoint-0.txt").read_text())
    run.begin("--steps", str(run.step_of(1) + 2))
    assert run.ends() == 0, run.message
    assert run.step_of(2) > kept > 0


def test_a_halted_rank_is_the_one_that_is_named(start: Callable[..., OwnedRun]) -> None:
    run = start("--steps", "6", *trouble("halt"), progress_deadline_s=5, max_attempts=1)
    assert run.ends() != 0
    (overdue,) = run.events("attempt.overdue")
    assert overdue["ranks"] == [1] and "rank 1 halted at step 3" in overdue["what"]


def test_the_real_worker_learns_the_same_bits_wherever_it_runs_and_listens_on_no_wildcard(
    start: Callable[..., OwnedRun], tmp_path_factory: pytest.TempPathFactory
) -> None:
    project = make_project(tmp_path_factory.mktemp("project"))
    spec = project.publish_run(LONG_ENOUGH)
    run = start(
        "--workspace",
        project.workspace.uri,
        "--run-spec",
        spec.sha256,
        module="headway.training.programs.worker",
        agents="real",
    )
    heard: set[str] = set()

    def listen() -> None:
        # Slurm's own client has Slurm's own ports, and its credentials.
        ours = [pid for pid in run.processes() if _bytes(f"/proc/{pid}/comm") != b"srun\n"]
        heard.update(address for pid in ours for address, _ in listening(pid))

    def listened_while_it_trains() -> bool:
        trains = run.step_of(1) > 0
        listen()
        assert run.owners[-1].poll() is None, run.message
        return trains

    def listened_to_its_end() -> bool:
        listen()
        return run.owners[-1].poll() is not None

    # In pauses: it needs the processor as well.
    wait_until(listened_while_it_trains, what="its first step")
    wait_until(listened_to_its_end, what="its end", every_s=0.5)
    assert run.ends() == 0, run.message
    assert heard and not heard & {"0.0.0.0", "::"}, heard
    bits = json.loads((run.folder / "result.json").read_text())["tensors_sha256"]
    assert bits == LEARNT.setdefault("bits", bits)


def test_with_one_host_left_the_real_worker_learns_the_same_bits(
    hosts: NamespaceHosts, new_run: Callable[..., OwnedRun], tmp_path_factory: pytest.TempPathFactory
) -> None:
    project = make_project(tmp_path_factory.mktemp("project"))
    spec = project.publish_run(LONG_ENOUGH)
    run = new_run(ssh_spec(hosts, min_nodes=1), hosts.hosts[0])
    for host in hosts.hosts[2:]:
        host.cut()
    try:
        words = ("--workspace", project.workspace.uri, "--run-spec", spec.sha256)
        run.begin(*words, module="headway.training.programs.worker")
        assert run.ends() == 0, run.message
    finally:
        for host in hosts.hosts[2:]:
            host.mend()
    assert {marker.node for marker in run.files.read_markers().values()} == {0}
    bits = json.loads((run.folder / "result.json").read_text())["tensors_sha256"]
    assert bits == LEARNT.setdefault("bits", bits)


LONG_ENOUGH = TINY.model_copy(
    update={"max_steps": 200, "global_batch_sequences": 4, "checkpoints": CheckpointSpec(every_steps=100)}
)
"""For a busy machine to look at its ports while it trains."""
LEARNT: dict[str, str] = {}
"""By the first backend."""


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
