"""What bounds a search in money: prices of the profile, for all devices of a trial, over what is on record."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headway.data_contracts.store.documents import Link
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_spec import PipelineSpec, load_pipeline
from headway.flows.trials.stages import budget_of
from headway.training.checkpoint.layout import run_folder
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords

REPOSITORY = Path(__file__).resolve().parents[3]
TRIAL = run_folder(Link(kind="run", sha256="1" * 64))


def pipeline(**budget: float) -> PipelineSpec:
    """The shipped one, which trains with two nodes."""
    loaded = load_pipeline(REPOSITORY / "deployments" / "digits.yaml")
    trials = {"vary": {"optimizer.lr": [0.1, 0.2]}, "budget": budget}
    evaluation = {"ranking_share": 0.5}
    return PipelineSpec.model_validate({**loaded.model_dump(), "trials": trials, "evaluation": evaluation})


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a search whose first trial was trained for 100 s by a flow run before, at a dollar a second."""
    (tmp_path / "deployments").mkdir()
    profile = "project: mine\nprofiles: {local: {pool: {name: mine}, prices: {device_hour_usd: {any: 3600}}}}"
    (tmp_path / "deployments" / "profiles.yaml").write_text(profile)
    monkeypatch.setenv("HEADWAY_PROJECT", str(tmp_path))
    workspace = Workspace.create(str(tmp_path / "workspace"))
    folder = workspace.local_path(TRIAL)
    folder.mkdir(parents=True)
    records = AttemptRecords(folder)
    records.begin(AttemptRecord(attempt=1, scope="before", start_unix_s=1000.0))
    done = AttemptRecord(attempt=1, scope="before", state="done", step=400, start_unix_s=1000.0, end_unix_s=1100.0)
    records.end(done)
    return SimpleNamespace(workspace=workspace, pipeline="digits", budget_scope="now")


def refusal(context: Any, **budget: float) -> str:
    """Of a second trial, to as many steps as the first one made."""
    made = budget_of(context, pipeline(**budget))
    assert made is not None
    made.know([TRIAL])
    return made.refusal({"runs/other": 400})


def test_what_a_flow_run_before_spent_for_all_devices_of_a_trial_counts(context: Any) -> None:
    assert refusal(context, usd=400.0) == ""
    assert refusal(context, usd=399.0).startswith("200.00 USD so far, and what follows would take about 200.00")
    assert refusal(context, hours=200 / 3600) == "" and refusal(context, hours=199 / 3600)


def test_without_a_bound_in_hours_or_money_nobody_reads_what_is_on_record(context: Any) -> None:
    assert budget_of(context, pipeline(steps=1000)) is None
