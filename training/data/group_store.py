"""Finished groups, found again by key: shard files first, then `group.json`, which says that all of them are there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from pydantic import ValidationError

from data_contracts.digests import canonical_json, sha256_of
from data_contracts.documents import Frozen, PayloadColumn, RowGroup, Sha256, Shard, ShardGroup
from data_contracts.errors import IntegrityError
from data_contracts.publication import Workspace
from training.data.parquet_payload import Bytes2D, payload_of, shard_bytes
from training.data.spec import ShardSpec


class GroupRecord(Frozen):
    """A group's part of the manifest, and the digest of its payload alone."""

    format_version: int = 1
    key: Sha256
    content_sha256: Sha256
    group: ShardGroup


def record_path(key: str) -> str:
    return f"shards/{key}/group.json"


def find_group(workspace: Workspace, key: str) -> GroupRecord | None:
    """The record under this key when it and all its files are intact; None means: encode the group (again)."""
    try:
        value = json.loads(workspace.read(record_path(key)))
        if value["sha256"] != sha256_of(value["record"]):
            return None
        record = GroupRecord.model_validate(value["record"])
        for shard in record.group.shards:
            workspace.verify(shard.file)
    except (IntegrityError, ValidationError, ValueError, KeyError, TypeError):
        return None
    return record if record.key == key else None


def store_group(
    workspace: Workspace,
    spec: ShardSpec,
    key: str,
    group: ShardGroup,
    columns: Sequence[PayloadColumn],
    values: Mapping[str, NDArray[Any]],
) -> GroupRecord:
    """Write rows in the order given, and the record last of all.

    Args:
        group: as it will be recorded, but without shards and rows.

    Raises:
        EnvironmentProblem: no space left, or permission lost; the group does not count as written.
    """
    payloads = {column.name: payload_of(column, values[column.name]) for column in columns}
    num_rows = len(payloads[columns[0].name])
    content = hashlib.sha256()
    shards = []
    for number, first in enumerate(range(0, num_rows, spec.rows_per_shard)):
        part = {name: rows[first : first + spec.rows_per_shard] for name, rows in payloads.items()}
        data, row_groups = shard_bytes(columns, part, spec.rows_per_row_group)
        file = workspace.publish(f"shards/{key}/{number:05d}.parquet", data)
        shards.append(Shard(file=file, num_rows=sum(held.num_rows for held in row_groups), row_groups=row_groups))
        _digest_payload(content, columns, part, row_groups)
    whole = group.model_copy(update={"num_rows": num_rows, "shards": tuple(shards)})
    record = GroupRecord(key=key, content_sha256=content.hexdigest(), group=whole)
    value = record.model_dump(mode="json")
    workspace.publish(record_path(key), canonical_json({"record": value, "sha256": sha256_of(value)}))
    return record


def _digest_payload(
    content: hashlib._Hash,
    columns: Sequence[PayloadColumn],
    part: Mapping[str, Bytes2D],
    row_groups: Sequence[RowGroup],
) -> None:
    """Feed payload bytes in (row group, column) order."""
    first = 0
    for row_group in row_groups:
        for column in columns:
            content.update(part[column.name][first : first + row_group.num_rows].tobytes())
        first += row_group.num_rows


def content_digest(columns: Sequence[PayloadColumn], records: Sequence[GroupRecord]) -> str:
    """Digest over columns and payload in (group, split, shard, row group, column) order, whatever wrote the files."""
    return sha256_of(
        {
            "columns": [column.model_dump(mode="json") for column in columns],
            "groups": [
                [record.group.group, record.group.split, record.group.num_rows, record.content_sha256]
                for record in records
            ],
        }
    )
