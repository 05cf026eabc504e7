"""Take away what a workspace needs no more: looked at first, then removed so that nothing ever names what is gone.

Flows may work meanwhile. What one finds again it renews, so that it counts as written now (`Workspace.renew`). So
records by which something can be found go first; after a moment, in which whoever read one renews it, everything is
looked at anew, and only what still nobody needs goes, each file after all that name it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.folder_store import FileEntry, FolderStore
from headway.data_contracts.store.leftovers import STAGING_SUFFIX, discard_if_abandoned
from headway.data_contracts.store.publication import Workspace
from headway.tasks.registry.file_lock import holding
from headway.tasks.retention.reachability import (
    REPRODUCTIONS,
    TUNING,
    LiveSet,
    RetentionPolicy,
    is_running,
    live_set,
    oldest_session_unix_s,
)
from headway.tasks.retention.reference_graph import GROUP_RECORD
from headway.training.launch.base import run_lock

SETTLE_S = 2.0
"""Between the removal of records and the second look: longer than a flow takes from reading a record to renewing it."""
OTHER_CLEANING_WITHIN_S = 1.0
CACHES = ("copies", "tables")
"""Folders on this machine of what can be fetched or made again, by file."""
WORK = ("runs", "ledger")
"""On the local side of a remote workspace: work whose results are published, by folder."""
TRIALS = (REPRODUCTIONS, TUNING)
"""On this machine, whatever the workspace: work that nothing stands on, by folder. What was measured lies beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanPlan:
    """What may go."""

    policy: RetentionPolicy
    live_set: LiveSet
    here: list[FileEntry]
    """On this machine alone: copies, and what is left of work for a remote workspace."""

    @property
    def files(self) -> list[FileEntry]:
        return [*(self.live_set.listed[path] for path in self.live_set.order), *self.here]


def plan(workspace: Workspace, *, older_than_s: float, keep_last: int, now_unix_s: float | None = None) -> CleanPlan:
    """Find what may go; nothing is changed.

    Args:
        older_than_s: what was written or used since stays, and whatever a flow that is at work could have found.
        now_unix_s: the time, by default.

    Raises:
        IntegrityError: a document that stays is damaged or gone, so that what it needs is unknown.
    """
    limit_unix_s = (time.time() if now_unix_s is None else now_unix_s) - older_than_s
    session_unix_s = oldest_session_unix_s(workspace.local_path("sessions"))
    # A flow may hold the name of anything that was there when it started.
    if session_unix_s is not None:
        limit_unix_s = min(limit_unix_s, session_unix_s)
    policy = RetentionPolicy(limit_unix_s=limit_unix_s, keep_last=keep_last)
    return CleanPlan(policy=policy, live_set=live_set(workspace, policy), here=_here(workspace, policy))


def sweep(workspace: Workspace, found: CleanPlan, *, settle_s: float = SETTLE_S) -> list[FileEntry]:
    """Remove what was found and still may go; returns what did. Interrupted, it is completed by the next.

    Raises:
        RegistryError: another cleaning is at work here.
        IntegrityError: as `plan`; what is gone by then was needed by nobody.
    """
    gone: list[FileEntry] = []
    may_go, limit_unix_s = set(found.live_set.order), found.policy.limit_unix_s

    def remove(paths: Iterable[str]) -> None:
        for path in paths:
            written_unix_s = workspace.written_unix_s(path)
            # Asked again for each file, since a flow may have renewed it after the listing.
            if written_unix_s is not None and written_unix_s < limit_unix_s:
                _remove(workspace, path)
                gone.append(found.live_set.listed[path])

    with holding(workspace.local_path("locks/clean.lock"), within_s=OTHER_CLEANING_WITHIN_S):
        # Somebody may have renewed a record between two looks: what it names stays then.
        again = live_set(workspace, found.policy)
        records = [path for path in again.order if path in may_go and _finds_others(path)]
        remove(records)
        if records:
            time.sleep(settle_s)
            again = live_set(workspace, found.policy)
        remove(path for path in again.order if path in may_go)
        for file in found.here:
            with contextlib.suppress(FileNotFoundError):
                path = workspace.local_path(file.path)
                if path.stat().st_mtime < limit_unix_s:
                    path.unlink()
                    gone.append(file)
    _remove_empty_folders(workspace.local_root, gone)
    return gone


def _remove(workspace: Workspace, path: str) -> None:
    # Its writer may live; only the lock on the file tells.
    if workspace.is_local and path.endswith(STAGING_SUFFIX):
        discard_if_abandoned(workspace.local_path(path))
    else:
        workspace.remove(path)


def _finds_others(path: str) -> bool:
    return path.startswith("stages/") or path.endswith(f"/{GROUP_RECORD}")


def _here(workspace: Workspace, policy: RetentionPolicy) -> list[FileEntry]:
    """What is old on this machine and can be had again."""
    store = FolderStore(workspace.local_root)
    units: dict[str, list[FileEntry]] = defaultdict(list)
    for file in (file for top in CACHES for file in store.files(top)):
        units[file.path.partition(".")[0]].append(file)  # a file and its note
    found = [unit for unit in units.values() if _is_old(unit, policy)]
    tops = TRIALS if workspace.is_local else (*TRIALS, *WORK)
    for folder, files in _by_folder(file for top in tops for file in store.files(top)).items():
        newest_unix_s = max(file.unix_s for file in files)
        found += [] if is_running(workspace, folder, newest_unix_s, policy) else [files]
    return [file for unit in found for file in unit]


def _by_folder(files: Iterable[FileEntry]) -> dict[str, list[FileEntry]]:
    folders: dict[str, list[FileEntry]] = defaultdict(list)
    for file in files:
        top, name, *inside = file.path.split("/")
        if inside or top != TUNING:
            folders[f"{top}/{name}"].append(file)
    return folders


def _is_old(files: list[FileEntry], policy: RetentionPolicy) -> bool:
    return max(file.unix_s for file in files) < policy.limit_unix_s


def _remove_empty_folders(root: Path, gone: list[FileEntry]) -> None:
    """Folders that held what is gone, and now nothing; those at the top stay.

    Not of a run that continues again: its attempt's fence is an empty folder.
    """
    units = {root.joinpath(*file.path.split("/")[:2]) for file in gone}
    for unit in (unit for unit in units if not run_lock.is_at_work(unit)):
        for folder, _, _ in os.walk(unit, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
