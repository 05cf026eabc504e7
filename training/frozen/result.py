"""A run's result: which checkpoint is its model, once it has one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from headway.data_contracts.store.digests import opened
from headway.data_contracts.store.documents import CheckpointManifest, Link
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import Workspace
from headway.training.checkpoint import layout
from headway.training.checkpoint.read import verify_checkpoint
from headway.training.checkpoint.verified_files import nothing
from headway.training.launch.base.fence import NO_FENCE, AttemptFence
from headway.training.ranks.distributed import ProcessGroup


def publish_result(
    run_dir: Path,
    run: Link,
    manifest: CheckpointManifest,
    tensors: Iterable[tuple[str, Tensor]],
    fence: AttemptFence = NO_FENCE,
) -> None:
    """Say that the run is finished, with the checkpoint that is its model. Replaces an earlier result.

    Raises:
        Superseded: a later attempt has started.
    """
    result = layout.RunResult(
        run=run.sha256,
        step=manifest.step,
        checkpoint=layout.directory_name(manifest.step),
        manifest_sha256=manifest.sha256,
        tensors_sha256=tensors_sha256(tensors),
    )
    # Under the fence: an attempt that was overtaken must not declare the run finished.
    with fence.fenced():
        Workspace(str(run_dir), stage_in=fence.folder).publish_json(layout.RESULT_NAME, result.model_dump())


def is_finished(
    run_dir: Path, run: Link, process_group: ProcessGroup, *, on_part: Callable[[], None] = nothing
) -> bool:
    """Whether the run has its result and that result's checkpoint is good: the same answer on every rank.

    Ranks share out the checkpoint's files and keep nothing of them in memory. What is missing or bad is not finished:
    the run then goes on from the newest good checkpoint.

    Args:
        on_part: called after each part that is read.
    """
    # Rank 0 reads for all: a result that appears meanwhile would divide the ranks.
    message = process_group.gather_bytes(_named_result(run_dir, run) if process_group.leads else b"")[0]
    if not message:
        return False
    directory_name, manifest_sha256 = message.decode().split()
    try:
        # Every rank its share of files: together each byte is read once.
        share = slice(process_group.rank, None, process_group.world_size)
        manifest = verify_checkpoint(run_dir / "checkpoints" / directory_name, share=share, on_part=on_part)
        is_good = manifest.sha256 == manifest_sha256
    except IntegrityError:
        is_good = False
    # Finished only if all say so; each has seen other files.
    return all(answer == b"good" for answer in process_group.gather_bytes(b"good" if is_good else b"bad"))


def _named_result(run_dir: Path, run: Link) -> bytes:
    """The folder and digest of its checkpoint, separated by a blank; empty while there is no readable result."""
    try:
        with opened(run_dir / layout.RESULT_NAME) as stream:
            result = layout.RunResult.parse(stream.readall(), run)
    # Unreadable is the same as absent: the run then resumes, and writes it again.
    except (OSError, ValueError, IntegrityError):
        return b""
    return f"{result.checkpoint} {result.manifest_sha256}".encode()


def tensors_sha256(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """One digest of names, types, shapes and bytes, sorted by name: equal for equal state, however it is spread."""
    digest = hashlib.sha256()
    for name, value in tensors:
        # The header separates tensors; without it bytes could move from one to the next.
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        # Through the CPU and contiguous: the same bytes whatever device and layout.
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
