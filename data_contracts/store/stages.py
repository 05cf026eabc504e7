"""Stages: a key of every input names the document a stage made, so that work is found instead of done again.

`stages/<stage>/<key>.json` holds the link of the document and the files it stands on. A hit is only a hit
when those still carry their digests; otherwise the stage runs again and heals what was damaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.data_contracts.store.digests import canonical_json, sha256_of
from headway.data_contracts.store.documents import Frozen, Json, Link, StoredFile
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import FileDigests, document_path, require_digest
from headway.data_contracts.store.strict_json import MAX_RECORD_BYTES, parse_json

SEAL = "sha256"


class StageRecord(Frozen):
    format_version: int = 2
    """Of 1, an earlier Headway's, no record holds its own digest; what they decided stays."""
    stage: str
    key: str
    inputs: Json
    """What the key was made of, readable, so that `why did it run again` has an answer."""
    document: Link
    files: tuple[StoredFile, ...]
    provenance: dict[str, str | float]
    """Wall time, duration, commit: facts about the making that are no part of the key."""

    def to_bytes(self) -> bytes:
        """With its own digest: a key says nothing of the document, so that any other could be put in its place."""
        value = self.model_dump(mode="json")
        return canonical_json({**value, SEAL: sha256_of(value)})

    @classmethod
    def from_bytes(cls, data: bytes) -> StageRecord:
        """Raises `ValueError`: none, or not as it was written."""
        value = parse_json(data)
        if not isinstance(value, dict):
            raise ValueError("no record")
        seal = value.pop(SEAL, None)
        if value.get("format_version") != 1 and seal != sha256_of(value):
            raise ValueError("its content differs from its digest")
        return cls.model_validate(value)


def stage_key(stage: str, inputs: Mapping[str, Any]) -> str:
    # The stage's name is part of the key: two stages may have equal inputs.
    return sha256_of({"stage": stage, **inputs})


def record_path(stage: str, key: str) -> str:
    return f"stages/{stage}/{key}.json"


def find(workspace: Workspace, stage: str, key: str, digests: FileDigests) -> StageRecord | None:
    """The record under this key, its document and files proved intact; None when it was never made.

    Raises:
        IntegrityError: it was made, and what it names is damaged or gone.
    """
    record = recorded(workspace, stage, key)
    if record is None:
        return None
    # A record proves nothing by itself: files are held against their digests at every hit.
    check_document(workspace, record.document, digests)
    for file in record.files:
        check_file(workspace, file, digests)
    return record


def recorded(workspace: Workspace, stage: str, key: str) -> StageRecord | None:
    """What was written down under this key, whatever became of the files.

    Raises:
        IntegrityError: the record itself is damaged, or another one lies in its place.
    """
    where = record_path(stage, key)
    data = workspace.read_if_there(where, MAX_RECORD_BYTES)
    if data is None:
        return None
    record = parse_record(data, where)
    if (record.stage, record.key) != (stage, key):
        raise IntegrityError(f"is the record of stage {record.stage}, key {record.key[:12]}.", where=where)
    return record


def parse_record(data: bytes, where: str) -> StageRecord:
    """Raises `IntegrityError`: none that this Headway wrote."""
    try:
        return StageRecord.from_bytes(data)
    except ValueError as error:
        raise IntegrityError("not a readable stage record.", where=where) from error


def check_document(workspace: Workspace, link: Link, digests: FileDigests) -> None:
    where = document_path(link)
    if (actual := workspace.digest(where, digests)) != link.sha256:
        raise IntegrityError(f"sha256 is {actual[:12]}, its name says {link.sha256[:12]}.", where=where)


def check_file(workspace: Workspace, file: StoredFile, digests: FileDigests) -> None:
    """Compare digests, reading only what changed since it was last read."""
    require_digest(file, workspace.digest(file.path, digests, file.algorithm))


def record(
    workspace: Workspace,
    stage: str,
    inputs: Mapping[str, Any],
    document: Link,
    *,
    files: tuple[StoredFile, ...] = (),
    provenance: Mapping[str, str | float] | None = None,
) -> StageRecord:
    """Write down what the stage made, last of all."""
    key = stage_key(stage, inputs)
    made = StageRecord(
        stage=stage,
        key=key,
        inputs=dict(inputs),
        document=document,
        files=files,
        provenance=dict(provenance or {}),
    )
    # Last: a record exists only once all that it names does.
    workspace.publish(record_path(stage, key), made.to_bytes())
    return made
