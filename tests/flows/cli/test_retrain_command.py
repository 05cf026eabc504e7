"""`headway resume` is bounded as `retrain` is; who waits for either hears what goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.data_contracts.store.documents import RunSpec, ShardManifest
from headway.data_contracts.store.publication import Workspace
from headway.flows.cli import retrain
from headway.flows.cli.command_line import run
from headway.flows.config.request import RetrainRequest
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from tests.flows.tiny_pipeline import CONTRACT, PIPELINE
from tests.tasks.conftest import NOWHERE, link


@pytest.fixture
def unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a run of the pipeline `tiny.yaml` in the current folder."""
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    (tmp_path / "tiny.yaml").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PROJECT", raising=False)
    monkeypatch.setenv("HEADWAY_WORKSPACE", str(tmp_path / "workspace"))
    workspace = Workspace.create("workspace")
    shards = ShardManifest(
        snapshot=link("snapshot", "4"),
        receipt=link("receipt", "2"),
        fitted=link("fitted", "3"),
        spec={},
        columns=(),
        groups=(),
        content_sha256="5" * 64,
        libraries={},
    )
    started = RunSpec(
        pipeline="tiny",
        config={},
        manifest=workspace.publish_document(shards),
        receipt=link("receipt", "2"),
        fitted=link("fitted", "3"),
        code=NOWHERE,
        environment=NOWHERE,
    )
    return workspace.publish_document(started).sha256[:16]


def test_what_bounds_a_resumed_run_and_keeps_it_out_of_the_registry_is_asked_for(
    unfinished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[RetrainRequest] = []
    monkeypatch.setattr(retrain, "run_request", lambda request, *_, **__: requested.append(request))
    bounds = ("--stop-at", "2090-01-31T06:00Z", "--stop-at-step", "33", "--no-register")
    monkeypatch.setattr(sys, "argv", ["headway", "resume", unfinished, "--pipeline", "tiny.yaml", *bounds])
    assert run() == 0
    (request,) = requested
    assert (request.stop_at_step, request.may_register, request.run) == (33, False, unfinished)
    assert request.stop_at is not None and request.stop_at.isoformat() == "2090-01-31T06:00:00+00:00"
    assert request.stop.reason == "window closed"
    assert request.command == f"headway resume {unfinished} --pipeline tiny.yaml --no-register"


def test_a_run_whose_time_is_over_is_not_resumed_and_the_command_that_goes_on_is_named(
    unfinished: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = ("--pipeline", "tiny.yaml", "--stop-at", "2020-01-31T06:00Z", "--no-register")
    monkeypatch.setattr(sys, "argv", ["headway", "resume", unfinished, *late])
    assert run() == 75
    assert f"headway resume {unfinished} --pipeline tiny.yaml --no-register" in capsys.readouterr().err


def test_who_resumes_a_run_where_its_pipelines_file_is_not_found_is_told_the_option_that_names_it(
    unfinished: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["headway", "resume", unfinished])
    assert run() == 2
    message = capsys.readouterr().err
    assert f"run {unfinished} is tiny's" in message and "--pipeline: " in message
    assert str(tmp_path / "tiny") not in message, "a path of its own making, which is not there"
    (tmp_path / "deployments").mkdir()
    for name in ("tiny.yaml", "contract.yaml"):
        (tmp_path / name).rename(tmp_path / "deployments" / name)
    requested: list[RetrainRequest] = []
    monkeypatch.setattr(retrain, "run_request", lambda request, *_, **__: requested.append(request))
    assert run() == 0
    assert requested[0].pipeline == "tiny"


def test_a_run_is_resumed_from_the_file_that_it_was_begun_with_wherever_that_lies_in_the_project(
    unfinished: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    for name in ("tiny.yaml", "contract.yaml"):
        (tmp_path / name).rename(tmp_path / "models" / name)
    begun_with = AttemptRecord(attempt=1, scope="one", continued_by="headway retrain models/tiny.yaml")
    folder = tmp_path / "workspace" / "runs" / unfinished
    folder.mkdir(parents=True)
    AttemptRecords(folder).begin(begun_with)
    requested: list[RetrainRequest] = []
    monkeypatch.setattr(retrain, "run_request", lambda request, *_, **__: requested.append(request))
    monkeypatch.setattr(sys, "argv", ["headway", "resume", unfinished])
    assert run() == 0
    assert requested[0].pipeline == "models/tiny.yaml"
    (tmp_path / "models" / "tiny.yaml").unlink()
    assert run() == 2
    assert "headway retrain models/tiny.yaml" in capsys.readouterr().err


@pytest.mark.process
def test_who_waits_at_a_terminal_hears_at_once_what_is_done_and_where_and_a_log_does_not(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "headway", "retrain", "nothing", "--workspace", str(tmp_path))
    ours, theirs = os.openpty()
    try:
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, cwd=tmp_path)
        shown = os.read(ours, 10_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    first, second, *_ = shown.splitlines()
    assert first == f"headway: retrain nothing in {tmp_path}"
    assert "no such pipeline file" in second
    logged = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "no such pipeline file" in logged.stderr.splitlines()[0] and logged.stdout == ""
