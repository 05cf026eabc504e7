"""Stage *snapshot*: which files there are, and the digest of every one."""

from __future__ import annotations

import time
from pathlib import Path

from headway.data_contracts.sources.reading import SourceSpec, resolve_base_uri, take_snapshot
from headway.data_contracts.store.digests import canonical_json, sha256_of
from headway.data_contracts.store.documents import Link, Snapshot
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.strict_json import parse_json
from headway.data_contracts.suites.contract_file import read_contract_file
from headway.data_contracts.types.report_text import count
from headway.tasks.core.context import RunContext
from headway.tasks.core.outlook import Outlook, look_up
from headway.tasks.core.stage import StageOutput, find_or_make, stage_task


@stage_task(name="snapshot", task_run_name="snapshot {source.uri}")
def snapshot(context: RunContext, contract_file: str, source: SourceSpec) -> Link:
    """Digest every source file; files unchanged by size, mtime, ctime and inode are not read again.

    Args:
        contract_file: says what is a text in files that do not say so.

    Raises:
        ConfigError: the contract cannot be read.
        DataError: no file, an unreadable one, or one that changes while it is read.
    """
    started_s = time.perf_counter()
    with context.ledger.span("snapshot.read"):
        taken = take(context, contract_file, source)
    size, took_s = f"{taken.size_bytes / 1e6:,.1f} MB", time.perf_counter() - started_s
    shown = f"{count(len(taken.files), 'file')}   {size}   read in {took_s:.2f} s"
    if source.is_table:
        shown += f"   {count(taken.num_rows, 'row')} of {count(len(taken.columns), 'column')}"
    link = find_or_make(context, "snapshot", _inputs(source, taken), lambda: StageOutput(document=taken), shown=shown)
    # Where the data lay is no part of what they were; kept for `verify` alone.
    place = resolve_base_uri(source, base=context.base)
    if "://" not in place:
        note = canonical_json({"place": place, "sha256": sha256_of(place)})
        context.workspace.publish_addressed(place_path(link), note)
    return link


def take(context: RunContext, contract_file: str, source: SourceSpec) -> Snapshot:
    """The source as it is now. Raises as `snapshot`."""
    contract = read_contract_file(context.base / contract_file).contract
    taken = take_snapshot(
        source,
        base=context.base,
        cache=context.digests,
        texts=contract.texts,
        quarantined=contract.quarantined_types,
        workspace=context.workspace.local_root,
    )
    context.digests.save()
    return taken


def outlook(context: RunContext, source: SourceSpec, taken: Snapshot) -> Outlook:
    return look_up(context, "snapshot", _inputs(source, taken))


def _inputs(source: SourceSpec, taken: Snapshot) -> dict[str, object]:
    # The source is always looked at: its content is the stage's input, so it is part of the key.
    return {"source": source.model_dump(mode="json"), "content": taken.sha256}


def place_path(snapshot: Link) -> str:
    return f"places/{snapshot.sha256}.json"


def known_place(workspace: Workspace, snapshot: Link) -> Path | None:
    """Where a snapshot's files lay when it was last taken; None when nobody wrote it down, or on no file system.

    Raises:
        IntegrityError: what was written down is damaged.
    """
    where = place_path(snapshot)
    if not workspace.exists(where):
        return None
    try:
        value = parse_json(workspace.read(where))
        place, whole = str(value["place"]), value["sha256"] == sha256_of(value["place"])
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError("not a readable note of where the source lay.", where=where) from error
    if not whole:
        raise IntegrityError("its content differs from the digest it carries.", where=where)
    return None if "://" in place else Path(place)
