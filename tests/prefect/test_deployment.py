"""`deployments/prefect.yaml` on a real server: deployed, scheduled, run by a worker, refused, cancelled."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from rich.console import Console

from flows.deploy.deploying import deploy

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
GONE_WITHIN_S = 30.0
PATIENT_S = 600.0
"""A run takes seconds, and many times as long on a busy machine."""


@pytest.fixture(scope="module")
def completed(deployed: Any, worker: subprocess.Popen[bytes]) -> str:
    flow_run: str = deployed.run("tiny")
    state = deployed.wait_for_end(flow_run, within_s=PATIENT_S)
    assert state["type"] == "COMPLETED", state["message"]
    return flow_run


def test_deploying_again_changes_nothing_and_leaves_nothing_to_headway_deploy(deployed: Any) -> None:
    names = ("retrain/stdlib-lm", "retrain/digits", "retrain/breast-cancer", "move-champion/champion")
    before = [_seen(deployed, name) for name in names]
    done = deployed.prefect("deploy", "--all", "--prefect-file", "deployments/prefect.yaml", cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    assert [_seen(deployed, name) for name in names] == before
    with temporary_settings({PREFECT_API_URL: deployed.url}):
        told = deploy(REPOSITORY, "production", dry_run=True, console=Console(quiet=True))
    # The pool was made by hand, as the file's comment says, and is used as it is.
    left = {(change.action, change.kind) for change in told.changes}
    assert ("leave", "work pool") in left and ("create", "automation") in left
    assert "deployment" not in {kind for _, kind in left}, told.changes


def _seen(service: Any, name: str) -> dict[str, Any]:
    """All but what says when it was put there, and the schedules' own ids."""
    found: dict[str, Any] = service.api(f"deployments/name/{name}")
    schedules = [
        {key: each[key] for key in ("slug", "schedule", "active", "parameters")} for each in found["schedules"]
    ]
    new_each_time = ("updated", "version_id", "version_info", "last_polled", "status")
    return {key: value for key, value in found.items() if key not in new_each_time} | {"schedules": schedules}


def test_the_schedule_creates_runs(deployed: Any) -> None:
    deployment = deployed.api("deployments/name/retrain/stdlib-lm")["id"]
    asked = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}, "deployments": {"id": {"any_": [deployment]}}}
    deadline = time.monotonic() + PATIENT_S
    while not (runs := deployed.api("flow_runs/filter", asked)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert runs, "no run was created"
    assert all(run["expected_start_time"][11:16] == "01:00" for run in runs if run["auto_scheduled"])


def test_the_form_asks_for_one_model_with_a_title_and_a_description_for_every_field(deployed: Any) -> None:
    schema = deployed.api("deployments/name/retrain/stdlib-lm")["parameter_openapi_schema"]
    fields = schema["definitions"]["RetrainRequest"]["properties"]
    bounds = ["in_window", "stop_at", "stop_because", "stop_at_step"]
    assert list(fields) == ["pipeline", "workspace", "may_promote", "note", *bounds]
    assert all(field["title"][0].isupper() and field["description"] for field in fields.values())


def test_a_run_finds_the_project_by_name_from_any_folder_and_completes(deployed: Any, completed: str) -> None:
    run = deployed.api(f"flow_runs/{completed}")
    assert run["state"]["type"] == "COMPLETED"
    assert (deployed.folder / "workspace" / "refs").is_dir()


def test_task_runs_say_what_they_do(deployed: Any, completed: str) -> None:
    asked = {"flow_runs": {"id": {"any_": [completed]}}, "sort": "EXPECTED_START_TIME_ASC"}
    names = [task["name"] for task in deployed.api("task_runs/filter", asked)]
    assert [name.split()[0] for name in names] == [
        *("snapshot", "validate", "shard", "train", "verify", "evaluate", "register")
    ]
    assert all(len(name.split()) > 1 for name in names), names


def test_markdown_table_progress_and_link_artifacts_are_there_and_none_is_empty(deployed: Any, completed: str) -> None:
    found = deployed.api("artifacts/filter", {"flow_runs": {"id": {"any_": [completed]}}})
    assert {artifact["type"] for artifact in found} >= {"markdown", "table", "progress"}
    # Prefect keeps a link as Markdown.
    assert any("](http" in str(artifact["data"]) and "#/models/tiny" in str(artifact["data"]) for artifact in found)
    assert all(artifact["data"] not in (None, "", "[]") for artifact in found)
    assert all(artifact["description"] for artifact in found)
    progress = next(artifact for artifact in found if artifact["type"] == "progress")
    assert float(progress["data"]) == 100


def test_a_contract_violation_is_the_flow_runs_one_message(deployed: Any, worker: subprocess.Popen[bytes]) -> None:
    state = deployed.wait_for_end(deployed.run("refused"), within_s=PATIENT_S)
    assert state["type"] == "FAILED"
    assert "ContractViolation" in state["message"] and "snippets 1.0.0" in state["message"]
    assert "\n" not in state["message"] and "Traceback" not in state["message"]


def test_cancelling_leaves_no_process(
    deployed: Any, training_run: str, worker: subprocess.Popen[bytes], others: set[int]
) -> None:
    assert deployed.processes() - others, "ranks are running"
    assert deployed.prefect("flow-run", "cancel", training_run, cwd=deployed.folder).returncode == 0
    # Prefect takes its time to tell the flow; from then on it is ours.
    state = deployed.wait_for_end(training_run, within_s=PATIENT_S)
    assert state["type"] == "CANCELLED", state
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := deployed.processes() - others) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def test_a_cancelled_run_kept_a_checkpoint(deployed: Any) -> None:
    kept = (deployed.folder / "workspace").glob("runs/*/checkpoints/*/manifest.json")
    assert any(kept)


@pytest.fixture
def others(deployed: Any, worker: subprocess.Popen[bytes], request: pytest.FixtureRequest) -> set[int]:
    """Server and worker: what runs when no flow does."""
    running = deployed.processes()
    return {pid for pid in running if b"prefect.engine" not in Path(f"/proc/{pid}/cmdline").read_bytes()}
