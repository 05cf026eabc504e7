"""The daily deployment: what killed processes left behind ends, and nothing goes unless it is told to take it."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.leftovers import MACHINE
from headway.data_contracts.store.publication import Workspace
from headway.flows.housekeeping_flow import HousekeepingRequest, housekeeping
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
from headway.flows.show.status import print_status, read_status
from headway.tasks.registry import mlflow_store, tracked_runs
from headway.training.checkpoint.layout import checkpoint_path, run_folder
from tests.tasks.past_work import Maker


@pytest.mark.process
def test_what_nobody_trains_ends_as_killed_and_what_is_old_goes_only_when_told(
    tmp_path: Path, mlflow_tables: Path
) -> None:
    workspace = Workspace.create(str(tmp_path))
    shutil.copy(mlflow_tables, workspace.local_path("mlflow.db"))
    old = workspace.publish("shards/none/shard.parquet", b"rows").path
    os.utime(workspace.local_path(old), (time.time() - 90 * 86400,) * 2)
    client = mlflow_store.connect(mlflow_store.default_tracking_uri(workspace))
    tags = {mlflow_store.RUN_TAG: "0" * 64, tracked_runs.MACHINE_TAG: MACHINE}
    run = client.create_run(client.create_experiment("tiny"), tags=tags, run_name="left behind").info.run_id

    report = housekeeping.fn(HousekeepingRequest(workspace=workspace.uri))
    assert client.get_run(run).info.status == "KILLED" and report.mlflow_killed == ["left behind"]
    assert not report.applied and report.size_bytes == 4 and workspace.exists(old)

    assert housekeeping.fn(HousekeepingRequest(workspace=workspace.uri, apply=True)).mlflow_killed == []
    assert not workspace.exists(old)


def test_a_file_that_a_champion_needs_and_that_is_damaged_fails_the_flow_and_shows_in_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = Workspace.create(str(tmp_path))
    made = Maker(workspace).run(7, Maker(workspace).data(7), finished=False)
    request = HousekeepingRequest(workspace=workspace.uri)
    housekeeping.fn(request)
    weights = f"{checkpoint_path(run_folder(made.run), 3)}/tensors.safetensors"
    data = workspace.read(weights)
    workspace.publish(weights, bytes([data[0] ^ 1]) + data[1:])
    housekeeping.fn(request.model_copy(update={"scrub_gb": 0.0}))  # nothing is read
    with pytest.raises(IntegrityError, match="cannot be trusted: blake3 is") as damaged:
        housekeeping.fn(request)
    assert weights in damaged.value.what and damaged.value.exit_code == 5
    status = read_status(workspace.uri)
    print_status(status)
    assert f"{weights}  DAMAGED" in capsys.readouterr().out
    metrics = {metric.name: metric.samples for metric in WorkspaceMetrics(workspace).collect()}
    assert metrics["headway_scrub_damaged_files"][0].value == 1
    workspace.publish(weights, data)
    housekeeping.fn(request)
    assert read_status(workspace.uri).scrub.damaged == ()


def test_a_form_that_makes_no_sense_is_refused() -> None:
    for given in (
        {"older_than_days": 0},
        {"keep_last": -1},
        {"scrub_gb": -1},
        {"scrub_gb": float("inf")},
        {"force": True},
    ):
        with pytest.raises(ValidationError):
            HousekeepingRequest.model_validate(given)
