"""`headway resume` is bounded as `retrain` is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from data_contracts.documents import RunSpec
from data_contracts.publication import Workspace
from flows import retrain_command
from flows.command_line import run
from flows.request import RetrainRequest
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
    begun = RunSpec(
        pipeline="tiny",
        config={},
        manifest=link("shards", "1"),
        receipt=link("receipt", "2"),
        fitted=link("fitted", "3"),
        code=NOWHERE,
        environment=NOWHERE,
    )
    return Workspace.create("workspace").publish_document(begun).sha256[:16]


def test_what_bounds_a_resumed_run_and_keeps_it_out_of_the_registry_is_asked_for(
    unfinished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RetrainRequest] = []
    monkeypatch.setattr(retrain_command, "_run", lambda request, *_, **__: asked.append(request))
    bounds = ("--stop-at", "2090-01-31T06:00Z", "--stop-at-step", "33", "--no-register")
    monkeypatch.setattr(sys, "argv", ["headway", "resume", unfinished, "--pipeline", "tiny.yaml", *bounds])
    assert run() == 0
    (request,) = asked
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
    said = capsys.readouterr().err
    assert f"run {unfinished} is tiny's" in said and "--pipeline" in said and str(tmp_path / "tiny") in said
    (tmp_path / "deployments").mkdir()
    for name in ("tiny.yaml", "contract.yaml"):
        (tmp_path / name).rename(tmp_path / "deployments" / name)
    asked: list[RetrainRequest] = []
    monkeypatch.setattr(retrain_command, "_run", lambda request, *_, **__: asked.append(request))
    assert run() == 0
    assert asked[0].pipeline == "tiny"
