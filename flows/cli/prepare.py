"""Before a retrain: a project's files, their schemas and keys, this installation, and what a retrain would do.

Heavy imports happen inside the commands that need them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.flows.config.request import RetrainRequest
from headway.flows.console.options import (
    AsJson,
    Decimal,
    Delimiter,
    Encoding,
    Label,
    Null,
    Pipeline,
    SkipRows,
    TimestampFormat,
    WorkspaceUri,
)
from headway.flows.console.output import emit, print_json, print_line


def init_project(
    name: Annotated[
        str, typer.Argument(help="Of the pipeline, and of a new folder. Left out: the current folder, by its own name.")
    ] = "",
    data: Annotated[
        str, typer.Option("--data", help="A folder, file or URI to draft from; a table of scikit-learn's if left out.")
    ] = "",
    label: Label = "",
    delimiter: Delimiter = "",
    encoding: Encoding = "",
    decimal: Decimal = "",
    timestamp_format: TimestampFormat = "",
    null: Null = None,
    skip_rows: SkipRows = None,
) -> None:
    """Write a project that retrains at once.

    Contract, pipeline, recipe, profiles and CI workflow. Nothing is overwritten.
    """
    from headway.data_contracts.sources.delimited import csv_choice
    from headway.flows.act.project_init import print_project, write_project

    given = csv_choice(delimiter, encoding, decimal, timestamp_format, null or (), skip_rows)
    print_project(write_project(name, data, Path.cwd(), label=label, given=given))


def schema(
    kind: Annotated[
        Literal["pipeline", "contract", "profiles"] | None,
        typer.Argument(help="Print this schema. Left out: write all three into .headway/, for editors."),
    ] = None,
) -> None:
    """Write JSON Schemas, for editors that complete and check.

    Drafts name them in their first lines: VS Code (with its YAML extension) and PyCharm read them there.
    """
    from headway.flows.act.editor_schemas import schema_of, write_schemas

    if kind is not None:
        print_json(schema_of(kind))
        return
    project = Path.cwd()
    folder = project / "deployments" if (project / "deployments").is_dir() else project
    for path in write_schemas(folder):
        print_line(str(path.relative_to(project)))


def explain(
    key: Annotated[
        str, typer.Argument(help="Dotted, such as training.schedule. Left out: the keys at the top of the file.")
    ] = "",
    kind: Annotated[
        Literal["pipeline", "contract", "profiles"], typer.Option("--in", help="Which kind of file it is a key of.")
    ] = "pipeline",
    as_json: AsJson = False,
) -> None:
    """Say what a key of a file means. With what it may hold, its default, and what an edit has run anew."""
    from headway.flows.act.explain import explain as look_up
    from headway.flows.act.explain import print_explanation

    emit(look_up(key, kind), print_explanation, as_json=as_json)


def doctor(
    pipeline: Annotated[
        str,
        typer.Argument(
            help="A pipeline file, or the name of one in deployments/, to look at as well: its contract and recipe, "
            "its registry, and its hosts, or whether its scheduler would take the job."
        ),
    ] = "",
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="Look as well whether this profile is ready for production.")
    ] = "",
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Check this installation, and where a pipeline would train. Nothing is trained.

    It looks at installed packages and their files, whether two ranks on this machine reach each other, the workspace,
    and Prefect. Each has a line: `ok`, `note`, or `FAULT`. Exit code 8: something would fail.
    """
    from headway.flows.config.profiles import load_profile
    from headway.flows.console.environment import project_folder
    from headway.flows.show.doctor import doctor as look

    found = load_profile(project_folder(), profile)[1] if profile else None
    look(workspace, pipeline, found, as_json=as_json)


def plan(
    pipeline: Pipeline,
    workspace: WorkspaceUri = "",
    rehearse: Annotated[
        bool, typer.Option(help="Measure a few steps where no earlier run tells what they take?")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Show what a retrain would run, find, read and take. Nothing is spent."""
    from headway.flows.show.plan import make_plan, print_plan

    request = RetrainRequest(pipeline=pipeline, workspace=workspace)
    made = make_plan(request, may_rehearse=rehearse)
    emit(made, print_plan, as_json=as_json)
