"""`headway shards`: a pipeline's newest manifest as a table, a line for each group and split."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from headway.data_contracts.store.documents import FittedState, Json, ShardGroup, ShardManifest
from headway.data_contracts.store.errors import ConfigError, IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.flows.config.pipeline_file import pipeline_file
from headway.flows.console.console import headed, plain_console, print_table
from headway.tasks.core.stage_records import newest_record
from headway.tasks.rows.fitted_refs import state_in_use
from headway.training.data.encode.fit_sample import sample_line

MB = 1e6
MAX_SHOWN_CLASSES = 12


class GroupRow(BaseModel):
    split: str
    group: str
    """The folder or file behind the group, or its number."""
    num_files: int
    num_rows: int
    num_samples: int
    num_shards: int
    size_bytes: int
    codec: str
    label_shares: list[float]
    """Share of each class, where there are classes to predict."""
    rows_to_mean: float
    """Rows of the group over the mean of its split: 1 is even."""


class ShardTable(BaseModel):
    pipeline: str
    manifest: str
    content_sha256: str
    encoder: str
    fitted_on: str = ""
    """What the encoder was fitted on; empty: all of the training split."""
    columns: dict[str, str]
    """Column to dtype and shape of a row."""
    groups: list[GroupRow]


def read_shards(pipeline: str, workspace_uri: str) -> ShardTable:
    """The manifest made last under the pipeline's fitted state.

    Raises:
        ConfigError: no such pipeline, or it has no shards here yet.
        IntegrityError: the manifest is damaged.
    """
    name = pipeline_file(pipeline).spec.pipeline
    workspace = Workspace.existing(workspace_uri)
    manifest = _newest_manifest(workspace, name)
    if manifest is None:
        raise ConfigError(
            f"{name} has no shards here yet.", where=workspace.uri, advice="Run `headway retrain`, or give --workspace."
        )
    return ShardTable(
        pipeline=name,
        manifest=manifest.sha256,
        content_sha256=manifest.content_sha256,
        encoder=_encoder_name(manifest.spec["encoder"]),
        fitted_on=_fitted_on(workspace, manifest),
        columns={column.name: f"{column.dtype}{list(column.shape)}" for column in manifest.columns},
        groups=group_rows(manifest.groups),
    )


def _fitted_on(workspace: Workspace, manifest: ShardManifest) -> str:
    try:
        return sample_line(workspace.load(manifest.fitted, FittedState).statistics)
    except IntegrityError as error:  # `headway verify` is for that; the shards are there to be shown
        return f"fitted on  not known: {error}"


def _encoder_name(encoder: Json) -> str:
    """Its kind; of a user's own, its place."""
    return str(encoder["name"] if encoder["kind"] == "own" else encoder["kind"])


def _newest_manifest(workspace: Workspace, pipeline: str) -> ShardManifest | None:
    fitted = state_in_use(workspace, pipeline)
    if fitted is None:
        return None
    record = newest_record(workspace, "shard", lambda found: found.inputs.get("fitted") == fitted.target.sha256)
    return None if record is None else workspace.load(record.document, ShardManifest)


def group_rows(groups: Sequence[ShardGroup]) -> list[GroupRow]:
    """A row for each group and split, in the manifest's order."""
    means = {}
    for split in {group.split for group in groups}:
        rows = [group.num_rows for group in groups if group.split == split]
        means[split] = sum(rows) / len(rows)
    return [
        GroupRow(
            split=group.split,
            group=group.name or str(group.group),
            num_files=len(group.documents),
            num_rows=group.num_rows,
            num_samples=group.num_samples,
            num_shards=len(group.shards),
            size_bytes=group.size_bytes,
            codec=", ".join(sorted({shard.codec for shard in group.shards})),
            label_shares=label_shares(group),
            rows_to_mean=round(group.num_rows / means[group.split], 3) if means[group.split] else 1.0,
        )
        for group in groups
    ]


def label_shares(group: ShardGroup) -> list[float]:
    """Share of each class over the group's shards, to 4 places; empty without classes."""
    counts = [sum(each) for each in zip(*(shard.label_counts for shard in group.shards), strict=True)]
    total = sum(counts)
    return [round(each / total, 4) for each in counts] if total else []


def print_shards(table: ShardTable, console: Console | None = None) -> None:
    """The groups of each split, and what they sum to."""
    console = console or plain_console()
    columns = ", ".join(f"{name} {kind}" for name, kind in table.columns.items())
    codecs = ", ".join(sorted({row.codec for row in table.groups}))
    console.print(headed(table.pipeline, f"  manifest {table.manifest[:12]}, {table.encoder}, codec {codecs}"))
    if table.fitted_on:
        console.print(table.fitted_on)
    console.print(f"a row is {columns}\n")
    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column("split", no_wrap=True)
    shown.add_column("group", overflow="fold")
    for title in ("files", "rows", "/mean", "samples", "shards", "MB"):
        shown.add_column(title, justify="right", no_wrap=True)
    if any(row.label_shares for row in table.groups):
        shown.add_column("classes, %", overflow="fold")
    for split in dict.fromkeys(row.split for row in table.groups):
        rows = [row for row in table.groups if row.split == split]
        for row in rows:
            figures = _figures([row], f"{row.rows_to_mean:.2f}")
            shares = [_shares(row.label_shares)] if row.label_shares else []
            shown.add_row(split, row.group, *figures, *shares)
        shown.add_row(split, f"{len(rows)} in all", *_figures(rows, ""), style="bold", end_section=True)
    print_table(console, shown)


def _shares(shares: Sequence[float]) -> str:
    shown = " ".join(f"{100 * share:.0f}" for share in shares[:MAX_SHOWN_CLASSES])
    return f"{shown} ..." if len(shares) > MAX_SHOWN_CLASSES else shown


def _figures(rows: Sequence[GroupRow], to_mean: str) -> list[str]:
    return [
        f"{sum(row.num_files for row in rows):,}",
        f"{sum(row.num_rows for row in rows):,}",
        to_mean,
        f"{sum(row.num_samples for row in rows):,}",
        f"{sum(row.num_shards for row in rows):,}",
        f"{sum(row.size_bytes for row in rows) / MB:,.2f}",
    ]
