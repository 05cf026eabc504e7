"""What yields to a window's end, or is asked to stop, completes in Prefect, and whoever called it hears of the stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from headway.data_contracts.store.errors import DataError, RunStopped
from headway.tasks.core.context import RunContext
from headway.tasks.core.stage import stage_task
from headway.tasks.core.stopped import raised_if_stopped
from tests.waiting import wait_until


@stage_task(name="toy", task_run_name="toy")
def toy(context: RunContext, error: Exception) -> None:
    raise error


@pytest.fixture
def run_stage(prefect_here: None, context: RunContext) -> Callable[[Exception], tuple[Any, list[tuple[str, str]]]]:
    """A flow of one stage that ends so: what the flow met, and type and name of the task run's state in Prefect."""

    def run(error: Exception) -> tuple[Any, list[tuple[str, str]]]:
        from prefect import flow
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
        from prefect.runtime import flow_run

        met: list[Any] = []

        @flow(persist_result=False)
        def around() -> None:
            met.append(flow_run.id)
            try:
                toy(context, error)
            except (RunStopped, DataError) as raised:
                met.append(raised)

        around()
        ours = FlowRunFilter(id=FlowRunFilterId(any_=[met[0]]))

        def ended() -> list[tuple[str, str]]:
            with get_client(sync_client=True) as client:
                states = [each.state for each in client.read_task_runs(flow_run_filter=ours)]
            return [(str(each.type.value), str(each.name)) for each in states if each is not None and each.is_final()]

        return met[1], wait_until(ended, what="the task run's end", every_s=0.2)

    return run


@pytest.mark.process
@pytest.mark.parametrize(
    ("reason", "name"),
    [("window closed", "WindowClosed"), ("cost bound reached", "CostBoundReached"), ("requested", "Stopped")],
)
def test_a_stage_that_stops_is_completed_under_its_name_and_logs_no_error(
    run_stage: Any, caplog: pytest.LogCaptureFixture, reason: Any, name: str
) -> None:
    stop = RunStopped("stopped at step 3 of 9; kept.", reason=reason)
    with caplog.at_level(logging.WARNING):
        met, states = run_stage(stop)
    assert isinstance(met, RunStopped) and (met.what, met.reason) == (stop.what, reason)
    assert states == [("COMPLETED", name)]
    assert [record.message for record in caplog.records if record.name.startswith("prefect")] == []


@pytest.mark.process
def test_a_stage_that_fails_is_failed(run_stage: Any) -> None:
    met, states = run_stage(DataError("no rows."))
    assert isinstance(met, DataError) and states == [("FAILED", "Failed")]


def test_what_was_returned_is_handed_on_unless_it_is_a_stop() -> None:
    assert raised_if_stopped("made") == "made"
    with pytest.raises(RunStopped):
        raised_if_stopped(RunStopped("stopped."))
