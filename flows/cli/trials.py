"""`headway trials`. Heavy imports happen when the request is known to be good."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.flows.cli.windows import InWindow
from headway.flows.config.request import TrialsRequest
from headway.flows.console.options import AsJson, Pipeline, Promote, Register, StopAfter, StopAt, WorkspaceUri
from headway.flows.console.output import print_json
from headway.flows.console.stop_options import stop_fields
from headway.flows.console.wait_option import Wait, wait_s
from headway.training.observe.process_ends import process_start_unix_s


def trials(
    pipeline: Pipeline,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show settings and steps, and train nothing.")] = False,
    workspace: WorkspaceUri = "",
    promote: Promote = True,
    register: Register = True,
    note: Annotated[str, typer.Option(help="Why; kept in the ledger.")] = "",
    stop_at: StopAt = "",
    stop_after: StopAfter = "",
    in_window: InWindow = False,
    wait: Wait = "",
    as_json: AsJson = False,
) -> None:
    """Try the settings of `trials`, and continue the best."""
    started_unix_s = process_start_unix_s()
    request = TrialsRequest(
        pipeline=pipeline,
        workspace=workspace,
        may_promote=promote,
        may_register=register,
        note=note,
        in_window=in_window,
        wait_s=wait_s(wait),
        **stop_fields(stop_at, stop_after, started_unix_s),
    )
    from headway.flows.config.pipeline_file import using_pipeline_file

    with using_pipeline_file(request.pipeline):
        _check_and_run(request, started_unix_s, dry_run=dry_run, as_json=as_json)


def _check_and_run(request: TrialsRequest, started_unix_s: float, *, dry_run: bool, as_json: bool) -> None:
    from headway.data_contracts.store.publication import Workspace
    from headway.flows.config.preflight import check_request
    from headway.flows.trials.wanted import plan_of, wanted_trials
    from headway.tasks.search.pace import require_worthwhile

    # A user's mistake should cost a moment, not the start of a server.
    spec, _, _ = check_request(request)
    plan = plan_of(spec)
    require_worthwhile(Workspace(request.workspace), spec.pipeline, wanted_trials(spec), spec.training)
    if dry_run:
        from headway.flows.console.console import plain_console
        from headway.flows.trials.report import print_wanted

        if as_json:
            settings = [{"trial": each.number, "settings": each.settings} for each in plan.drawn]
            print_json({**plan._asdict(), "drawn": settings})
        else:
            print_wanted(plan, plain_console())
        return
    _run(request, started_unix_s, as_json=as_json)


def _run(request: TrialsRequest, started_unix_s: float, *, as_json: bool) -> None:
    from headway.flows.windows.admission import enter

    request = enter(request)  # no server either where windows are closed
    from headway.flows.console.console import plain_console
    from headway.flows.prefect_api.ephemeral_server import prefect_api
    from headway.flows.report.terminal import JsonLines
    from headway.flows.run.command_view import watch_flows
    from headway.flows.search import trials as trials_flow
    from headway.flows.trials.report import print_ranking
    from headway.flows.trials.summary import TrialsSummary
    from headway.tasks.core.stopped import raised_if_stopped

    view = watch_flows(started_unix_s, as_json=as_json)
    with prefect_api():
        made = raised_if_stopped(trials_flow(request))
        assert isinstance(made, TrialsSummary)  # the gate is not asked again
        if isinstance(view, JsonLines):
            view({"event": "trials", **made.model_dump(mode="json")})
        else:
            print_ranking(made, plain_console())
            view.summary(made.best)
