"""Hold and release: by every door nothing is retrained, and everybody is told by whom and why."""

from __future__ import annotations

import getpass
import json
import shlex
from pathlib import Path

import pytest
from prefect import State, flow
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow

from headway.data_contracts.store import refs
from headway.data_contracts.store.digests import canonical_json
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.request import RetrainRequest
from headway.flows.windows.admission import enter, keeping_to_windows
from headway.flows.windows.holds import current_hold
from headway.tasks.core.identity import current_user
from headway.tasks.ownership.pipeline_history import append, ref_of
from tests.flows.tiny_pipeline import PIPELINE

AHEAD = """\
windows: {time_zone: UTC, open: [{start: "01:00", end: "05:00"}]}
triggers: {new_data: {files: 0.5}}
"""


@pytest.fixture
def request_of(project: Path) -> RetrainRequest:
    return RetrainRequest(pipeline="tiny.yaml", workspace=str(project / "workspace"))


@keeping_to_windows
def trains(_: RetrainRequest) -> str:
    return "trained"


def test_a_held_pipeline_is_retrained_by_no_door_until_it_is_released(request_of: RetrainRequest, headway) -> None:
    assert trains(request_of) == "trained"
    code, message = headway("hold", "tiny.yaml", "--why", "its labels [are] wrong")
    assert code == 0 and "headway stop" in message
    code, message = headway("retrain", "tiny.yaml")
    assert (
        code == 77
        and "its labels [are] wrong" in message
        and getpass.getuser() in message
        and "headway release" in message
    )
    assert "Traceback" not in message and not (Path(request_of.workspace) / "stages").exists()
    state = trains(request_of)
    assert isinstance(state, State) and (state.type.value, state.name) == ("COMPLETED", "Held")
    assert "its labels [are] wrong" in (state.message or "")
    code, message = headway("status")
    assert code == 0 and "tiny  HELD" in message and "its labels [are] wrong" in message
    assert headway("release", "tiny.yaml", "--why", "they are right now")[0] == 0
    assert trains(request_of) == "trained" and enter(request_of) is request_of
    told = [entry.reason for entry in refs.history(Workspace(request_of.workspace), ref_of("tiny"))]
    assert sorted(told) == ["its labels [are] wrong", "they are right now"]


def test_who_holds_what_is_held_already_is_told_by_whom_since_when_and_why_and_both_stay_on_record(
    request_of: RetrainRequest, headway
) -> None:
    message = headway("hold", "tiny.yaml", "--why", "its labels [are] wrong")[1]
    assert "already" not in message
    first = current_hold(Workspace(request_of.workspace), "tiny")
    code, message = headway("hold", "tiny.yaml", "--why", "the disk is full")
    assert code == 0 and f"already, by {first.by} since {first.since}: its labels [are] wrong" in message
    assert "\\n" not in message and len(message.splitlines()) == 3, "a line feed is not spelled out"
    told = [entry.reason for entry in refs.history(Workspace(request_of.workspace), ref_of("tiny"))]
    assert sorted(told) == ["its labels [are] wrong", "the disk is full"]
    assert headway("release", "tiny.yaml", "--why", "both are mended")[0] == 0
    assert trains(request_of) == "trained"
    assert "already" not in headway("hold", "tiny.yaml", "--why", "again")[1]


def test_a_decision_needs_a_reason_a_pipeline_and_something_to_let_go(request_of: RetrainRequest, headway) -> None:
    Workspace.create(request_of.workspace).publish("documents/other", b"{}")
    for arguments, told in {
        ("hold", "tiny.yaml", "--why", "  "): "needs its reason",
        ("hold", "tinny.yaml", "--why", "so"): "tinny.yaml",
        ("release", "tiny.yaml", "--why", "so"): "nobody holds",
        ("hold", "tiny.yaml"): "--why",
    }.items():
        code, message = headway(*arguments)
        assert code == 2 and told in message and "Traceback" not in message
    assert current_hold(Workspace(request_of.workspace), "tiny") is None


def test_a_pipeline_that_the_workspace_knows_is_held_and_released_by_its_name_without_a_file(
    request_of: RetrainRequest, headway
) -> None:
    workspace = Workspace.create(request_of.workspace)
    assert headway("hold", "elsewhere", "--why", "so")[0] == 2, "a misspelt name holds nothing"
    append(workspace, "elsewhere", lambda before: before.model_copy(update={"event": "started", "run": "0" * 16}))
    assert headway("hold", "elsewhere", "--why", "so")[0] == 0
    assert current_hold(workspace, "elsewhere") is not None
    assert headway("release", "elsewhere", "--why", "so")[0] == 0


def test_a_damaged_record_stops_rather_than_lets_through(request_of: RetrainRequest, headway) -> None:
    assert headway("hold", "tiny.yaml", "--why", "so")[0] == 0
    (document,) = Path(request_of.workspace).glob("documents/pipeline-event/*.json")
    document.chmod(0o644)
    document.write_bytes(canonical_json({"action": "release", "pipeline": "tiny"}))
    with pytest.raises(IntegrityError):
        trains(request_of)


