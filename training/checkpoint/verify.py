"""Verification: a checkpoint is used only after its bytes have been checked against its manifest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import CheckpointFile, CheckpointManifest, TensorSlice
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.regular_files import read_regular
from headway.training.checkpoint import layout
from headway.training.checkpoint.blocks import NO_FILE, BlockMissing, nothing, unreadable
from headway.training.checkpoint.read import Rest, read_file, read_tensors, require_fit, whole


class VerifiedCheckpoint(NamedTuple):
    """A checkpoint, and what was read of it, all of which was checked, on the CPU."""

    directory: Path
    manifest: CheckpointManifest
    tensors: dict[str, Tensor]
    proof_batch: dict[str, Tensor]


def read_manifest(directory: Path) -> CheckpointManifest:
    """The manifest alone, checked against its seal and the folder's name; the files are not looked at.

    Raises:
        BlockMissing: missing.
        IntegrityError: altered, or moved here from another step.
    """
    path = directory / layout.MANIFEST_NAME
    data = _read(path)
    # The seal is checked before the manifest is parsed: parsing decides what is believed afterwards.
    if _read(directory / layout.SEAL_NAME) != f"{sha256_bytes(data)}\n".encode():
        raise IntegrityError("its bytes differ from the digest in manifest.sha256.", where=str(path))
    manifest = CheckpointManifest.from_bytes(data, where=str(path))
    # A whole folder may have been copied over another step's; every digest inside would still agree.
    if layout.step_of(directory.name) != manifest.step:
        raise IntegrityError(f"it is the manifest of step {manifest.step}.", where=str(path))
    return manifest


def load_checkpoint(
    directory: Path,
    *,
    prefix: str = "",
    rest: Rest = "check",
    on_part: Callable[[], None] = nothing,
) -> VerifiedCheckpoint:
    """Read and verify a checkpoint on one process, whatever number of ranks and sharding wrote it.

    Args and errors as of `read_checkpoint`.
    """
    manifest = read_manifest(directory)
    return read_checkpoint(directory, manifest, prefix=prefix, rest=rest, on_part=on_part)


def read_checkpoint(
    directory: Path,
    manifest: CheckpointManifest,
    *,
    wanted: Sequence[TensorSlice] | None = None,
    prefix: str = "",
    rest: Rest = "check",
    checked: Collection[str] | None = None,
    on_part: Callable[[], None] = nothing,
) -> VerifiedCheckpoint:
    """Read and verify what a manifest lists.

    Args:
        wanted: the boxes to read, one a tensor; None: whole tensors, those whose names begin with `prefix`.
        rest: what becomes of all else; what is skipped is not verified.
        checked: the tensors among it that are to be verified; None: all.
        on_part: called after each part that is read.

    Raises:
        BlockMissing: naming the first file that is missing.
        IntegrityError: naming the first file or tensor that is extra, altered or not finite.
    """
    proof = _require_described(directory, manifest)
    boxes = whole(manifest, prefix) if wanted is None else wanted
    # Before reading: a model that does not fit is the user's mistake, and costs no read of gigabytes.
    require_fit(manifest, boxes)
    tensors = read_tensors(directory, manifest, boxes, rest=rest, checked=checked, on_part=on_part)
    return VerifiedCheckpoint(directory, manifest, tensors, read_file(directory, proof, on_part=on_part))


def verify_checkpoint(
    directory: Path, *, share: slice = slice(None), on_part: Callable[[], None] = nothing
) -> CheckpointManifest:
    """The manifest of a checkpoint that is whole, unaltered and finite; nothing else is kept in memory.

    Args:
        share: which of the files to read, so that several ranks read each of them once.
        on_part: called after each part that is read.

    Raises:
        BlockMissing: naming the file.
        IntegrityError: naming the file or tensor.
    """
    manifest = read_manifest(directory)
    proof, files = _require_described(directory, manifest), manifest.files[share]
    read_tensors(directory, manifest, (), rest="check", files=files, on_part=on_part)
    if proof in files:
        read_file(directory, proof, on_part=on_part)
    return manifest


def _require_described(directory: Path, manifest: CheckpointManifest) -> CheckpointFile:
    """The folder holds what the manifest lists, and its slices make up whole tensors. Returns the proof batch's file.

    Raises:
        BlockMissing: a file is missing, or the folder.
        IntegrityError: a file does not belong there, or the manifest contradicts itself.
    """
    expected = {file.name for file in manifest.files} | {layout.MANIFEST_NAME, layout.SEAL_NAME}
    try:
        # Names first: a file too many or too few shows without reading a byte.
        actual = {path.name for path in directory.iterdir()}
    except NO_FILE as error:
        raise BlockMissing(f"not a folder ({error.strerror}).", where=str(directory)) from error
    if missing := sorted(expected - actual):
        raise BlockMissing("the file is missing.", where=str(directory / missing[0]))
    # Whatever was added could be taken for part of it by another tool.
    if extra := sorted(actual - expected):
        raise IntegrityError("the file does not belong to this checkpoint.", where=str(directory / extra[0]))
    try:
        layout.check_layout(manifest.layout, {file.name for file in manifest.files})
    except IntegrityError as error:
        raise IntegrityError(error.what, where=f"{directory}: {error.where}") from error
    proof = next((file for file in manifest.files if file.name == manifest.proof.file), None)
    if proof is None:
        raise IntegrityError("the manifest lists no proof batch.", where=str(directory))
    return proof


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except NO_FILE as error:
        raise BlockMissing(f"not a file ({error.strerror}).", where=str(path)) from error
    except OSError as error:
        raise unreadable(path, error) from error
