"""Which files of a workspace stay, and why: all that a root reaches, and all that nobody knows the use of.

Roots: entries of refs (so every registered version with its whole proof, unless it was retired, accepted data, fitted
states), what was
written or used within the limit, runs that continue or may, the last finished runs of each pipeline. A record by which
something is found again, such as a stage's, stays for as long as all that it names does. Names are followed as
documents say them; what a document merely has beside it, such as its card, stays with it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.documents import Link, RunSpec
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.folder_store import FileEntry, FolderStore
from headway.data_contracts.store.leftovers import MACHINE, STAGING_SUFFIX, is_held
from headway.data_contracts.store.places import entries
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.data_contracts.store.references import reached, removal_order
from headway.tasks.core.lease_records import OWNERS, is_leased
from headway.tasks.ownership import pipeline_history
from headway.tasks.ownership.pipeline_history import PIPELINES
from headway.tasks.registry.retirement import retired_registrations
from headway.tasks.retention.reference_graph import OF_CHECKPOINT, ReferenceGraph, ReferenceReader, own_digest
from headway.tasks.rows.fold_scores import fold_of
from headway.training.checkpoint.layout import RESULT_NAME
from headway.training.launch.base import run_lock

DAY_S = 86400.0
KINDS = {
    "stages": "stage entries",
    "documents": "documents",
    "shards": "shards",
    "runs": "runs: logs, exports, scores",
    OWNERS: "claims on runs",
    "models": "model files",
    "cards": "cards",
    "reports": "reports",
    "ledger": "ledgers",
    "fitted": "fitted states",
    "code": "code archives",
    "environments": "environments",
    "contracts": "contracts",
    "contract-states": "counts of files",
    "quarantine": "quarantine",
    "places": "places of sources",
}
"""Folders of the workspace that are cleaned, and what a person is told they hold. All others are let alone."""
CHECKPOINTS, UNFINISHED = "checkpoints", "unfinished files"
REPRODUCTIONS, TUNING = "reproductions", "tuning"
"""The folder of versions that were trained again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionPolicy:
    """What is old enough to go."""

    limit_unix_s: float
    """Whatever was written or used since stays, with all that it names."""
    keep_last: int
    """Finished runs of each pipeline that stay however old they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveSet:
    """Every file that could go, and whether it may."""

    listed: dict[str, FileEntry]
    why: dict[str, str]
    """What stays, each with the file that needs it, or a root's reason."""
    order: list[str]
    """What may go, whatever names a file before the file."""


def live_set(workspace: Workspace, policy: RetentionPolicy) -> LiveSet:
    """Look at every file, and tell what stays from what may go; nothing is changed.

    Raises:
        IntegrityError: a document that stays is damaged or gone, so that what it needs is unknown.
    """
    # Refs are listed as roots; no entry of theirs is ever removed.
    listed = {file.path: file for top in (*KINDS, "refs") for file in workspace.files(top)}
    reader = ReferenceReader(workspace)
    graph = ReferenceGraph(listed, reader, retired_registrations(workspace))
    roots = {path: reason for path, reason in _roots(workspace, listed, policy, reader) if path in listed}
    why = reached(roots, graph.of)
    for path in listed:
        if path not in why and path.startswith("stages/"):
            references = reader.read(path).references
            named = {*references.paths, *references.documents}
            if named and named <= why.keys():
                why[path] = "all that it names stays"
    garbage = {path for path in listed if path not in why}
    return LiveSet(listed=listed, why=why, order=removal_order(garbage, graph.references_of))


