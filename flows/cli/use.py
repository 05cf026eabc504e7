"""Registered models, used: rows predicted, files for elsewhere. Heavy imports happen inside."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.flows.console.command_signals import terminate
from headway.flows.console.options import AsJson, ModelUri, WorkspaceUri
from headway.flows.console.output import emit, only_shown, print_line


def predict(
    model: Annotated[
        str, typer.Argument(help="models:/NAME@champion, models:/NAME/VERSION, or a folder that `export` wrote")
    ],
    file: Annotated[str, typer.Argument(help="Rows: CSV, JSON lines or Parquet, compressed or not; a path or URI.")],
    out: Annotated[Path, typer.Option(help="A file that ends in .parquet, .csv or .jsonl.")],
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="A column of FILE that names a row, kept in OUT; may be given several times. By default the "
            "contract's key where FILE has it, else the row's number, from 0.",
        ),
    ] = None,
    on_missing: Annotated[
        Literal["refuse", "null"],
        typer.Option(help="What becomes of a row without a number that every row had in training?"),
    ] = "refuse",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    workspace: WorkspaceUri = "",
    as_json: AsJson = False,
) -> None:
    """Predict every row of a file. OUT appears whole or not at all, and names the model in each row."""
    from headway.flows.act.predict import predict as run_predict
    from headway.flows.act.predict import print_predicted

    signal.signal(signal.SIGTERM, terminate)
    made = run_predict(model, workspace, file, out, key=tuple(key or ()), on_missing=on_missing, overwrite=overwrite)
    with only_shown("the result"):
        emit(made, print_predicted, as_json=as_json)


def export(
    model_uri: ModelUri,
    out: Annotated[Path, typer.Option(help="A folder that is not there yet.")],
    workspace: WorkspaceUri = "",
) -> None:
    """Copy a verified model out of the registry. Weights, description and graph need no Headway."""
    from headway.flows.act.export import export_model

    for path in export_model(model_uri, workspace, out):
        print_line(str(path))
