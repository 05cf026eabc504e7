"""Stage *snapshot*: which files there are, and the digest of every one."""

from __future__ import annotations

import json
from pathlib import Path

from data_contracts.sources import SourceSpec, resolve_base_uri, take_snapshot

from data_contracts.documents import Link
from data_contracts.publication import Workspace
from tasks.context import RunContext
from tasks.stage import Made, find_or_make, stage_task


@stage_task(name="snapshot", task_run_name="snapshot {source.uri}")
def snapshot(context: RunContext, source: SourceSpec) -> Link:
    """Digest every source file; files unchanged by size, mtime, ctime and inode are not read again.

    Raises:
        DataError: no file, an unreadable one, or one that changes while it is read.
    """
    with context.ledger.span("snapshot.read"):
        taken = take_snapshot(source, base=context.base, cache=context.digests)
        context.digests.save()
    # The source is always looked at: its content is the stage's input, so it is part of the key.
    inputs = {"source": source.model_dump(mode="json"), "content": taken.sha256}
    shown = f"{len(taken.files):,} files   {taken.size_bytes / 1e6:,.1f} MB"
    link = find_or_make(context, "snapshot", inputs, lambda: Made(document=taken), shown=shown)
    # Where the data lay is no part of what they were; kept for `verify` alone.
    place = {"place": resolve_base_uri(source, base=context.base)}
    if known_place(context.workspace, link) != Path(place["place"]):
        context.workspace.publish_json(place_path(link), place)
    return link


def place_path(snapshot: Link) -> str:
    return f"places/{snapshot.sha256}.json"


def known_place(workspace: Workspace, snapshot: Link) -> Path | None:
    """Where a snapshot's files lay when it was last taken, if on a file system."""
    if not workspace.exists(place_path(snapshot)):
        return None
    place = str(json.loads(workspace.read(place_path(snapshot)))["place"])
    return None if "://" in place else Path(place)
