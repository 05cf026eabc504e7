"""A drill's sandbox is new, is nobody's, and is a pipeline that loads; what it starts ends with it."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import ConfigError
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.drill.sandbox import SANDBOX, Sandbox, sandbox
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.process_tree import processes_with
from headway.training.launch.base.protocol import AttemptFiles, NodeStatus, write_json


def test_a_folder_that_is_there_is_refused_whatever_is_in_it(tmp_path: Path) -> None:
    (workspace := tmp_path / "workspace").mkdir()
    (workspace / "kept").touch()
    for taken in (workspace, workspace / "kept", tmp_path / "nowhere" / "new"):
        with pytest.raises(ConfigError, match="touches nothing that exists"), sandbox(1, taken):
            raise AssertionError
    assert [*workspace.iterdir()] == [workspace / "kept"]


def test_a_new_folder_stays_and_a_temporary_one_goes_though_the_body_fails(tmp_path: Path) -> None:
    with sandbox(1, tmp_path / "new") as kept:
        pass
    assert (kept.project / "contract.yaml").exists()
    with pytest.raises(RuntimeError), sandbox(1) as made:
        raise RuntimeError
    assert not made.root.exists()


def test_where_ranks_are_remote_it_lies_in_a_folder_that_they_see_and_goes_with_its_parent(tmp_path: Path) -> None:
    shared = tmp_path / "workspace" / "drills"
    given = {"launcher": "kubernetes", "kubernetes": {"image": "i", "volumes": [{"claim": "c", "mount_path": "/"}]}}
    with sandbox(1, launch=LaunchSpec.model_validate(given | {"nodes": 8}), shared=shared) as made:
        assert made.root.parent == shared
        made.write_pipeline("drill", {})
        launch = load_pipeline(made.project / "drill.yaml").launch
    assert (launch.nodes, launch.ranks_per_node, launch.detached.lease_s) == (2, 1, 60.0)
    assert launch.kubernetes is not None and launch.kubernetes.environment == {SANDBOX: str(made.root)}
    assert [*tmp_path.rglob("*")] == [shared.parent]


def test_who_says_from_afar_that_it_goes_on_is_left_and_who_has_ended_is_not(tmp_path: Path) -> None:
    made = Sandbox(tmp_path, 1, LaunchSpec.model_validate({"launcher": "ssh", "ssh": {"hosts": ["a", "b"]}}))
    attempt = tmp_path / "workspace/runs/0/attempts/001"
    attempt.mkdir(parents=True)
    for node, state in enumerate(("ended", "running")):
        status = NodeStatus(node=node, guard_pid=1, agent_pid=2, state=state, host=f"host-{node}")
        write_json(AttemptFiles(attempt).status(node), asdict(status))
    assert made._remote() == ["guard of node 1 on host-1"]
    assert Sandbox(tmp_path, 1)._remote() == [], "of this machine's processes the kernel tells"


OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_what_runs_there_knows_no_server_registry_or_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "HEADWAY_WORKSPACE", "HEADWAY_LIMITS", "DRILL_OLD", OTLP):
        monkeypatch.setenv(name, "of the team")
    monkeypatch.setenv("PATH_OF_MINE", "kept")
    found = Sandbox(tmp_path, 1).environment({"DRILL_NEW": "x"})
    assert "of the team" not in found.values()
    assert found["PATH_OF_MINE"] == "kept" and found["DRILL_NEW"] == "x" and found[SANDBOX] == str(tmp_path)
    ours = {name: value for name, value in found.items() if name.startswith(("PREFECT_", "HEADWAY_"))}
    assert all(Path(value).is_relative_to(tmp_path) for value in ours.values()) and len(ours) == 2


def test_its_pipeline_loads_and_the_same_seed_makes_the_same_rows(tmp_path: Path) -> None:
    for place in ("one", "two"):
        with sandbox(5, tmp_path / place) as made:
            made.write_pipeline("drill", {"launch": {"nodes": 1}})
    spec = load_pipeline(tmp_path / "one/project/drill.yaml")
    assert (spec.launch.nodes, spec.launch.backoff_s) == (1, 0.2)
    rows = [(tmp_path / place / "project/data/part-0.csv").read_text() for place in ("one", "two")]
    assert rows[0] == rows[1]


def test_a_plan_is_for_the_next_command_alone(tmp_path: Path) -> None:
    made = Sandbox(tmp_path, 1)
    made.plan(how="kill", rank=0)
    (tmp_path / "planted.json").write_text('{"unix_s": 1.0}')
    assert made.planted() == {"unix_s": 1.0}
    made.plan()
    assert made.planted() is None and [*tmp_path.iterdir()] == []


@pytest.mark.process
def test_whoever_is_left_is_ended_though_it_has_another_parent_by_now(tmp_path: Path) -> None:
    daemon = "import os, time\nif os.fork() == 0:\n os.setsid()\n os.fork() or time.sleep(600)"
    with sandbox(1, tmp_path / "new") as made:
        assert made.start((sys.executable, "-I", "-S", "-c", daemon), {}).wait() == 0
        assert [pid for pid in processes_with(SANDBOX, str(made.root)) if pid != os.getpid()]
    assert processes_with(SANDBOX, str(made.root)) == []
