"""What a finished run left behind: its result, and the checkpoint that is its model."""

from __future__ import annotations

import contextlib
from pathlib import Path

from headway.data_contracts.store import stages
from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import CheckpointManifest, Link, StoredFile
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.strict_json import MAX_RECORD_BYTES
from headway.tasks.core.context import RunContext
from headway.training.checkpoint.layout import (
    MANIFEST_NAME,
    RESULT_NAME,
    RunResult,
    checkpoint_path,
    run_folder,
    step_of,
    stored_files,
)


def result_path(run: Link) -> str:
    return f"{run_folder(run)}/{RESULT_NAME}"


def read_result(workspace: Workspace, run: Link) -> RunResult:
    """Raises `IntegrityError`: the run has no result of its own that reads as it was written."""
    where = result_path(run)
    try:
        return RunResult.parse(workspace.read(where, MAX_RECORD_BYTES), run)
    except ValueError as error:
        raise IntegrityError("not a readable result.", where=where, advice="Delete it and run again.") from error


def final_checkpoint(context: RunContext, run: Link) -> tuple[str, CheckpointManifest]:
    """The workspace folder and manifest of the checkpoint that is the run's model.

    Raises:
        IntegrityError: the run has no result, or its manifest was altered.
    """
    result = read_result(context.workspace, run)
    folder = checkpoint_path(run_folder(run), result.step)
    data = context.workspace.read(f"{folder}/manifest.json")
    manifest = CheckpointManifest.from_bytes(data, where=f"{folder}/manifest.json")
    if manifest.sha256 != result.manifest_sha256:
        raise IntegrityError("the manifest is not the one the run ended with.", where=f"{folder}/manifest.json")
    return folder, manifest


def is_model(context: RunContext, run: Link, manifest: CheckpointManifest) -> bool:
    """Whether the run is finished, with this checkpoint as its model."""
    with contextlib.suppress(IntegrityError, FileNotFoundError):
        return final_checkpoint(context, run)[1].sha256 == manifest.sha256
    return False


def furthest_step(workspace: Workspace, run: Link) -> int:
    """Of the checkpoints that are left: a finished run's model may be an earlier one, its best."""
    steps = (step_of(name) for name in workspace.names(f"{run_folder(run)}/checkpoints"))
    return max((step for step in steps if step is not None), default=0)


def checkpoint_at(context: RunContext, run: Link, step: int) -> CheckpointManifest | None:
    """A whole checkpoint of a run that came to this step: its model where it is finished, else its newest one.

    None where it has not come so far, or nothing good is left of that.
    """
    with contextlib.suppress(IntegrityError, FileNotFoundError):
        folder, manifest = final_checkpoint(context, run)
        return _whole(context, folder, manifest)
    reached = (step_of(name) for name in context.workspace.names(f"{run_folder(run)}/checkpoints"))
    for each in sorted((each for each in reached if each is not None and each >= step), reverse=True):
        folder = checkpoint_path(run_folder(run), each)
        with contextlib.suppress(IntegrityError, FileNotFoundError):
            data = context.workspace.read(f"{folder}/{MANIFEST_NAME}")
            manifest = CheckpointManifest.from_bytes(data, where=f"{folder}/{MANIFEST_NAME}")
            if manifest.run == run and manifest.step == each:
                return _whole(context, folder, manifest)
    return None


def _whole(context: RunContext, folder: str, manifest: CheckpointManifest) -> CheckpointManifest:
    for file in stored_files(folder, manifest):
        stages.check_file(context.workspace, file, context.digests)
    return manifest


def checkpoint_here(workspace: Workspace, folder: str, manifest: CheckpointManifest) -> Path:
    """A checkpoint's folder on this machine, fetched if it is not there."""
    workspace.fetch_all(stored_files(folder, manifest))
    return workspace.local_path(folder)


def result_files(context: RunContext, run: Link) -> tuple[StoredFile, ...]:
    folder, manifest = final_checkpoint(context, run)
    data = context.workspace.read(result_path(run))
    result = StoredFile(path=result_path(run), size_bytes=len(data), sha256=sha256_bytes(data))
    return (*stored_files(folder, manifest), result)
