"""`headway clean`: what a workspace needs no more, looked at first, and taken away only when told so."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.folder_store import FileEntry
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.references import chain
from headway.data_contracts.types.report_text import count
from headway.flows.accounts.kept_accounts import settle
from headway.flows.console.console import plain_console, print_table
from headway.flows.console.stop_options import duration
from headway.tasks.registry import mlflow_store, tracked_runs
from headway.tasks.retention import clean as cleaning
from headway.tasks.retention.clean import CleanPlan
from headway.tasks.retention.reachability import DAY_S, kept_runs, kind_of
from headway.training.config.loader_spec import LoaderSpec, cache_folder
from headway.training.data.load.node_cache import Item, NodeCache

NODE_CACHE = "this node's cache of shards"


class KindReport(BaseModel):
    """Files of one kind that may go, or went."""

    kind: str
    num_files: int
    size_bytes: int


class CleanReport(BaseModel):
    workspace: str
    applied: bool
    limit: str
    """Whatever was written or used since stays: ISO 8601, in UTC."""
    kinds: list[KindReport]
    num_kept: int
    """Files that stay, of those that could go."""
    mlflow_removed: list[str]
    """MLflow's runs that no registered version came of: marked as deleted; `mlflow gc` purges them."""
    mlflow_killed: list[str]
    """MLflow's runs that a killed process left as running: ended as KILLED; without `applied`, none."""

    @property
    def size_bytes(self) -> int:
        return sum(kind.size_bytes for kind in self.kinds)


def clean(
    workspace_uri: str,
    *,
    apply: bool,
    keep_last: int,
    older_than: str,
    now_unix_s: float | None = None,
    settle_s: float = cleaning.SETTLE_S,
) -> CleanReport:
    """Say what may go; with `apply`, take it away.

    Raises:
        ConfigError: no such length of time.
        EnvironmentProblem: no workspace, or a part of it cannot be read: nothing goes.
        IntegrityError: a document that stays is damaged: what it needs is unknown, so nothing goes.
        RegistryError: another cleaning is at work here, or MLflow refuses.
    """
    workspace, found = _look(workspace_uri, keep_last, older_than, now_unix_s)
    if apply:
        settle(workspace)  # accounts outlive the ledgers that they are made from
    gone = cleaning.sweep(workspace, found, settle_s=settle_s) if apply else found.files
    limit_unix_s = found.policy.limit_unix_s
    cache = NodeCache(cache_folder(LoaderSpec()), LoaderSpec().cache_bytes)
    removed, killed = _tidy_mlflow(workspace, found, apply=apply)
    return CleanReport(
        workspace=workspace.uri,
        applied=apply,
        limit=datetime.datetime.fromtimestamp(limit_unix_s, datetime.UTC).isoformat(timespec="seconds"),
        kinds=_by_kind(gone, cache.unused_since(limit_unix_s, evict=apply)),
        num_kept=len(found.live_set.listed) - len(found.live_set.order),
        mlflow_removed=removed,
        mlflow_killed=killed,
    )


def why(workspace_uri: str, path: str, *, keep_last: int, older_than: str, now_unix_s: float | None = None) -> str:
    """Why a file stays, or that it may go.

    Args:
        path: relative to the workspace, or with its URI before it.

    Raises:
        ConfigError: there is no such file, or nothing cleans where it lies.
    """
    workspace, found = _look(workspace_uri, keep_last, older_than, now_unix_s)
    relative = path.removeprefix(f"{workspace.uri}/")
    if relative in {file.path for file in found.files}:
        return f"{relative} may go: nothing that stays needs it."
    steps = chain(found.live_set.why, relative)
    if not steps:
        known = "Give a file, relative to the workspace; folders that no cleaning looks at always stay."
        raise ConfigError("nothing is known of such a file.", where=relative, advice=known)
    *names, reason = steps
    return "\n".join([names[0], *(f"  needed by  {name}" for name in names[1:]), f"  because    {reason}"])


def _look(workspace_uri: str, keep_last: int, older_than: str, now_unix_s: float | None) -> tuple[Workspace, CleanPlan]:
    workspace = Workspace.existing(workspace_uri)
    older_than_s = duration(older_than, "--older-than").total_seconds()
    if older_than_s < DAY_S:
        advice = "Give a day at least: a running retrain may need what is younger."
        raise ConfigError(f"{older_than} is too short.", where="--older-than", advice=advice)
    return workspace, cleaning.plan(workspace, older_than_s=older_than_s, keep_last=keep_last, now_unix_s=now_unix_s)


def _tidy_mlflow(workspace: Workspace, found: CleanPlan, *, apply: bool) -> tuple[list[str], list[str]]:
    removed, killed, kept = [], [], kept_runs(found.live_set)
    for client in tracked_runs.stores(workspace):
        runs, ended = tracked_runs.tidy(workspace, client, kept, found.policy.limit_unix_s, apply=apply)
        removed += runs
        killed += ended
    return removed, killed


def end_killed(workspace: Workspace) -> list[str]:
    """End as KILLED what MLflow shows as running and nobody trains any more; returns the names of these runs.

    Raises:
        RegistryError: MLflow refuses.
    """
    ended = []
    for client in tracked_runs.stores(workspace):
        with mlflow_store.mlflow_client(client.tracking_uri):
            ended += tracked_runs.end_killed(workspace, client)
    return ended


def _by_kind(files: Iterable[FileEntry], entries: Iterable[Item]) -> list[KindReport]:
    """The largest first."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for file in files:
        sizes[kind_of(file.path)].append(file.size_bytes)
    for entry in entries:
        sizes[NODE_CACHE].append(entry.size_bytes)
    kinds = [KindReport(kind=kind, num_files=len(each), size_bytes=sum(each)) for kind, each in sizes.items()]
    return sorted(kinds, key=lambda kind: -kind.size_bytes)


def print_clean(report: CleanReport, console: Console | None = None) -> None:
    console = console or plain_console()
    console.print(f"workspace  {report.workspace}")
    console.print(f"stays      what was written or used since {report.limit}, and all that it needs")
    console.print(f"           {count(report.num_kept, 'file')}\n")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for column in ("left", "right", "right"):
        table.add_column(justify=column)
    for kind in report.kinds:
        table.add_row(kind.kind, count(kind.num_files, "file"), f"{kind.size_bytes / 1e6:,.1f} MB")
    if report.kinds:
        print_table(console, table)
    for name in report.mlflow_removed:
        console.print(f"MLflow     {name}: no registered version came of it")
    for name in report.mlflow_killed:
        console.print(f"MLflow     {name}: ended as KILLED, nobody trains it")
    total = f"{report.size_bytes / 1e6:,.1f} MB"
    if not report.kinds and not report.mlflow_removed:
        console.print("nothing to clean")
    elif report.applied:
        console.print(f"\n{total} went.")
    else:
        console.print(
            f"\n{total} would go; nothing was touched. `headway clean --apply` takes it away.", soft_wrap=True
        )