@pytest.mark.parametrize("pattern", ["documents/pipeline-event/*.json", "refs/pipelines/tiny/*.json"])
def test_a_damaged_record_is_shown_as_a_hold_and_either_decision_may_be_made_anew(
    request_of: RetrainRequest, headway, pattern: str
) -> None:
    def damage() -> None:
        newest = max(Path(request_of.workspace).glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        newest.chmod(0o644)
        newest.write_bytes(b"{}")

    assert headway("hold", "tiny.yaml", "--why", "so")[0] == 0
    damage()
    with pytest.raises(IntegrityError):
        trains(request_of)
    code, message = headway("status")
    assert code == 0 and "tiny  HELD" in message
    anew = "headway hold --name tiny --why REASON"
    assert anew in " ".join(message.split())
    assert headway(*shlex.split(anew)[1:])[0] == 0
    assert "REASON" in str(current_hold(Workspace(request_of.workspace), "tiny"))
    damage()
    assert headway("release", "tiny.yaml", "--why", "they are right now")[0] == 0
    assert trains(request_of) == "trained"


def test_a_pipeline_whose_file_is_gone_or_spoilt_is_held_and_let_go_by_its_name(
    request_of: RetrainRequest, headway, tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text("pipeline: tiny\nsauce: {}\n")
    assert headway("hold", "tiny.yaml", "--why", "so")[0] == 2
    code, message = headway("hold", "--name", "tiny", "--why", "it is being mended")
    assert code == 0 and "headway release --name tiny --why REASON" in message
    (tmp_path / "tiny.yaml").write_text(PIPELINE)
    assert headway("retrain", "tiny.yaml")[0] == 77
    assert headway("release", "--name", "tiny", "--why", "it is mended")[0] == 0
    assert trains(request_of) == "trained"
    for which in ((), ("tiny.yaml", "--name", "tiny"), ("--name", "../x")):
        assert headway("hold", *which, "--why", "so")[0] == 2


def test_a_hold_by_a_name_that_nothing_is_known_of_says_so(request_of: RetrainRequest, headway) -> None:
    note = "Nothing of that name is on record in this workspace"
    workspace = Workspace.create(request_of.workspace)
    append(workspace, "tiny", lambda before: before.model_copy(update={"event": "started", "run": "0" * 16}))
    code, message = headway("hold", "--name", "tinny", "--why", "so")
    assert code == 0 and note in message, "it may be the name of a pipeline that has never been retrained"
    code, message = headway("hold", "--name", "tiny", "--why", "so")
    assert code == 0 and note not in message


def test_whoever_looks_ahead_is_told_that_the_pipeline_is_held(
    request_of: RetrainRequest, headway, tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(PIPELINE + AHEAD)
    looks = (("plan", "tiny.yaml", "--no-rehearse"), ("windows", "tiny.yaml"), ("triggers", "tiny.yaml"))
    for look in looks:
        code, message = headway(*look)
        assert code == 0 and "HELD" not in message, message
    assert headway("hold", "tiny.yaml", "--why", "its labels [are] wrong")[0] == 0
    since = current_hold(Workspace(request_of.workspace), "tiny").since
    for look in looks:
        code, message = headway(*look)
        assert code == 0 and f"holds tiny since {since}: its labels [are] wrong" in message and "HELD" in message, (
            message
        )
        assert json.loads(headway(*look, "--json")[1])["held"]["why"] == "its labels [are] wrong"


def test_whoever_is_told_of_a_hold_is_told_a_command_that_lifts_it(
    request_of: RetrainRequest, headway, tmp_path: Path
) -> None:
    (tmp_path / "my tiny.yaml").write_text(PIPELINE)
    elsewhere = str(tmp_path / "work space")
    there = ("my tiny.yaml", "--workspace", elsewhere)
    lifts = f"headway release 'my tiny.yaml' --workspace '{elsewhere}' --why REASON"
    assert lifts in headway("hold", *there, "--why", "so")[1]
    assert lifts in headway("retrain", *there)[1]
    assert headway(*shlex.split(lifts)[1:])[0] == 0
    assert current_hold(Workspace(elsewhere), "tiny") is None


def test_what_goes_on_with_a_resumed_run_keeps_to_it_that_nobody_is_promoted(request_of: RetrainRequest) -> None:
    resumed = request_of.model_copy(update={"run": "0123456789abcdef", "may_promote": False})
    assert resumed.command == "headway resume 0123456789abcdef --pipeline tiny.yaml --no-promote"
    unregistered = request_of.model_copy(update={"may_register": False})
    assert unregistered.command == "headway retrain tiny.yaml --no-register"


@flow
def asks_who_acts() -> str:
    return current_user()


def test_what_a_deployments_run_decides_is_told_by_the_run_and_not_as_a_persons(prefect_here: None) -> None:
    with get_client(sync_client=True) as client:
        flow_id = client.create_flow(asks_who_acts)
        deployment_id = client.create_deployment(flow_id, name="nightly")
        run = client.create_flow_run_from_deployment(deployment_id)
    assert run_flow(asks_who_acts, flow_run=run).startswith(f"flow run {run.name} of a deployment (Prefect), as ")
    assert "(Prefect)" not in asks_who_acts(), "by hand there is no deployment that vouches"
