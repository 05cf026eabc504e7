"""`deployments/prefect.yaml` on a real server: deployed, scheduled, run by a worker, refused, cancelled."""

from __future__ import annotations

import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]
GONE_WITHIN_S = 10.0


@pytest.fixture(scope="module")
def completed(deployed: Any, worker: subprocess.Popen[bytes]) -> str:
    flow_run: str = deployed.run("tiny")
    state = deployed.wait_for_end(flow_run, within_s=150)
    assert state["type"] == "COMPLETED", state["message"]
    return flow_run


def test_the_file_names_no_path_of_a_machine_and_the_version_that_is_installed() -> None:
    text = (REPOSITORY / "deployments" / "prefect.yaml").read_text()
    assert str(REPOSITORY) not in text and "/home" not in text
    assert {each["version"] for each in yaml.safe_load(text)["deployments"]} == {version("headway")}


def test_every_shipped_pipeline_is_deployed_at_an_hour_of_its_own() -> None:
    deployments = yaml.safe_load((REPOSITORY / "deployments" / "prefect.yaml").read_text())["deployments"]
    pipelines = {path.stem for path in (REPOSITORY / "deployments").glob("*.yaml")} - {"prefect", "profiles"}
    assert {each["name"] for each in deployments} == pipelines
    assert all(each["parameters"] == {"request": {"pipeline": each["name"]}} for each in deployments)
    assert len({schedule["cron"] for each in deployments for schedule in each["schedules"]}) == len(deployments)


def test_deploying_again_from_the_repository_changes_nothing(service: Any) -> None:
    seen = []
    for _ in range(2):
        done = service.prefect("deploy", "--all", "--prefect-file", "deployments/prefect.yaml", cwd=REPOSITORY)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WARNING" not in done.stdout + done.stderr
        seen.append([_seen(service, name) for name in ("stdlib-lm", "digits", "breast-cancer")])
    assert seen[0] == seen[1]
    for _, parameters, variables, schedules in seen[0]:
        assert set(parameters["request"]) == {"pipeline"}
        assert variables["env"] == {"HEADWAY_PROJECT": str(REPOSITORY), "PYTHONSAFEPATH": "1"}
        assert schedules == [("nightly", "UTC", True)]


def _seen(service: Any, name: str) -> tuple[str, dict[str, Any], dict[str, Any], list[tuple[str, str, bool]]]:
    found = service.api(f"deployments/name/retrain/{name}")
    schedules = [(s["slug"], s["schedule"]["timezone"], s["active"]) for s in found["schedules"]]
    return found["id"], found["parameters"], found["job_variables"], schedules


def test_the_schedule_creates_runs(deployed: Any) -> None:
    deployment = deployed.api("deployments/name/retrain/stdlib-lm")["id"]
    asked = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}, "deployments": {"id": {"any_": [deployment]}}}
    deadline = time.monotonic() + 60
    while not (runs := deployed.api("flow_runs/filter", asked)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert runs, "no run within a minute"
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
    state = deployed.wait_for_end(deployed.run("refused"), within_s=90)
    assert state["type"] == "FAILED"
    assert "ContractViolation" in state["message"] and "snippets 1.0.0" in state["message"]
    assert "\n" not in state["message"] and "Traceback" not in state["message"]


def test_cancelling_leaves_no_process(
    deployed: Any, training_run: str, worker: subprocess.Popen[bytes], others: set[int]
) -> None:
    assert deployed.processes() - others, "ranks are running"
    assert deployed.prefect("flow-run", "cancel", training_run, cwd=deployed.folder).returncode == 0
    # Prefect takes its time to tell the flow; from then on it is ours.
    state = deployed.wait_for_end(training_run, within_s=60)
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
