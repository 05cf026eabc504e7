"""`headway doctor PIPELINE` where ranks would be started: real hosts, a real Slurm, an emulated Kubernetes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from headway.training.config.launcher_specs import SlurmSpec
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.hosts.probe import HEADWAY_HOME
from tests.cluster.conftest import kubernetes_spec, ssh_spec
from tests.cluster.kubernetes_recorder import KubernetesRecorder
from tests.cluster.namespaces import NamespaceHost, NamespaceHosts
from tests.cluster.slurm import SlurmCluster
from tests.e2e.project import CONTRACT, PIPELINE, write_texts
from tests.warm_programs import run_program


def look(tmp_path: Path, launch: LaunchSpec, head: NamespaceHost | None = None) -> tuple[int, str, str]:
    """Exit status, and what is said of the hosts.

    Args:
        head: where the command is given.
    """
    write_texts(tmp_path / "texts")
    told = PIPELINE.replace("launch: {nodes: 1, ranks_per_node: 2}", f"launch: {launch.model_dump_json()}")
    (tmp_path / "tiny.yaml").write_text(told)
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    words = ("tests.cluster.hosts_doctor", str(tmp_path / "tiny.yaml"), "--json")
    workspace = {"HEADWAY_WORKSPACE": str(tmp_path / "workspace"), "PYTHONPATH": HEADWAY_HOME}
    done = run_program(
        (sys.executable, "-m", *words) if head is None else head.runs(*words),
        env={**os.environ, **workspace},
        cwd=tmp_path,
    )
    findings = {each["what"]: each for each in json.loads(done.stdout)["findings"]}
    assert f"hosts ({launch.launcher})" in findings, done.stdout
    hosts = findings[f"hosts ({launch.launcher})"]
    assert not list((tmp_path / "workspace" / "runs").iterdir()), "nothing is left of the look"
    return done.returncode, hosts["state"], hosts["message"]


def test_hosts_that_answer_are_named_and_so_is_one_that_is_cut_off(hosts: NamespaceHosts, tmp_path: Path) -> None:
    head, *others = hosts.hosts[:3]
    spec = ssh_spec(NamespaceHosts(hosts.folder, (head, *others)), nodes=2)
    code, state, message = look(tmp_path, spec, head)
    assert (code, state) == (0, "ok") and all(host.address in message for host in others)
    others[1].cut()
    try:
        code, state, message = look(tmp_path, spec, head)
    finally:
        others[1].mend()
    assert (code, state) == (8, "FAULT")
    assert message.startswith("launch: 1 of 2 hosts can take a node") and others[1].address in message


def test_slurm_is_asked_whether_it_would_take_the_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    assert look(tmp_path, LaunchSpec(launcher="slurm"))[:2] == (0, "ok")
    code, state, message = look(tmp_path, LaunchSpec(launcher="slurm", slurm=SlurmSpec(partition="palette")))
    assert (code, state) == (8, "FAULT") and "invalid partition specified: palette" in message
    assert slurm.command("squeue", "--noheader") == ""


def test_kubernetes_is_asked_whether_it_would_keep_the_objects(kubernetes: KubernetesRecorder, tmp_path: Path) -> None:
    spec = kubernetes_spec(tmp_path)
    assert look(tmp_path, spec)[:2] == (0, "ok")
    kubernetes.denied.add("create jobs")
    try:
        code, state, message = look(tmp_path, spec)
    finally:
        kubernetes.denied.clear()
    assert (code, state) == (8, "FAULT") and 'cannot create resource "jobs"' in message
    assert not kubernetes.objects
