"""Where a rehearsal works: in a folder of the real workspace, so that it meets the same storage, rights and hosts.

<workspace>/rehearsals/<machine>-<random>/
    .owner      claimed while the rehearsal works: without its process it is taken away by the next; not in one that
                was to be kept
    project/    the pipeline made small; on this machine, also where the workspace is in object storage
    workspace/  what the rehearsal makes
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.leftovers import MACHINE, OWNER, claimed, discard_if_abandoned
from headway.data_contracts.store.publication import Workspace
from headway.training.launch.base.run_lock import is_at_work

REHEARSALS = "rehearsals"


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearsalPlace:
    folder: Path
    """On this machine."""
    workspace: Workspace
    """Of the rehearsal alone."""


@contextlib.contextmanager
def leaving_no_empty_folder(workspace_uri: str) -> Iterator[None]:
    """A workspace that was not there before the body, and holds nothing after it, is not there again."""
    root = Workspace(workspace_uri).local_root
    was_there = root.exists()
    try:
        yield
    finally:
        if not was_there:
            with contextlib.suppress(OSError):
                root.rmdir()


@contextlib.contextmanager
def rehearsal_place(workspace: Workspace, *, keep: bool) -> Iterator[RehearsalPlace]:
    """A folder and a workspace that go with the body; with `keep` they stay.

    What a killed rehearsal of this machine left goes first, unless a job of it still works.
    """
    for owner in workspace.local_path(REHEARSALS).glob(f"{MACHINE}-*/{OWNER}"):
        # A scheduler's job may outlive the command that was killed, and writes there still.
        if not is_at_work(owner.parent):
            discard_if_abandoned(owner, lambda folder=owner.parent: _discard(workspace, folder))  # type: ignore[misc]
    folder = workspace.local_path(f"{REHEARSALS}/{MACHINE}-{uuid.uuid4().hex[:8]}")
    folder.mkdir(parents=True)
    with claimed(folder / OWNER):
        try:
            yield RehearsalPlace(folder=folder, workspace=Workspace.create(_workspace_uri(workspace, folder)))
        finally:
            if keep:
                (folder / OWNER).unlink(missing_ok=True)
            else:
                _discard(workspace, folder)


def _workspace_uri(workspace: Workspace, folder: Path) -> str:
    return f"{workspace.uri}/{REHEARSALS}/{folder.name}/workspace"


def _discard(workspace: Workspace, folder: Path) -> None:
    """Its claim last: what an interrupt leaves is found by the next rehearsal."""
    made = Workspace(_workspace_uri(workspace, folder))
    if not made.is_local:
        # Listed before the first is removed: a listing that changes under way may skip files.
        for file in list(workspace.files(f"{REHEARSALS}/{folder.name}")):
            workspace.remove(file.path)
    shutil.rmtree(made.local_root, ignore_errors=True)
    for each in folder.iterdir():
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    # Another rehearsal may be at work beside; a folder that is not empty stays.
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
