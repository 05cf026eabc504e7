"""A run's result: which checkpoint is its last, once it has one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from data_contracts.documents import CheckpointManifest, Link
from data_contracts.errors import IntegrityError
from data_contracts.publication import Workspace
from training.checkpoint import layout
from training.checkpoint.verify import Verified, load_checkpoint


def publish_result(
    run_dir: Path, run: Link, manifest: CheckpointManifest, tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Say that the run is finished, with its last checkpoint. Replaces an earlier result."""
    result = {
        "format_version": 1,
        "run": run.sha256,
        "step": manifest.step,
        "checkpoint": layout.directory_name(manifest.step),
        "manifest_sha256": manifest.sha256,
        "tensors_sha256": tensors_sha256(tensors),
    }
    Workspace(str(run_dir)).publish_json(layout.RESULT_NAME, result)


def finished_checkpoint(run_dir: Path, run: Link) -> Verified | None:
    """The verified last checkpoint of a finished run; None while it is not finished, or the checkpoint went bad."""
    try:
        result = json.loads((run_dir / layout.RESULT_NAME).read_bytes())
        if result["run"] != run.sha256:
            return None
        verified = load_checkpoint(run_dir / "checkpoints" / layout.directory_name(int(result["step"])))
    except (OSError, ValueError, KeyError, TypeError, IntegrityError):
        return None
    return verified if verified.manifest.sha256 == result["manifest_sha256"] else None


def tensors_sha256(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """One digest of names, types, shapes and bytes, sorted by name: equal for equal state, however it is spread."""
    digest = hashlib.sha256()
    for name, value in tensors:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
