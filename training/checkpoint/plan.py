"""Who writes what: every box of every tensor once, spread over the ranks that hold it by bytes. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from headway.data_contracts.store.documents import TensorSlice
from headway.data_contracts.store.errors import ConfigError
from headway.training.checkpoint.layout import DTYPES, check_layout, file_name

CUT_BYTES = 1 << 20
"""Replicated tensors that are no larger than this are never cut."""
CUT_SHARE = 0.25
"""Of a rank's even share: what is larger is cut between its holders, so that no rank writes much more than another."""

FILE_BYTES = 32 << 20
MAX_FILES = 4
"""Of one rank: more would not be digested faster than disks write."""

Held = tuple[TensorSlice, ...]
"""What a rank holds, of no file yet."""
_Box = tuple[str, tuple[int, ...], tuple[int, ...]]


def size_bytes(piece: TensorSlice) -> int:
    return math.prod(piece.shape) * DTYPES[piece.dtype][1]


def files_per_rank(held: Sequence[Held]) -> int:
    """So many that a rank's files are no smaller than `FILE_BYTES`, but one, and at most `MAX_FILES`."""
    # Counted once, however many ranks hold a box.
    boxes = {(piece.tensor, piece.offsets, piece.shape): size_bytes(piece) for pieces in held for piece in pieces}
    # The number comes from what all ranks hold, so each of them finds the same.
    return min(MAX_FILES, max(1, sum(boxes.values()) // len(held) // FILE_BYTES))


def of_rank(layout: Sequence[Held], rank: int, world_size: int) -> Sequence[Held]:
    """What a rank writes, file by file."""
    num_files = len(layout) // world_size
    return layout[rank * num_files : (rank + 1) * num_files]


def share_out(held: Sequence[Held], *, files_per_rank: int = 1) -> tuple[Held, ...]:
    """What goes into each file, given what each rank holds; any rank finds the same. Files are in the order of ranks.

    Raises:
        ConfigError: a type that checkpoints cannot hold.
        IntegrityError: the boxes of a tensor overlap without being equal, or leave a gap.
    """
    held = [pieces for pieces in held for _ in range(files_per_rank)]  # each file as if it were a rank's only one
    holders: dict[_Box, list[int]] = {}
    slices: dict[_Box, TensorSlice] = {}
    for rank, pieces in enumerate(held):
        for piece in pieces:
            _require_known_type(piece)
            if math.prod(piece.shape) or not math.prod(piece.global_shape):  # an uneven cut leaves some rank nothing
                box = (piece.tensor, piece.offsets, piece.shape)
                slices.setdefault(box, piece)
                holders.setdefault(box, []).append(rank)
    even_share_bytes = sum(size_bytes(piece) for piece in slices.values()) / len(held)
    shares: list[list[TensorSlice]] = [[] for _ in held]
    loads_bytes = [0] * len(held)

    def give(rank: int, piece: TensorSlice) -> None:
        shares[rank].append(piece.model_copy(update={"file": file_name(rank, len(held))}))
        loads_bytes[rank] += size_bytes(piece)

    # What only one rank holds first, then the largest.
    for box in sorted(slices, key=lambda box: (len(holders[box]) > 1, -size_bytes(slices[box]), box)):
        piece, ranks = slices[box], holders[box]
        # Cutting has a price in the manifest and in reads, so only what would unbalance the ranks is cut.
        if len(ranks) > 1 and size_bytes(piece) > max(CUT_BYTES, CUT_SHARE * even_share_bytes):
            for rank, part in zip(ranks, _cut(piece, len(ranks)), strict=False):
                give(rank, part)
        else:
            # To the least loaded, ties by rank: every rank computes this plan alone, and all must agree.
            give(min(ranks, key=lambda rank: (loads_bytes[rank], rank)), piece)
    # The plan is proved before a byte is written, by the same rule as a manifest that is read.
    check_layout([piece for share in shares for piece in share], {file_name(i, len(held)) for i in range(len(held))})
    return tuple(tuple(sorted(share, key=lambda piece: piece.tensor)) for share in shares)


def _cut(piece: TensorSlice, num_parts: int) -> list[TensorSlice]:
    """Even runs of rows, at most as many as there are rows; a scalar stays whole."""
    if not piece.shape:
        return [piece]
    num_parts = min(num_parts, piece.shape[0])
    # By integer division, so that parts differ by one row at most.
    starts = [piece.shape[0] * part // num_parts for part in range(num_parts + 1)]
    return [
        piece.model_copy(
            update={
                "offsets": (piece.offsets[0] + start, *piece.offsets[1:]),
                "shape": (stop - start, *piece.shape[1:]),
            }
        )
        for start, stop in pairwise(starts)
    ]


def _require_known_type(piece: TensorSlice) -> None:
    if piece.dtype not in DTYPES:
        raise ConfigError(
            f"a tensor of type {piece.dtype} cannot be kept in a checkpoint.",
            where=f"tensor {piece.tensor}",
            advice=f"Keep it as one of {', '.join(DTYPES)}.",
        )


def to_bytes(pieces: Iterable[TensorSlice]) -> bytes:
    """For other ranks to read: never pickled."""
    return json.dumps([[p.tensor, p.dtype, p.global_shape, p.offsets, p.shape] for p in pieces]).encode()


def from_bytes(data: bytes) -> Held:
    return tuple(
        TensorSlice(tensor=tensor, file="", dtype=dtype, global_shape=whole, offsets=offsets, shape=shape)
        for tensor, dtype, whole, offsets, shape in json.loads(data)
    )
