"""Drills and probes with ranks on other machines: a failure is planted where its rank is, and nothing is left there."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.exposition import generate_latest

from headway.data_contracts.store.publication import Workspace
from headway.flows.drill.evidence import RunEvidence
from headway.flows.drill.report import has_its_digest
from headway.flows.drill.sandbox import SANDBOX, sandbox
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
from headway.flows.probe.probing import run_probe
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.hosts.probe import HEADWAY_HOME
from tests.cluster.conftest import PATIENT, QUICK, kubernetes_spec, ssh_spec
from tests.cluster.kubernetes_recorder import KubernetesRecorder
from tests.cluster.namespaces import NamespaceHosts
from tests.cluster.slurm import SlurmCluster
from tests.e2e.project import CONTRACT, PIPELINE
from tests.waiting import wait_until

WITHIN_S = 600.0
SLURM = LaunchSpec(launcher="slurm", **QUICK, **PATIENT)
Drill = Callable[..., dict[str, Any]]


@pytest.fixture
def drill(tmp_path: Path) -> Drill:
    """The command, with a workspace in which somebody's run lies, in a project whose pipeline is launched so."""

    def drill(launch: LaunchSpec, *modes: str, enter: Sequence[str] = ()) -> dict[str, Any]:
        (deployments := tmp_path / "project" / "deployments").mkdir(parents=True)
        said = yaml.safe_load(PIPELINE) | {"contract": "../contract.yaml"}
        said["launch"] = launch.model_dump(mode="json", exclude_unset=True)
        (deployments / "theirs.yaml").write_text(yaml.safe_dump(said))
        (deployments.parent / "contract.yaml").write_text(CONTRACT)
        (theirs := tmp_path / "workspace" / "runs" / "theirs").mkdir(parents=True)
        done = subprocess.run(
            [
                *(*enter, sys.executable, "-P", "-m", "headway", "drill", *modes, "--seed", "7", "--json"),
                *("--launcher", launch.launcher, "--workspace", str(tmp_path / "workspace")),
            ],
            cwd="/",
            env={**os.environ, "PYTHONPATH": HEADWAY_HOME, "HEADWAY_PROJECT": str(tmp_path / "project")},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
        )
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == 0, f"{done.stderr}\n{json.dumps(report, indent=1)}"
        assert has_its_digest(report) and report["launcher"] == launch.launcher
        assert [(each["mode"], each["state"]) for each in report["drills"]] == [(mode, "passed") for mode in modes]
        assert all(each["figures"]["processes_left"] == 0 for each in report["drills"])
        assert [*(tmp_path / "workspace").rglob("*")] == [theirs.parent, theirs]
        assert _living(tmp_path) == []
        return report

    return drill


@pytest.mark.soak
def test_over_ssh_a_rank_that_nothing_reaches_is_seen_from_outside(hosts: NamespaceHosts, drill: Drill) -> None:
    (cut,) = drill(ssh_spec(hosts), "F3", enter=hosts.hosts[0].enter())["drills"]
    assert cut["figures"]["equal_bits"] and cut["figures"]["stacks_kept"]


def test_a_rank_of_a_job_kills_itself_as_planned_and_nothing_of_the_sandbox_stays(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    with sandbox(7, launch=SLURM, shared=tmp_path / "workspace" / "drills") as made:
        made.write_pipeline("drill", {})
        made.plan(how="kill", rank=1, attempt=1, after=25)
        ended = made.retrain("drill")
        planted, records = made.planted(), RunEvidence(made.workspace, "drill").records
    assert (ended.code, ended.processes_left) == (0, 0), ended
    assert [record.state for record in records] == ["failed", "done"] and records[0].failure.rank == 1
    assert planted is not None and (planted["rank"], planted["micro_batch"]) == (1, 25)
    assert slurm.command("squeue", "--noheader") == "" and _living(tmp_path) == []
    assert [*tmp_path.rglob("*")] == [tmp_path / "workspace"]


@pytest.mark.soak
def test_ctrl_c_ends_the_job_before_its_folder_goes(slurm: SlurmCluster, tmp_path: Path) -> None:
    def interrupt(_command: object) -> None:
        if made.planted() is not None:
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        sandbox(7, launch=SLURM, shared=tmp_path / "workspace" / "drills") as made,
    ):
        made.write_pipeline("drill", {"training": {"max_steps": 1_000_000}})
        made.plan(how="note", rank=0, attempt=1, after=25)
        made.retrain("drill", meanwhile=interrupt)
    wait_until(lambda: slurm.command("squeue", "--noheader") == "", what="no job")
    assert _living(tmp_path) == [] and [*tmp_path.rglob("*")] == [tmp_path / "workspace"]


@pytest.mark.soak
def test_on_slurm_a_checkpoint_that_a_node_damaged_is_quarantined_by_the_job(slurm: SlurmCluster, drill: Drill) -> None:
    (damaged,) = drill(SLURM, "F4")["drills"]
    assert damaged["figures"]["equal_bits"] and damaged["alert"]["raised"]
    assert slurm.command("squeue", "--noheader") == ""


@pytest.mark.soak
def test_on_kubernetes_a_missing_variable_is_named_and_then_given_to_the_pods(
    kubernetes: KubernetesRecorder, drill: Drill, tmp_path: Path
) -> None:
    (forgotten,) = drill(kubernetes_spec(tmp_path, toys=False), "F1")["drills"]
    assert forgotten["figures"]["equal_bits"] and forgotten["figures"]["ranks_started"] == 0
    assert kubernetes.living() == []


def probe_on(launch: LaunchSpec, folder: Path) -> None:
    """One that comes to its end, and is told apart by its launcher."""
    workspace = Workspace.create(str(folder / "workspace"))
    made = run_probe(workspace, launch, interval_s=3600.0, within_s=WITHIN_S)
    assert made.has_succeeded, made
    text = generate_latest(WorkspaceMetrics(workspace)).decode()
    assert f'headway_probe_success{{launcher="{launch.launcher}"}} 1.0' in text


@pytest.mark.soak
def test_a_probe_goes_through_slurms_queue(slurm: SlurmCluster, tmp_path: Path) -> None:
    probe_on(SLURM, tmp_path)
    assert slurm.command("squeue", "--noheader") == ""


@pytest.mark.soak
def test_a_probe_is_pods_of_kubernetes(kubernetes: KubernetesRecorder, tmp_path: Path) -> None:
    probe_on(kubernetes_spec(tmp_path, toys=False), tmp_path)
    assert kubernetes.living() == []


def _living(below: Path) -> list[Path]:
    """Processes of any sandbox there, on whichever host they are."""
    return [path for path in Path("/proc").glob("[0-9]*") if f"{SANDBOX}={below}".encode() in _environment(path)]


def _environment(process: Path) -> bytes:
    with contextlib.suppress(OSError):
        return (process / "environ").read_bytes()
    return b""