def _roots(
    workspace: Workspace, listed: Mapping[str, FileEntry], policy: RetentionPolicy, reader: ReferenceReader
) -> Iterator[tuple[str, str]]:
    folders: dict[str, list[FileEntry]] = defaultdict(list)
    for path, file in listed.items():
        if path.startswith("refs/"):
            yield path, "an entry of a ref"
        elif file.unix_s >= policy.limit_unix_s:
            yield path, "written or used within the limit"
        if path.startswith(("runs/", "ledger/", f"{OWNERS}/")):
            top, name, *_ = path.split("/")
            folders[f"{'runs' if top == OWNERS else top}/{name}"].append(file)
    for link in _of_searches(workspace, listed):
        yield document_path(link), "a search is to be continued"
    documents = {own_digest(path)[:16]: path for path in listed if path.startswith(f"documents/{RunSpec.kind}/")}
    finished: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for folder, files in folders.items():
        newest_unix_s = max(file.unix_s for file in files)
        document = documents.get(folder.rpartition("/")[2], "")
        reason = is_running(workspace, folder, newest_unix_s, policy)
        if reason := reason or ("another machine has the run" if is_leased(files) else ""):
            yield from ((file.path, reason) for file in files)
            yield document, reason  # "" is no file
        if document and f"{folder}/{RESULT_NAME}" in listed and not _is_of_fold(workspace, document):
            finished[str(reader.read(document).fields.get("pipeline", ""))].append((newest_unix_s, folder))
    for pipeline, runs in finished.items():
        for _, folder in sorted(runs, reverse=True)[: policy.keep_last]:
            reason = f"one of the last {policy.keep_last} finished runs of {pipeline}"
            yield documents[folder.rpartition("/")[2]], reason
            # The last checkpoint stays by the result, which names it; earlier ones need not.
            yield from ((file.path, reason) for file in folders[folder] if not OF_CHECKPOINT.match(file.path))


def _is_of_fold(workspace: Workspace, document: str) -> bool:
    """Whether a run trained a fold's model: it stays for what it evaluates, and takes no other run's place."""
    with contextlib.suppress(IntegrityError, FileNotFoundError):  # of what is damaged nothing is told
        run = workspace.load(Link(kind=RunSpec.kind, sha256=own_digest(document)), RunSpec)
        return fold_of(workspace, run) is not None
    return False


def _of_searches(workspace: Workspace, listed: Mapping[str, FileEntry]) -> Iterator[Link]:
    """What the searches that windows have yet to continue are on: it goes once they are over, unlike other history."""
    names = {path.split("/")[2] for path in listed if path.startswith(f"refs/{PIPELINES}/")}
    for search in (pipeline_history.read(workspace, name).search for name in sorted(names)):
        if search is not None:
            yield from (link for link in (search.receipt, search.manifest, search.base) if link is not None)


def is_running(workspace: Workspace, folder: str, newest_unix_s: float, policy: RetentionPolicy) -> str:
    """Why a run's or flow run's folder stays as a whole; empty when it need not."""
    here = workspace.local_path(folder)
    if run_lock.is_at_work(here):
        return "the run is running"
    if not workspace.is_local:
        # Ranks write on this machine first, so that the store's files may be older.
        local = FolderStore(workspace.local_root).files(folder)
        newest_unix_s = max([newest_unix_s, *(file.unix_s for file in local)])
    return "the run may be resumed: it was worked on within the limit" if newest_unix_s >= policy.limit_unix_s else ""


def kind_of(path: str) -> str:
    """What a person is told that a file is."""
    if path.endswith(STAGING_SUFFIX):
        return UNFINISHED
    if path.startswith(f"{REPRODUCTIONS}/"):
        return REPRODUCTIONS
    if path.startswith(f"{TUNING}/"):
        return "trials of a tuning"
    return CHECKPOINTS if OF_CHECKPOINT.match(path) else KINDS.get(path.partition("/")[0], "copies on this machine")


def oldest_session_unix_s(sessions: Path) -> float | None:
    """When the oldest flow run that is at work began; None when there is none.

    A claim of another machine is believed: whether its flow run lives cannot be told here.
    """
    started = []
    for claim in entries(sessions):
        with contextlib.suppress(FileNotFoundError):
            if not claim.name.startswith(f"{MACHINE}-") or is_held(claim):
                started.append(claim.stat().st_mtime)
    return min(started, default=None)


def kept_runs(live_set: LiveSet) -> set[str]:
    """Digests of the runs whose documents stay."""
    return {own_digest(path) for path in live_set.why if path.startswith(f"documents/{RunSpec.kind}/")}
