"""The command `headway tune`. Heavy imports happen when the request is known to be good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headway.flows.config.request import TuneRequest
from headway.flows.console.options import AsJson, Pipeline, StopAfter, StopAt, WorkspaceUri
from headway.flows.console.stop_options import stop_fields
from headway.training.observe.process_ends import process_start_unix_s

if TYPE_CHECKING:
    from headway.tasks.tuning.record import Tuning


def tune(
    pipeline: Pipeline,
    rounds: Annotated[int, typer.Option(metavar="N", min=3, max=50, help="How often each value takes its turn.")] = 5,
    advise: Annotated[
        bool,
        typer.Option("--advise", help="Also try learning rates, larger micro-batches and `compile`; none is taken."),
    ] = False,
    workspace: WorkspaceUri = "",
    stop_at: StopAt = "",
    stop_after: StopAfter = "",
    as_json: AsJson = False,
) -> None:
    """Measure settings that move no bit.

    Short trials on this machine, in turn, on the pipeline's own shards, which are made where they are missing. A value
    is taken only if it beats the one of now in every round, and by more than rounds spread. Retrains on equal hardware
    and versions then take it; what the pipeline file says goes before it.
    """
    started_unix_s = process_start_unix_s()
    request = TuneRequest(
        pipeline=pipeline,
        workspace=workspace,
        rounds=rounds,
        advise=advise,
        **stop_fields(stop_at, stop_after, started_unix_s),
    )
    from headway.flows.config.pipeline_file import using_pipeline_file

    with using_pipeline_file(request.pipeline):
        from headway.flows.config.pipeline_file import pipeline_file
        from headway.flows.config.preflight import check_request
        from headway.flows.tune.measuring import require_tunable

        # Before a workspace is made and a first step is tried.
        require_tunable(pipeline_file(request.pipeline).spec)
        check_request(request)
        _run(request, started_unix_s, as_json=as_json)


def _run(request: TuneRequest, started_unix_s: float, *, as_json: bool) -> None:
    from headway.flows.report.terminal import JsonLines
    from headway.flows.run.command_view import watch_flows
    from headway.flows.tune.flow import tune_here
    from headway.flows.tune.report import print_advice, print_tuning

    view = watch_flows(started_unix_s, as_json=as_json)

    def tuned(tuning: Tuning) -> None:
        if isinstance(view, JsonLines):
            view({"event": "tuning", **tuning.model_dump(mode="json")})
        else:
            print_tuning(tuning)

    advised = tune_here(request, tuned)
    if advised is None:
        return
    advice, page = advised
    if isinstance(view, JsonLines):
        view({"event": "tuning.advice", "page": page, **advice.model_dump(mode="json")})
    else:
        print_advice(advice, page)
