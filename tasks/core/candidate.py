"""A checkpoint that may be evaluated and registered: the documents it stands on, read once, and where its files lie."""

from __future__ import annotations

from dataclasses import dataclass

from headway.data_contracts.store import stages
from headway.data_contracts.store.documents import CheckpointManifest, Link, RunSpec
from headway.data_contracts.store.publication import Workspace
from headway.tasks.core.context import RunContext
from headway.training.checkpoint.layout import checkpoint_path, run_folder, stored_files


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    checkpoint: Link
    manifest: CheckpointManifest
    run: RunSpec

    @property
    def folder(self) -> str:
        """Where the checkpoint's files are in the workspace: that of its own step, whatever the run did afterwards."""
        return checkpoint_path(run_folder(self.run.link), self.manifest.step)


def read_candidate(workspace: Workspace, checkpoint: Link) -> Candidate:
    """Raises `IntegrityError`: a document is gone or damaged."""
    manifest = workspace.load(checkpoint, CheckpointManifest)
    return Candidate(checkpoint=checkpoint, manifest=manifest, run=workspace.load(manifest.run, RunSpec))


def require_files(context: RunContext, candidate: Candidate) -> None:
    """Prove that the folder holds this very checkpoint, re-hashing what changed since it was last read.

    Raises:
        IntegrityError: a file is gone or altered, or belongs to another checkpoint; names it.
    """
    for file in stored_files(candidate.folder, candidate.manifest):
        stages.check_file(context.workspace, file, context.digests)
