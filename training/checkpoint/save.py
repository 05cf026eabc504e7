"""Saving: every rank writes its share, rank 0 writes the manifest last. No manifest, no checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from data_contracts.documents import (
    CheckpointFile,
    CheckpointManifest,
    DeviceFingerprint,
    Link,
    ProofBatch,
    TensorSlice,
)
from data_contracts.publication import Workspace
from training.checkpoint import layout
from training.distributed import Gang

SHA256_BYTES, SIZE_BYTES = 32, 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What a checkpoint says, the same on every rank."""

    run: Link
    step: int
    num_samples: int
    parent: str | None
    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, float | int | str]
    proof_batch: Mapping[str, Tensor]
    proof_loss: float
    fingerprint: DeviceFingerprint


def save_checkpoint(checkpoints: Path, content: Content, gang: Gang) -> CheckpointManifest:
    """Write `checkpoints/step-NNNNNNNN/`, all ranks together. Returns the manifest, on every rank.

    Raises:
        EnvironmentProblem: no space left, or writing is refused; older checkpoints are untouched.
    """
    store, name = Workspace(str(checkpoints)), layout.directory_name(content.step)
    if gang.leads:
        # What an interrupted save left behind has no manifest, so it is nobody's checkpoint.
        shutil.rmtree(checkpoints / name, ignore_errors=True)
    gang.barrier()
    shares = _shares(content.tensors, gang.world_size)
    own_file = layout.file_name(gang.rank, gang.world_size)
    own = _publish(store, f"{name}/{own_file}", {tensor: content.tensors[tensor] for tensor in shares[gang.rank]})
    files = _exchange(own, gang)
    proof = _publish(store, f"{name}/{layout.PROOF_NAME}", content.proof_batch) if gang.leads else own
    proof = _from_leader(proof, layout.PROOF_NAME, gang)
    manifest = _manifest(content, (*files, proof), _slices(content.tensors, shares), gang.world_size)
    if gang.leads:
        store.publish(f"{name}/{layout.SEAL_NAME}", layout.seal(manifest))
        store.publish(f"{name}/{layout.MANIFEST_NAME}", manifest.to_bytes())
    return manifest


def _shares(tensors: Mapping[str, Tensor], num_files: int) -> tuple[tuple[str, ...], ...]:
    return layout.partition({name: value.numel() * value.element_size() for name, value in tensors.items()}, num_files)


def _slices(tensors: Mapping[str, Tensor], shares: tuple[tuple[str, ...], ...]) -> tuple[TensorSlice, ...]:
    slices: list[TensorSlice] = []
    for index, names in enumerate(shares):
        slices += layout.whole_slices({name: tensors[name] for name in names}, layout.file_name(index, len(shares)))
    return tuple(slices)


def _publish(store: Workspace, path: str, tensors: Mapping[str, Tensor]) -> CheckpointFile:
    # Clones, because safetensors refuses tensors that share memory, as views into a flat buffer do.
    data = safetensors.torch.save({name: value.detach().cpu().clone() for name, value in tensors.items()})
    stored = store.publish(path, data)
    return CheckpointFile(name=Path(path).name, size_bytes=stored.size_bytes, sha256=stored.sha256)


def _pack(file: CheckpointFile) -> bytes:
    return bytes.fromhex(file.sha256) + file.size_bytes.to_bytes(SIZE_BYTES, "big")


def _unpack(data: bytes, name: str) -> CheckpointFile:
    size_bytes = int.from_bytes(data[SHA256_BYTES:], "big")
    return CheckpointFile(name=name, size_bytes=size_bytes, sha256=data[:SHA256_BYTES].hex())


def _exchange(own: CheckpointFile, gang: Gang) -> list[CheckpointFile]:
    """Every rank's file, in rank order. As bytes in a tensor: torch's object collectives would pickle."""
    rows = gang.gather(torch.tensor([list(_pack(own))], dtype=torch.uint8))
    names = (layout.file_name(index, gang.world_size) for index in range(gang.world_size))
    return [_unpack(bytes(row), name) for row, name in zip(rows.tolist(), names, strict=True)]


def _from_leader(file: CheckpointFile, name: str, gang: Gang) -> CheckpointFile:
    return _unpack(gang.from_leader(_pack(file)), name)


def _manifest(
    content: Content, files: tuple[CheckpointFile, ...], slices: tuple[TensorSlice, ...], world_size: int
) -> CheckpointManifest:
    return CheckpointManifest(
        run=content.run,
        step=content.step,
        num_samples=content.num_samples,
        world_size=world_size,
        parent=content.parent,
        files=files,
        layout=slices,
        scalars=dict(content.scalars),
        proof=ProofBatch(file=layout.PROOF_NAME, loss_hex=content.proof_loss.hex()),
        fingerprint=content.fingerprint,
    )
