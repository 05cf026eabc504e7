"""Draft a contract, check data against it, compare two."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from headway.data_contracts.store.errors import ConfigError
from headway.flows.console.options import AsJson, Decimal, Delimiter, Encoding, Label, Null, SkipRows, TimestampFormat
from headway.flows.console.output import print_json, write_whole

app = typer.Typer(help=__doc__, no_args_is_help=True, rich_markup_mode=None)


@app.command()
def init(
    data: Annotated[str, typer.Argument(help="A folder, file or URI of Parquet, CSV, JSON lines or text.")],
    out: Annotated[str, typer.Option("--out", "-o", help="The contract's file; NAME.contract.yaml if left out.")] = "",
    name: Annotated[
        str,
        typer.Option(
            "--name", "-n", help="Name of contract and pipeline; that of DATA, or of its only file, if left out."
        ),
    ] = "",
    label: Label = "",
    delimiter: Delimiter = "",
    encoding: Encoding = "",
    decimal: Decimal = "",
    timestamp_format: TimestampFormat = "",
    null: Null = None,
    skip_rows: SkipRows = None,
) -> None:
    """Draft a contract and a pipeline file. Both are commented; nothing is overwritten."""
    from headway.data_contracts.sources.delimited import csv_choice
    from headway.flows.act.contract_init import draft, print_drafted

    given = csv_choice(delimiter, encoding, decimal, timestamp_format, null or (), skip_rows)
    print_drafted(draft(data, out=out, name=name, base=Path.cwd(), label=label, given=given))


@app.command()
def check(
    target: Annotated[str, typer.Argument(help="A pipeline (file or name); with DATA, a contract's file.")],
    data: Annotated[str, typer.Argument(help="A folder, file or URI to hold against the contract.")] = "",
    workspace: Annotated[
        str, typer.Option("--workspace", "-w", help="Where a pipeline's accepted data and contract are kept.")
    ] = "",
    as_json: AsJson = False,
    report: Annotated[str, typer.Option("--report", help="Write the report as an HTML file, too.")] = "",
) -> None:
    """Hold data against a contract, without training. Exit code 4: refused."""
    from headway.data_contracts.suites.contract_file import using_contract_files
    from headway.flows.act.contract_check import check as run_check
    from headway.flows.act.contract_check import print_checked, resolve_request

    with using_contract_files():
        checked = run_check(resolve_request(target, data, workspace), now_unix_s=time.time())
    if report:
        _write(Path(report), checked.report())
    if as_json:
        print_json(checked.to_json())
    else:
        print_checked(checked, report=report)
    sys.exit(checked.exit_code)


@app.command()
def diff(
    old: Annotated[str, typer.Argument(help="The contract's file as it was.")],
    new: Annotated[str, typer.Argument(help="The contract's file as it shall be.")],
    as_json: AsJson = False,
) -> None:
    """What changed, and whether the new version says so. Exit code 4: it takes another version."""
    from headway.flows.act.contract_diff import compare_files, print_compared

    compared = compare_files(Path.cwd() / old, Path.cwd() / new)
    if as_json:
        print_json(compared.to_json())
    else:
        print_compared(compared)
    sys.exit(compared.exit_code)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the report cannot be written ({error.strerror}).", where=str(path)) from error
    write_whole(path, text.encode())
