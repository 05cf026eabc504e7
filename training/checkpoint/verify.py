"""Verification: a checkpoint is used only after its bytes have been checked against its manifest.

What is hashed is what is then parsed: the same bytes in memory, so nothing can change in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from data_contracts.digests import sha256_bytes
from data_contracts.documents import CheckpointFile, CheckpointManifest, TensorSlice
from data_contracts.errors import IntegrityError
from training.checkpoint import layout


class Verified(NamedTuple):
    """A checkpoint whose every byte was checked, and what it holds, on the CPU."""

    directory: Path
    manifest: CheckpointManifest
    tensors: dict[str, Tensor]
    proof_batch: dict[str, Tensor]


def read_manifest(directory: Path) -> CheckpointManifest:
    """The manifest alone, checked against its seal and the folder's name; the files are not looked at.

    Raises:
        IntegrityError: missing, altered, or moved here from another step.
    """
    path = directory / layout.MANIFEST_NAME
    data = _read(path)
    if _read(directory / layout.SEAL_NAME) != f"{sha256_bytes(data)}\n".encode():
        raise IntegrityError("its bytes differ from the digest in manifest.sha256.", where=str(path))
    manifest = CheckpointManifest.from_bytes(data, where=str(path))
    if layout.step_of(directory.name) != manifest.step:
        raise IntegrityError(f"it is the manifest of step {manifest.step}.", where=str(path))
    return manifest


def load_checkpoint(directory: Path, *, on_file: Callable[[], None] = lambda: None) -> Verified:
    """Read, verify and put together a whole checkpoint; `on_file` is called after each file is read.

    Raises:
        IntegrityError: naming the first file or tensor that is missing, extra, altered or not finite.
    """
    manifest = read_manifest(directory)
    expected = {file.name for file in manifest.files} | {layout.MANIFEST_NAME, layout.SEAL_NAME}
    actual = {path.name for path in directory.iterdir()}
    if different := sorted(expected ^ actual):
        problem = "is missing" if different[0] in expected else "does not belong to this checkpoint"
        raise IntegrityError(f"the file {problem}.", where=str(directory / different[0]))
    layout.check_layout(manifest.layout, {file.name for file in manifest.files})
    contents = {}
    for file in manifest.files:
        contents[file.name] = _read_tensors(directory, file)
        on_file()
    proof_batch = contents.pop(manifest.proof.file, {})
    try:
        tensors = assemble(manifest.layout, contents)
    except IntegrityError as error:
        raise IntegrityError(error.what, where=str(directory / error.where)) from error
    _require_finite(tensors, directory)
    return Verified(directory, manifest, tensors, proof_batch)


def verify_checkpoint(directory: Path) -> CheckpointManifest:
    """The manifest of a checkpoint that is whole, unaltered and finite.

    Raises:
        IntegrityError: naming the file.
    """
    return load_checkpoint(directory).manifest


def committed_steps(checkpoints: Path) -> list[int]:
    """Steps that have a manifest, oldest first, whether it is good or not."""
    folders = checkpoints.iterdir() if checkpoints.is_dir() else ()
    steps = (layout.step_of(folder.name) for folder in folders if (folder / layout.MANIFEST_NAME).exists())
    return sorted(step for step in steps if step is not None)


def latest_good(
    checkpoints: Path, *, on_bad: Callable[[Path, IntegrityError], None] = lambda _directory, _error: None
) -> Verified | None:
    """The newest checkpoint that verifies. `on_bad` hears of every newer one that does not."""
    for step in reversed(committed_steps(checkpoints)):
        directory = checkpoints / layout.directory_name(step)
        try:
            return load_checkpoint(directory)
        except IntegrityError as error:
            on_bad(directory, error)
    return None


def assemble(slices: Sequence[TensorSlice], files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Whole tensors from the slices in `files`, by file name, then tensor name.

    Raises:
        IntegrityError: a file lacks a slice, holds one of another shape or type, or holds more than the layout says.
    """
    listed = {(piece.file, piece.tensor) for piece in slices}
    for file, content in files.items():
        if stray := sorted(name for name in content if (file, name) not in listed):
            raise IntegrityError(f"holds {stray[0]}, which the layout does not list.", where=file)
    tensors = {}
    for name, pieces in layout.by_tensor(slices).items():
        whole = torch.empty(pieces[0].global_shape, dtype=getattr(torch, pieces[0].dtype))
        for piece in pieces:
            value = files[piece.file].get(name)
            if value is None or tuple(value.shape) != piece.shape or value.dtype != whole.dtype:
                raise IntegrityError(f"does not hold {name} as the layout says.", where=piece.file)
            region = tuple(slice(o, o + length) for o, length in zip(piece.offsets, piece.shape, strict=True))
            whole[region] = value
        tensors[name] = whole
    return tensors


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise IntegrityError(f"cannot be read ({error.strerror}).", where=str(path)) from error


def _read_tensors(directory: Path, file: CheckpointFile) -> dict[str, Tensor]:
    path = directory / file.name
    data = _read(path)
    if (len(data), sha256_bytes(data)) != (file.size_bytes, file.sha256):
        raise IntegrityError(
            f"{len(data)} bytes, sha256 {sha256_bytes(data)[:12]}; "
            f"its manifest says {file.size_bytes} bytes, {file.sha256[:12]}.",
            where=str(path),
        )
    try:
        return dict(safetensors.torch.load(data))
    except safetensors.SafetensorError as error:
        raise IntegrityError(f"not readable as safetensors ({error}).", where=str(path)) from error


def _require_finite(tensors: Mapping[str, Tensor], directory: Path) -> None:
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise IntegrityError(f"tensor {name} has values that are not finite.", where=str(directory))
