"""A run's result: which checkpoint is its last, once it has one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from data_contracts.digests import opened
from data_contracts.documents import CheckpointManifest, Link
from data_contracts.errors import IntegrityError
from data_contracts.publication import Workspace
from training.checkpoint import layout
from training.checkpoint.agreement import gathered
from training.checkpoint.blocks import nothing
from training.checkpoint.verify import verify_checkpoint
from training.distributed import Gang
from training.launch.mandate import NO_MANDATE, Mandate


def publish_result(
    run_dir: Path,
    run: Link,
    manifest: CheckpointManifest,
    tensors: Iterable[tuple[str, Tensor]],
    mandate: Mandate = NO_MANDATE,
) -> None:
    """Say that the run is finished, with its last checkpoint. Replaces an earlier result.

    Raises:
        Superseded: a later attempt has begun.
    """
    result = layout.RunResult(
        run=run.sha256,
        step=manifest.step,
        checkpoint=layout.directory_name(manifest.step),
        manifest_sha256=manifest.sha256,
        tensors_sha256=tensors_sha256(tensors),
    )
    with mandate.upheld():
        Workspace(str(run_dir), stage_in=mandate.folder).publish_json(layout.RESULT_NAME, result.model_dump())


def is_finished(run_dir: Path, run: Link, gang: Gang, *, on_part: Callable[[], None] = nothing) -> bool:
    """Whether the run has its result and that result's checkpoint is good: the same answer on every rank.

    Ranks share out the checkpoint's files and keep nothing of them in memory. What is missing or bad is not finished:
    the run then goes on from the newest good checkpoint.

    Args:
        on_part: called after each part that is read.
    """
    said = gathered(gang, _named_result(run_dir, run) if gang.leads else b"")[0]
    if not said:
        return False
    directory_name, manifest_sha256 = said.decode().split()
    try:
        share = slice(gang.rank, None, gang.world_size)
        manifest = verify_checkpoint(run_dir / "checkpoints" / directory_name, share=share, on_part=on_part)
        is_good = manifest.sha256 == manifest_sha256
    except IntegrityError:
        is_good = False
    return all(answer == b"good" for answer in gathered(gang, b"good" if is_good else b"bad"))


def _named_result(run_dir: Path, run: Link) -> bytes:
    """The last checkpoint's folder and digest, separated by a blank; empty while there is no readable result."""
    try:
        with opened(run_dir / layout.RESULT_NAME) as stream:
            result = layout.RunResult.parse(stream.readall(), run)
    except (OSError, ValueError, IntegrityError):
        return b""
    return f"{result.checkpoint} {result.manifest_sha256}".encode()


def tensors_sha256(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """One digest of names, types, shapes and bytes, sorted by name: equal for equal state, however it is spread."""
    digest = hashlib.sha256()
    for name, value in tensors:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
