"""A cleaning that comes long after what it finds, and what a workspace holds before and after it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from headway.data_contracts.store.documents import Link, StoredFile
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.tasks.retention import clean
from headway.tasks.retention.reachability import DAY_S, KINDS
from headway.training.checkpoint.layout import RESULT_NAME

LATER_S = 90 * DAY_S
"""By how much a test's cleaning comes after what it finds."""


def everything(workspace: Workspace) -> set[str]:
    tops = [*KINDS, "refs"]
    return {file.path for top in tops for file in workspace.files(top)}


def look(workspace: Workspace, *, keep_last: int = 0, later_s: float = LATER_S) -> clean.CleanPlan:
    return clean.plan(workspace, older_than_s=30 * DAY_S, keep_last=keep_last, now_unix_s=time.time() + later_s)


def cleaned(workspace: Workspace, **how: float) -> set[str]:
    return {file.path for file in clean.sweep(workspace, look(workspace, **how), settle_s=0)}  # type: ignore[arg-type]


def dangling(workspace: Workspace) -> set[tuple[str, str]]:
    """Who names what is not there, read as strictly as a stage reads it."""
    here, found = everything(workspace), set()
    for path in here:
        named: list[str] = []
        if path.startswith(("documents/", "stages/")):
            named = [*names_in(json.loads(workspace.read(path)))]
        elif path.startswith("runs/") and path.endswith(("/manifest.json", f"/{RESULT_NAME}")):
            value = json.loads(workspace.read(path))
            folder = path.rpartition("/")[0]
            is_result = path.endswith(RESULT_NAME)
            named = [f"{folder}/checkpoints/step-{value['step']:08d}/manifest.json"] if is_result else []
            named += [f"{folder}/{file['name']}" for file in value.get("files", ())]
        found |= {(path, name) for name in named if name not in here}
    return found


def names_in(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if value.keys() == {"kind", "sha256"}:
            yield document_path(Link.model_validate(value))
        if value.keys() | {"sha256", "blake3"} == StoredFile.model_fields.keys():
            yield value["path"]
        for each in value.values():
            yield from names_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from names_in(each)
