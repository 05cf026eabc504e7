"""`headway trials`. Heavy imports happen when the request is known to be good."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.flows.cli.windows import InWindow
from headway.flows.config.request import ComparisonRequest, TrialsRequest
from headway.flows.console.options import AsJson, Pipeline, Promote, Register, StopAfter, StopAt, WorkspaceUri
from headway.flows.console.output import print_json, require_writable
from headway.flows.console.stop_options import stop_fields
from headway.flows.console.wait_option import Wait, wait_s
from headway.training.observe.process_ends import process_start_unix_s

if TYPE_CHECKING:
    from headway.flows.trials.summary import TrialsSummary


def trials(
    pipeline: Pipeline,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show settings and steps, and train nothing.")] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Only compare settings with another pipeline file's; neither is kept."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=10, help="With --against: seeds that both train with.", show_default="3")
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the trials as an Optuna study, which optuna-dashboard opens."),
    ] = None,
    search: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="With --study: write this trials.json as one, and search nothing."),
    ] = None,
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
    if against == "":
        raise typer.BadParameter("name a pipeline file.", param_hint="--against")
    if seeds is not None and against is None:
        raise typer.BadParameter("it goes with --against; seeds of a search are its file's.", param_hint="--seeds")
    if study is not None and against is not None:
        raise typer.BadParameter("a study is of a search, and --against makes none.", param_hint="--study")
    if search is not None and (study is None or dry_run):
        raise typer.BadParameter("it goes with --study, and makes nothing else.", param_hint="--from")
    fields: dict[str, Any] = {
        "pipeline": pipeline,
        "workspace": workspace,
        "note": note,
        "in_window": in_window,
        "wait_s": wait_s(wait),
        **stop_fields(stop_at, stop_after, started_unix_s),
    }
    from headway.flows.config.pipeline_file import using_pipeline_file

    with using_pipeline_file(pipeline):
        if against is not None:
            comparison = ComparisonRequest(
                **fields, against=against, seeds=seeds or 3, may_promote=False, may_register=False
            )
            _check_and_compare(comparison, started_unix_s, dry_run=dry_run, as_json=as_json)
        elif search is not None and study is not None:
            _write_study_of(search, pipeline, study, as_json=as_json)
        else:
            request = TrialsRequest(**fields, may_promote=promote, may_register=register)
            _check_and_run(request, started_unix_s, study, dry_run=dry_run, as_json=as_json)


def _check_and_run(
    request: TrialsRequest, started_unix_s: float, study: Path | None, *, dry_run: bool, as_json: bool
) -> None:
    from headway.data_contracts.store.publication import Workspace
    from headway.flows.config.preflight import check_contract, check_request, check_trial_encoders
    from headway.flows.trials.wanted import plan_of, wanted_trials
    from headway.tasks.search.pace import last_pace, require_worthwhile

    # A user's mistake should cost a moment, not the start of a server.
    spec, path, _ = check_request(request)
    workspace = Workspace(request.workspace)
    plan = plan_of(spec, path.parent, None if workspace.is_empty() else last_pace(workspace, spec.pipeline))
    check_trial_encoders(spec, path, check_contract(spec, path), plan.drawn)
    require_worthwhile(workspace, spec.pipeline, wanted_trials(spec), spec.training)
    if dry_run:
        from headway.flows.console.console import plain_console
        from headway.flows.trials.report import print_wanted

        if as_json:
            settings = [{"trial": each.number, "settings": each.settings} for each in plan.drawn]
            print_json({**plan._asdict(), "drawn": settings})
        else:
            print_wanted(plan, plain_console())
        return
    if study is not None:
        require_writable(study)
    made = _run(request, started_unix_s, as_json=as_json)
    if study is not None:
        from headway.flows.trials.optuna_study import write_study

        write_study(made, wanted_trials(spec), study)


def _write_study_of(search: Path, pipeline: str, study: Path, *, as_json: bool) -> None:
    from headway.flows.config.pipeline_file import pipeline_file
    from headway.flows.console.output import emit, print_line
    from headway.flows.trials.optuna_study import write_study_of
    from headway.flows.trials.wanted import wanted_trials

    # The space is the pipeline file's: a trials.json has what was tried, and not what might have been.
    spec = wanted_trials(pipeline_file(pipeline).spec)
    made = write_study_of(search, spec, study)
    told = f"{study}: {made.num_written} of {made.num_all} trials of {search}"
    emit(made._asdict(), lambda _: print_line(told), as_json=as_json)


def _run(request: TrialsRequest, started_unix_s: float, *, as_json: bool) -> TrialsSummary:
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
    return made


def _check_and_compare(request: ComparisonRequest, started_unix_s: float, *, dry_run: bool, as_json: bool) -> None:
    from headway.flows.config.preflight import check_request
    from headway.flows.trials.wanted import comparable_pipeline

    spec, _, _ = check_request(request)
    _, other = comparable_pipeline(spec, request.against)
    if dry_run:
        from headway.flows.console.console import plain_console
        from headway.flows.trials.comparison import print_comparison_plan

        if as_json:
            print_json({"num_runs": 2 * request.seeds, "against": request.against})
        else:
            print_comparison_plan(spec.configuration, other.configuration, request.seeds, plain_console())
        return
    from headway.flows.windows.admission import enter

    request = enter(request)
    from headway.flows.console.console import plain_console
    from headway.flows.prefect_api.ephemeral_server import prefect_api
    from headway.flows.report.terminal import JsonLines
    from headway.flows.run.command_view import watch_flows
    from headway.flows.search import settings_comparison
    from headway.flows.trials.comparison import ComparisonSummary, print_comparison
    from headway.tasks.core.stopped import raised_if_stopped

    view = watch_flows(started_unix_s, as_json=as_json)
    with prefect_api():
        made = raised_if_stopped(settings_comparison(request))
        assert isinstance(made, ComparisonSummary)
        if isinstance(view, JsonLines):
            view({"event": "comparison", **made.model_dump(mode="json")})
        else:
            print_comparison(made, plain_console())
