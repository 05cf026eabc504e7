"""A version that passes waits for a person: as a name that a flow run completes under, and a form that decides."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.project import Project


def newest_state_name(project: Project) -> str:
    """Of the flow run of this project that began last."""
    from prefect import get_client
    from prefect.client.schemas.sorting import FlowRunSort

    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC)
    ours = (run for run in runs if run.parameters.get("request", {}).get("workspace") == str(project.workspace))
    state = next(ours).state
    assert state is not None and state.name is not None
    return state.name


@pytest.mark.long
def test_a_retrain_ends_awaiting_approval_and_the_form_of_a_deployment_gives_it(project, retrain_in_prefect) -> None:
    from headway.flows.champion_flow import MoveRequest, move_champion
    from headway.flows.show.status import read_status
    from headway.flows.show.verify import verify_model

    project.forget_the_registry()
    asking = "promotion: {approval: required}\nregistry: {model: tiny}"
    project.edit("tiny.yaml", "registry: {model: tiny}", asking)
    summary, events = retrain_in_prefect(project)
    assert (summary.waits, summary.is_champion, summary.champion_version) == (True, False, None)
    assert "launch" in summary.stages_found, "nothing was trained for this"
    assert newest_state_name(project) == "AwaitingApproval"
    assert not [event for event in events if event["event"] == "flow.failed"]
    (model,) = read_status(str(project.workspace)).models
    assert (model.champion, model.waits) == (None, "1")

    request: dict[str, Any] = {"model": "tiny", "version": "1", "workspace": str(project.workspace)}
    move_champion(MoveRequest(move="refuse", why="not on a Friday", **request))
    summary, _ = retrain_in_prefect(project)
    assert (summary.waits, summary.is_champion) == (False, False) and "not on a Friday" in summary.reason
    assert newest_state_name(project) == "Completed"

    moved = move_champion(MoveRequest(move="promote", why="it is Monday", **request))
    assert moved.to_version == "1" and "approved by" in str(moved.checks)
    summary, _ = retrain_in_prefect(project)
    assert summary.is_champion and not summary.waits and "it is Monday" in summary.reason
    assert verify_model("models:/tiny@champion", str(project.workspace), as_json=True) == 0
