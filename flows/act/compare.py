"""`headway compare`: two registered versions on the same held-out rows, as a table and as a page."""

from __future__ import annotations

import shutil
import time
import uuid
from pathlib import Path

from pydantic import BaseModel
from rich.table import Table

from headway.data_contracts.store.documents import Link, Registration, RunSpec
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.data_contracts.store.plain_text import one_line
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_file import PipelineFile, pipeline_file
from headway.flows.console.console import plain_console, print_table
from headway.tasks.core.brief_context import brief_context
from headway.tasks.registry import model_refs
from headway.tasks.registry.evaluation_report import shown, words
from headway.tasks.reports.comparison import Comparison
from headway.tasks.reports.comparison_page import render_html
from headway.tasks.reports.evidence import read_curve
from headway.tasks.stages.compare import compare, compared_version
from headway.tasks.stages.scoring import ScoringHarness
from headway.training.checkpoint.layout import run_folder

MAX_SLICES = 20
"""In the terminal; page and JSON have all."""


class CompareReport(BaseModel):
    comparison: Comparison
    page: str
    """Empty: none was asked for."""


def compare_versions(
    workspace_uri: str, first: str, second: str, *, pipeline: str = "", out: str = ""
) -> CompareReport:
    """Score both on the held-out rows of the second's shards.

    Args:
        first, second: `models:/NAME/VERSION`, or `NAME/VERSION` or `NAME@ALIAS` for short.
        pipeline: whose source, slices and launcher count; by default the one that the second was trained by.
        out: where the page is written; empty: none is.

    Raises:
        ConfigError: no such versions, they cannot be compared, or `out` is taken.
        IntegrityError: what one of them stands on is gone or damaged.
    """
    workspace = Workspace.existing(workspace_uri)
    resolved = [model_refs.resolve(workspace, _uri(name)) for name in (first, second)]
    if resolved[0][2] == resolved[1][2]:
        raise ConfigError("both names mean the same version.", where=f"{first} and {second}")
    page = Path(out) if out else None
    if page is not None:
        # Asked now, and not after minutes of scoring.
        require_new(page)
    file = _pipeline(workspace, pipeline, resolved[1][2])
    with brief_context(file.spec.pipeline, workspace, file.path.parent) as context:
        bench = ScoringHarness(
            context=context,
            launch=file.spec.launch,
            shards=file.spec.shards,
            source=file.spec.source,
            # Not `evaluate`: a retrain may score the same run at this moment.
            folder=f"compare-{uuid.uuid4()}",
        )
        versions = [compared_version(bench, *each) for each in resolved]
        try:
            found = compare(bench, file.spec.evaluation, *versions)
        finally:
            for each in versions:
                left = workspace.local_path(f"{run_folder(each.run)}/{bench.folder}")
                shutil.rmtree(left, ignore_errors=True)
    if page is not None:
        curves = [(each.name, read_curve(workspace, each.checkpoint)) for each in versions]
        known = [(name, curve) for name, curve in curves if curve is not None]
        write_new(page, render_html(found, known, time.time()))
    return CompareReport(comparison=found, page="" if page is None else str(page.resolve()))


def require_new(page: Path) -> None:
    """Raises `ConfigError`: it is there already, a link that leads nowhere too, or its folder is not."""
    if page.exists() or page.is_symlink():
        raise ConfigError("it is there already, and nothing is overwritten.", where=str(page), advice="Name another.")
    if not page.parent.is_dir():
        raise ConfigError("there is no such folder.", where=str(page.parent), advice="Make it, or name another --out.")


def write_new(page: Path, text: str) -> None:
    """Errors as of `require_new`. Raises `EnvironmentProblem`, too: it cannot be written."""
    try:
        with page.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        require_new(page)
        raise
    except OSError as error:
        raise EnvironmentProblem(f"cannot be written ({error.strerror}).", where=str(page)) from error


def _uri(name: str) -> str:
    return name if name.startswith("models:/") else f"models:/{name}"


def _pipeline(workspace: Workspace, asked: str, registration: Link) -> PipelineFile:
    """Raises `ConfigError`: no such file here."""
    if asked:
        return pipeline_file(asked)
    trained_by = workspace.load(workspace.load(registration, Registration).run, RunSpec).pipeline
    try:
        return pipeline_file(trained_by)
    except ConfigError as error:
        raise ConfigError(
            f"its pipeline {trained_by!r} cannot be used here: {error.what}",
            where=error.where,
            advice="Name the pipeline file by --pipeline.",
        ) from error


def print_compared(report: CompareReport) -> None:
    console, found = plain_console(), report.comparison
    headline = f"{found.headline}: {words(found.metric)} {shown(found.difference)} on {found.examples_words}"
    console.print(headline, soft_wrap=True)
    first, second = found.first.name, found.second.name
    measures = _table("measure", first, second, "difference")
    for each in found.measures:
        paired = shown(found.difference) if each.name == found.metric else ""
        measures.add_row(words(each.name), shown(each.first), shown(each.second), paired)
    print_table(console, measures)
    if found.slices:
        slices = _table("slice", "examples", first, second, "difference")
        for part in found.slices[:MAX_SLICES]:
            values = (shown(value) for value in (part.first, part.second, part.difference))
            slices.add_row(one_line(part.name), f"{part.num_examples:,}", *values)
        print_table(console, slices)
    if (seen := found.agreement) is not None:
        console.print(
            f"both right {seen.both_right:,}, only {first} {seen.only_first:,}, only {second} {seen.only_second:,}, "
            f"both wrong {seen.both_wrong:,}",
            soft_wrap=True,
        )
    if report.page:
        console.print(f"page {report.page}", soft_wrap=True)


def _table(*titles: str) -> Table:
    return Table(*titles, box=None, padding=(0, 2, 0, 0), header_style="bold")
