"""`deployments/prefect.yaml` on a real server: deployed, scheduled, run by a worker, refused, cancelled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headway.data_contracts.store.publication import Workspace
from headway.flows.deploy.deploying import deploy
from headway.tasks.registry.model_refs import versions
from tests.waiting import wait_until

from .conftest import POLL_EVERY_S, QUEUE, guard_states, halted_ranks, working

REPOSITORY = Path(__file__).resolve().parents[2]
GONE_WITHIN_S = 30.0
PATIENT_S = 600.0
"""A run takes seconds, and many times as long on a busy machine."""


PIPELINES = ("stdlib-lm", "digits", "breast-cancer")
SHIPPED = "breast-cancer"
SMALLER = {
    "stdlib-lm": {
        'include: ["**/*.py"]': 'include: ["json/*.py", "email/*.py", "asyncio/*.py", "unittest/*.py"]',
        "vocab_size: 2048": "vocab_size: 300",
        "num_groups: 8": "num_groups: 2",
        "heldout_fraction: 0.05": "heldout_fraction: 0.2",
        "warmup_steps: 30": "warmup_steps: 5",
        "max_steps: 1000": "max_steps: 20",
    },
    "digits": {"max_steps: 400": "max_steps: 30"},
    "breast-cancer": {"max_steps: 300": "max_steps: 60"},
}
"""What is changed of a shipped pipeline, so that it costs seconds; all else, and every stage, is as shipped."""


@pytest.fixture(scope="module")
def smaller(deployed: Any) -> Path:
    """A project folder with the shipped pipelines, over a part of their data and for a few steps."""
    folder: Path = deployed.folder / "smaller"
    for name in ("deployments", "data_contracts/contracts"):
        shutil.copytree(REPOSITORY / name, folder / name)
    for name, changes in SMALLER.items():
        for old, new in changes.items():
            edit(folder / "deployments" / f"{name}.yaml", old, new)
    edit(folder / "data_contracts" / "contracts" / "python-sources.yaml", "rows: {min: 500,", "rows: {min: 50,")
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new))


def run_to_its_end(deployed: Any, project: Path, deployment: str, request: dict[str, Any]) -> str:
    flow_run: str = deployed.run_in(project, deployment, request)
    state = deployed.wait_for_end(flow_run, within_s=PATIENT_S)
    assert state["type"] == "COMPLETED", state["message"]
    return flow_run


@pytest.fixture(scope="module")
def completed(deployed: Any, smaller: Path) -> str:
    """A run of a shipped retrain, of the pipeline that costs least; worker and run are fresh processes."""
    with working(deployed):
        return run_to_its_end(deployed, smaller, f"retrain/{SHIPPED}", {"pipeline": SHIPPED})


def test_deploying_again_changes_nothing_and_leaves_headway_deploy_no_more_than_what_forms_offer(deployed: Any) -> None:
    names = (*(f"retrain/{name}" for name in PIPELINES), "move-champion/champion", "housekeeping/workspace")
    assert set(names) == _deployed_by_the_file(deployed)
    before = [_seen(deployed, name) for name in names]
    done = deployed.prefect("deploy", "--all", "--prefect-file", "deployments/prefect.yaml", cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    assert [_seen(deployed, name) for name in names] == before
    with deployed.configured():
        told = deploy(REPOSITORY, "production", dry_run=True, console=Console(quiet=True))
    # The pool was made by hand, as the file's comment says, and is used as it is.
    left = {(change.action, change.kind) for change in told.changes}
    assert ("leave", "work pool") in left and ("create", "automation") in left
    # Prefect's file cannot say which pipelines a form offers, and that is all it lacks.
    fields = [field for change in told.changes if change.kind == "deployment" for field in change.fields]
    assert fields and {field.field for field in fields} == {"parameter_openapi_schema"}, told.changes
    for field in fields:
        assert _without_offers(field.before) == _without_offers(field.after)


def _without_offers(form: Any) -> Any:
    if isinstance(form, list):
        return [_without_offers(each) for each in form]
    if not isinstance(form, dict):
        return form
    return {name: _without_offers(each) for name, each in form.items() if name not in ("enum", "examples")}


def _deployed_by_the_file(service: Any) -> set[str]:
    """Names of those that carry its mark; other tests' may be on the server."""
    flows = {each["id"]: each["name"] for each in service.api("flows/filter", {})}
    found = service.api("deployments/filter", {"deployments": {"tags": {"all_": ["headway:headway:production"]}}})
    return {f"{flows[each['flow_id']]}/{each['name']}" for each in found}


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
    requested = {
        "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
        "deployments": {"id": {"any_": [deployment]}},
    }
    deadline = time.monotonic() + PATIENT_S
    while not (runs := deployed.api("flow_runs/filter", requested)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert runs, "no run was created"
    assert all(run["expected_start_time"][11:16] == "01:00" for run in runs if run["auto_scheduled"])


def test_the_form_asks_for_one_model_with_a_title_and_a_description_for_every_field(deployed: Any) -> None:
    schema = deployed.api("deployments/name/retrain/stdlib-lm")["parameter_openapi_schema"]
    fields = schema["definitions"]["RetrainRequest"]["properties"]
    bounds = ["in_window", "stop_at", "stop_because", "wait_s", "stop_at_step"]
    assert fields["stop_because"]["default"] == "requested", "a form presets no reason that is a window's"
    resumed = ["run", "from_step"]
    assert list(fields) == ["pipeline", "workspace", "may_promote", "may_register", "note", *bounds, *resumed]
    assert all(field["title"][0].isupper() and field["description"] for field in fields.values())


def test_each_shipped_deployment_asks_for_its_own_pipeline(deployed: Any) -> None:
    requested = {name: deployed.api(f"deployments/name/retrain/{name}")["parameters"]["request"] for name in PIPELINES}
    assert requested == {name: {"pipeline": name} for name in PIPELINES}
    assert all((REPOSITORY / "deployments" / f"{name}.yaml").is_file() for name in PIPELINES)


def registered(deployed: Any, model: str) -> list[str]:
    workspace = Workspace(str(deployed.folder / "workspace"))
    return [str(entry.detail["version"]) for entry in versions(workspace, model)]


def test_a_shipped_pipeline_runs_from_its_deployment_and_ends_registered(deployed: Any, completed: str) -> None:
    assert registered(deployed, SHIPPED) == ["1"]


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in PIPELINES if name != SHIPPED])
def test_every_other_shipped_pipeline_runs_from_its_deployment_and_ends_registered(
    deployed: Any, smaller: Path, worker: subprocess.Popen[bytes], name: str
) -> None:
    run_to_its_end(deployed, smaller, f"retrain/{name}", {"pipeline": name})
    assert registered(deployed, name) == ["1"]


