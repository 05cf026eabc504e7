"""Which tensor lies where, and the proof that slices make up whole tensors.

Names, shapes and numbers only: a flow reads checkpoints' places from here without importing torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from headway.data_contracts.store.digests import sha256_bytes
from headway.data_contracts.store.documents import CheckpointManifest, Frozen, Link, Sha256, StoredFile, TensorSlice
from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.strict_json import parse_canonical

MANIFEST_NAME = "manifest.json"
SEAL_NAME = "manifest.sha256"
PROOF_NAME = "proof.safetensors"
TENSOR_FILES = "tensors-*.safetensors"
RESULT_NAME = "result.json"
"""In the run's folder, once the run is finished: which checkpoint is its last."""
ABANDONED = "abandoned"
"""In the run's folder: checkpoints of steps that are done again, on other data."""
BEST_STEP = "best_step"
"""A checkpoint's scalar, of runs whose model is the one that validated best: which that is so far."""
STEP_DIGITS = 8

DTYPES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}
"""torch's name of a type: safetensors' name, and bytes of an element."""

LENGTH_BYTES = 8
"""Of a header's length, which a safetensors file begins with."""
MAX_HEADER_BYTES = 100 << 20
"""As safetensors itself limits it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A tensor of a file: its bytes are [start, stop) of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class RunResult(Frozen):
    """How a run ended: which checkpoint is its last, and one digest of all its tensors."""

    format_version: Literal[1] = 1
    run: Sha256
    step: int
    checkpoint: str
    """The folder's name."""
    manifest_sha256: Sha256
    tensors_sha256: Sha256

    @classmethod
    def parse(cls, data: bytes, run: Link) -> Self:
        """Raises `ValueError`: not the bytes of a result of this run."""
        result = cls.model_validate(parse_canonical(data), strict=True)
        if result.run != run.sha256 or result.checkpoint != directory_name(result.step):
            raise ValueError("not a result of this run")
        return result


class TensorDifference(Frozen):
    tensor: str
    num_values: int
    num_differing: int
    """By their bits."""
    largest: float | None
    """Largest difference of two values; None: the two have other shapes or types, or one has no such tensor."""


def directory_name(step: int) -> str:
    return f"step-{step:0{STEP_DIGITS}d}"


def step_of(directory_name: str) -> int | None:
    """The step in a checkpoint folder's name; None for anything else."""
    digits = directory_name.removeprefix("step-")
    is_step = directory_name.startswith("step-") and digits.isascii() and digits.isdigit()
    # Exactly eight digits: names sort by step, and a folder of another shape is nobody's checkpoint.
    return int(digits) if is_step and len(digits) == STEP_DIGITS else None


def run_folder(run: Link) -> str:
    """Where a run keeps its attempts and checkpoints, below the workspace."""
    # 64 bits of the digest keep paths short; the manifest inside has the whole of it.
    return f"runs/{run.sha256[:16]}"


def checkpoint_path(run_folder: str, step: int) -> str:
    """A checkpoint's folder below a run's."""
    return f"{run_folder}/checkpoints/{directory_name(step)}"


def committed_steps(checkpoints: Path) -> list[int]:
    """Steps that have a manifest, oldest first, whether it is good or not."""
    folders = checkpoints.iterdir() if checkpoints.is_dir() else ()
    steps = (step_of(folder.name) for folder in folders if (folder / MANIFEST_NAME).exists())
    return sorted(step for step in steps if step is not None)


def file_name(index: int, num_files: int) -> str:
    return f"tensors-{index:05d}-of-{num_files:05d}.safetensors"


def best_step_of(manifest: CheckpointManifest) -> int | None:
    """Which checkpoint must stay as well, for it is the run's best so far."""
    best = manifest.scalars.get(BEST_STEP)
    return int(best) if isinstance(best, int) else None


def seal(manifest: CheckpointManifest) -> bytes:
    """What lies beside a manifest, so that a flipped bit in the manifest itself shows."""
    return f"{manifest.sha256}\n".encode()


def stored_files(folder: str, manifest: CheckpointManifest) -> tuple[StoredFile, ...]:
    """Every file of a checkpoint in `folder` of the workspace: tensors, proof batch, seal and, last, the manifest."""
    # The manifest last: whoever copies the files in this order publishes nothing half.
    own = {SEAL_NAME: seal(manifest), MANIFEST_NAME: manifest.to_bytes()}
    return (
        *(
            StoredFile(path=f"{folder}/{file.name}", size_bytes=file.size_bytes, **{file.algorithm: file.digest})
            for file in manifest.files
        ),
        *(
            StoredFile(path=f"{folder}/{name}", size_bytes=len(data), sha256=sha256_bytes(data))
            for name, data in own.items()
        ),
    )


