"""The main job as a flow of Prefect's, which deployments, forms, schedules and triggers start."""

from __future__ import annotations

from prefect import State, flow

from headway.flows.config.request import RetrainRequest
from headway.flows.monitoring.pushing import pushing_session
from headway.flows.prefect_api.concurrency_lease import keep_running
from headway.flows.report.summary import RetrainSummary, as_state
from headway.flows.retrain import retrain_and_search
from headway.flows.windows.admission import keeping_to_windows

keep_running()  # as the module is imported: Prefect loads a flow, and then takes up its slot


@flow(name="retrain", flow_run_name="retrain {request.pipeline}", persist_result=False)
@keeping_to_windows
def retrain(request: RetrainRequest) -> RetrainSummary | State[RetrainSummary]:
    """Retrain one model: every stage finds what it made before, or makes it and writes it down.

    Args:
        request: What to retrain, and what may come of it.
    """
    with pushing_session(request) as (run, pipeline):
        return as_state(retrain_and_search(run, pipeline, request))
