"""What Prefect's pages show of a project's flow runs."""

from __future__ import annotations

import logging

from tests.e2e.project import Project

BAD = ("FAILED", "CRASHED")


def failed_in_prefect(project: Project) -> list[str]:
    """Names of flow runs and task runs that failed or crashed, and the errors in the flow runs' logs."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterName,
        LogFilter,
        LogFilterFlowRunId,
        LogFilterLevel,
    )

    ours = FlowRunFilter(name=FlowRunFilterName(like_=str(project.root)))
    with get_client(sync_client=True) as client:
        runs, tasks = client.read_flow_runs(flow_run_filter=ours), client.read_task_runs(flow_run_filter=ours)
        of_ours = LogFilterFlowRunId(any_=[run.id for run in runs])
        errors = client.read_logs(LogFilter(flow_run_id=of_ours, level=LogFilterLevel(ge_=logging.ERROR)))
    assert runs and tasks, "it was recorded elsewhere"
    bad = [each.name for each in (*runs, *tasks) if each.state_type is not None and each.state_type.value in BAD]
    return [*bad, *(each.message for each in errors)]