def parse_header(text: bytes) -> dict[str, Entry]:
    """The entries of a file, from its header without the length.

    Raises:
        ValueError: it is not one that safetensors would write.
    """
    names = {code: name for name, (code, _) in DTYPES.items()}
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("the header is no mapping")
    fields.pop("__metadata__", None)
    begin = LENGTH_BYTES + len(text)
    entries, reached = {}, begin
    # Sorted by place: the order of a JSON mapping says nothing of where tensors lie.
    for name, field in sorted(fields.items(), key=lambda item: list(item[1]["data_offsets"])):
        dtype, shape, (start, stop) = names[field["dtype"]], tuple(field["shape"]), field["data_offsets"]
        # A text as a length would be repeated as often as the next one says; a negative one fits no memory.
        if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
            raise ValueError(f"{name} has no shape, or no place")
        # No gap and no overlap: a byte that belongs to no tensor could carry anything.
        if begin + start != reached or stop - start != DTYPES[dtype][1] * math.prod(shape):
            raise ValueError(f"{name} does not lie where it should")
        reached = begin + stop
        entries[name] = Entry(dtype=dtype, shape=shape, start=begin + start, stop=begin + stop)
    return entries


def by_tensor(layout: Sequence[TensorSlice]) -> dict[str, list[TensorSlice]]:
    grouped: dict[str, list[TensorSlice]] = {}
    for piece in layout:
        grouped.setdefault(piece.tensor, []).append(piece)
    return grouped


def check_layout(layout: Sequence[TensorSlice], file_names: Collection[str]) -> None:
    """Prove that the slices of every tensor fill it exactly, from files that the manifest lists.

    Raises:
        IntegrityError: a gap, an overlap, a foreign file or an unknown type.
    """
    for name, pieces in by_tensor(layout).items():
        first = pieces[0]
        if any((piece.global_shape, piece.dtype) != (first.global_shape, first.dtype) for piece in pieces):
            raise IntegrityError("its slices disagree on shape or type.", where=f"tensor {name}")
        if first.dtype not in DTYPES or any(piece.file not in file_names for piece in pieces):
            raise IntegrityError("it has an unknown type, or an unlisted file.", where=f"tensor {name}")
        if not all(_lies_inside(piece) for piece in pieces) or _overlap(pieces):
            raise IntegrityError("its slices overlap or stick out.", where=f"tensor {name}")
        # Inside, without overlap and as many elements as the whole: then there is no gap.
        if sum(math.prod(piece.shape) for piece in pieces) != math.prod(first.global_shape):
            raise IntegrityError("its slices leave a gap.", where=f"tensor {name}")


def _lies_inside(piece: TensorSlice) -> bool:
    return len(piece.global_shape) == len(piece.offsets) == len(piece.shape) and all(
        offset >= 0 and length >= 0 and offset + length <= whole
        for whole, offset, length in zip(piece.global_shape, piece.offsets, piece.shape, strict=True)
    )


def _overlap(pieces: Sequence[TensorSlice]) -> bool:
    """Whether two share an element, all of them lying inside.

    They are passed along the dimension that they are cut in most, each beside those that reach as far: pair by pair,
    a manifest of 100,000 rows would take hours.
    """
    dimensions = range(len(pieces[0].global_shape))
    along = max(dimensions, key=lambda dimension: len({piece.offsets[dimension] for piece in pieces}), default=None)
    if along is None:
        return len(pieces) > 1
    reaching: list[TensorSlice] = []
    for piece in sorted(pieces, key=lambda piece: piece.offsets[along]):
        reaching = [each for each in reaching if each.offsets[along] + each.shape[along] > piece.offsets[along]]
        if any(_share_an_element(piece, each) for each in reaching):
            return True
        reaching.append(piece)
    return False


def _share_an_element(a: TensorSlice, b: TensorSlice) -> bool:
    return all(
        max(start_a, start_b) < min(start_a + length_a, start_b + length_b)
        for start_a, length_a, start_b, length_b in zip(a.offsets, a.shape, b.offsets, b.shape, strict=True)
    )