def test_the_shipped_housekeeping_says_what_could_go_and_takes_nothing(
    deployed: Any, smaller: Path, completed: str, worker: subprocess.Popen[bytes]
) -> None:
    workspace = deployed.folder / "workspace"
    old = workspace / "shards" / "none" / "shard.parquet"
    old.parent.mkdir()
    old.write_bytes(b"rows")
    os.utime(old, (time.time() - 90 * 86400,) * 2)
    request = deployed.api("deployments/name/housekeeping/workspace")["parameters"]["request"]
    flow_run = run_to_its_end(deployed, smaller, "housekeeping/workspace", request)
    found = deployed.api("artifacts/filter", {"flow_runs": {"id": {"any_": [flow_run]}}})
    pages = {each["key"]: each["data"] for each in found}
    assert "would go; nothing was touched" in pages["housekeeping"] and old.exists()
    assert "champions and unfinished runs need" in pages["scrub"] and "none" in pages["scrub"]


def test_task_runs_say_what_they_do(deployed: Any, completed: str) -> None:
    requested = {"flow_runs": {"id": {"any_": [completed]}}, "sort": "EXPECTED_START_TIME_ASC"}
    names = [task["name"] for task in deployed.api("task_runs/filter", requested)]
    assert [name.split()[0] for name in names] == [
        *("snapshot", "validate", "shard", "train", "verify", "evaluate", "register")
    ]
    assert all(len(name.split()) > 1 for name in names), names


def test_markdown_table_progress_and_link_artifacts_are_there_and_none_is_empty(deployed: Any, completed: str) -> None:
    found = deployed.api("artifacts/filter", {"flow_runs": {"id": {"any_": [completed]}}})
    assert {artifact["type"] for artifact in found} >= {"markdown", "table", "progress"}
    # Prefect keeps a link as Markdown.
    assert any("](http" in str(each["data"]) and f"#/models/{SHIPPED}" in str(each["data"]) for each in found)
    assert all(artifact["data"] not in (None, "", "[]") for artifact in found)
    assert all(artifact["description"] for artifact in found)
    progress = next(artifact for artifact in found if artifact["type"] == "progress")
    assert float(progress["data"]) == 100


