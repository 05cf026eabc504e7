"""A game day makes its drills on the worker, and leaves its report in the workspace, and nothing else."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.flows.cli.drill import MAX_SEED, _drill
from headway.flows.config.profiles import DrillName
from headway.flows.drill.objectives import MODES
from headway.flows.drill.report import has_its_digest
from headway.flows.game_day_flow import FOLDER, GameDayRequest, game_day

pytestmark = pytest.mark.long


@pytest.mark.e2e
def test_its_report_lies_in_the_workspace_and_nothing_else_does(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    workspace.publish("there.json", b"{}")  # what a retrain has left
    before = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    report = game_day.fn(GameDayRequest(drills=("F10",), seed=3, workspace=workspace.uri))
    assert [(drill.mode, drill.state) for drill in report.drills] == [("F10", "passed")], report
    after = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert {path.parts[:2] for path in after - before} == {("workspace", FOLDER)}
    document, page = (next((tmp_path / "workspace" / FOLDER).glob(f"*-3.{kind}")) for kind in ("json", "html"))
    assert has_its_digest(json.loads(document.read_bytes())) and b"F10 Skew: passed" in page.read_bytes()


def test_a_profile_and_a_form_name_the_drills_that_there_are() -> None:
    assert get_args(DrillName) == tuple(MODES)
    with pytest.raises(ValidationError):
        GameDayRequest.model_validate({"drills": ["F11"]})


@pytest.fixture
def never_drilled(monkeypatch: pytest.MonkeyPatch) -> None:
    def drilled(*_: object, **__: object) -> None:
        pytest.fail("minutes were spent on a report that nobody could keep")

    monkeypatch.setattr("headway.flows.game_day_flow.run_drills", drilled)
    monkeypatch.setattr("headway.flows.drill.running.run_drills", drilled)


@pytest.mark.usefixtures("never_drilled")
def test_a_report_that_could_not_be_kept_is_refused_before_anything_is_drilled(
    tmp_path: Path,
) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "page.html").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("nowhere/report.json", "folder.json", "page.json", "pipe.json"):
        with pytest.raises(EnvironmentProblem, match="cannot be written"):
            _drill(["F10"], 1, tmp_path / name, None, as_json=False)
    workspace = Workspace.create(str(tmp_path / "workspace"))
    workspace.publish("there.json", b"{}")
    # For root a mode is no obstacle; a folder in the place of the file that proves it is.
    (tmp_path / "workspace" / f".probe-{'0' * 32}").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=0))
        with pytest.raises(EnvironmentProblem, match="cannot be written"):
            game_day.fn(GameDayRequest(drills=("F10",), workspace=workspace.uri))


def test_a_seed_fits_into_a_files_name() -> None:
    assert GameDayRequest(seed=MAX_SEED).seed == MAX_SEED
    with pytest.raises(ValidationError):
        GameDayRequest(seed=10**4000)