def test_a_contract_violation_is_the_flow_runs_one_message(deployed: Any, worker: subprocess.Popen[bytes]) -> None:
    state = deployed.wait_for_end(deployed.run("refused"), within_s=PATIENT_S)
    assert state["type"] == "FAILED"
    assert "ContractViolation" in state["message"] and "snippets 1.0.0" in state["message"]
    assert "\n" not in state["message"] and "Traceback" not in state["message"]


def test_cancelling_leaves_no_process_and_keeps_a_checkpoint(
    deployed: Any, training_run: str, worker: subprocess.Popen[bytes], others: set[int]
) -> None:
    assert deployed.processes() - others, "ranks are running"
    workspace = deployed.folder / "workspace"
    with halted_ranks(workspace):
        assert deployed.prefect("flow-run", "cancel", training_run, cwd=deployed.folder).returncode == 0
        # Prefect takes its time to tell the flow; from then on it is ours.
        wait_until(lambda: "stopping" in guard_states(workspace), what="the guard's stop", every_s=POLL_EVERY_S)
    state = deployed.wait_for_end(training_run, within_s=PATIENT_S)
    assert state["type"] == "CANCELLED", state
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := deployed.processes() - others) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    spools = workspace.glob("runs/*/attempts/*/ledger/rank-0.jsonl")
    cancelled = max(spools, key=lambda path: path.stat().st_mtime).parents[3]
    assert any(cancelled.glob("checkpoints/*/manifest.json")), "it kept a checkpoint"


@pytest.fixture
def others(deployed: Any, worker: subprocess.Popen[bytes], request: pytest.FixtureRequest) -> set[int]:
    """Server and worker: what runs when no flow does."""
    return deployed.processes() - deployed.flow_processes()


PROFILE = "project: searching\nprofiles: {production: {pool: {name: headway}, suffix: -searching, notify: none}}\n"
TRIALS = "trials: {vary: {optimizer.lr: [0.002, 0.01]}, rungs: [10], min_starts: 0}\n"


@pytest.fixture
def searching(deployed: Any, project: Path, tmp_path: Path) -> Iterator[Path]:
    """A project whose one pipeline has trials, deployed; nothing of it is left on the server."""
    folder = tmp_path / "searching"
    shutil.copytree(project, folder)
    for name in ("endless", "refused"):
        (folder / "deployments" / f"{name}.yaml").unlink()
    (folder / "deployments" / "profiles.yaml").write_text(PROFILE)
    tiny = folder / "deployments" / "tiny.yaml"
    tiny.write_text(tiny.read_text().replace("tiny", "searched").replace("searched-contract", "tiny-contract") + TRIALS)
    edit(tiny, "bootstrap_resamples: 100", "bootstrap_resamples: 100, ranking_share: 0.5")
    tiny.rename(tiny.with_name("searched.yaml"))
    with deployed.configured():
        deploy(folder, "production", console=Console(quiet=True))
    yield folder
    for kind in ("automations", "deployments"):
        for each in deployed.api(f"{kind}/filter", {}):
            if "headway:searching:" in str(each):
                deployed.api(f"{kind}/{each['id']}", method="DELETE")


def test_a_search_runs_from_its_deployment_and_its_best_trial_ends_registered(
    deployed: Any, searching: Path, worker: subprocess.Popen[bytes]
) -> None:
    name = "trials/searched-searching"
    found = deployed.api(f"deployments/name/{name}")
    # The worker of these tests looks at a queue of its own.
    queue = {"work_pool_name": "headway", "work_queue_name": QUEUE}
    deployed.api(f"deployments/{found['id']}", queue, method="PATCH")

    asked = deployed.prefect("deployment", "run", name, cwd=deployed.folder)

    assert asked.returncode == 0, asked.stdout + asked.stderr
    (flow_run,) = deployed.api("flow_runs/filter", {"deployments": {"id": {"any_": [found["id"]]}}})
    assert deployed.wait_for_end(flow_run["id"], within_s=PATIENT_S)["type"] == "COMPLETED"
    assert registered(deployed, "searched") == ["1"]
    workspace = deployed.folder / "workspace"
    (page,) = workspace.glob("ledger/*/trials.json")
    trials = json.loads(page.read_bytes())["trials"]
    assert sorted(each["steps"] for each in trials) == [10, 20] and not any(each["what"] for each in trials)
