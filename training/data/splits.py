"""Which split and group a file belongs to: decided by its path and the spec alone, so growth moves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from data_contracts.errors import DataError
from training.data.spec import HELDOUT, TRAIN, ShardSpec
from training.data.splitmix import hash_text


class SourceDocument(NamedTuple):
    """One source file, as the snapshot names it; `read` returns its bytes."""

    path: str
    sha256: str
    size_bytes: int
    read: Callable[[], bytes]


def split_of(path: str, spec: ShardSpec) -> str:
    """`heldout` for the given share of paths, by hash."""
    return HELDOUT if hash_text("split", spec.split_salt, path) < int(spec.heldout_fraction * 2**64) else TRAIN


def group_of(path: str, spec: ShardSpec) -> int:
    return hash_text("group", spec.split_salt, path) % spec.num_groups


def grouped(documents: Iterable[SourceDocument], spec: ShardSpec) -> Mapping[tuple[int, str], list[SourceDocument]]:
    """Documents by (group, split) in packing order; any listing order gives the same.

    Raises:
        DataError: a path listed twice, or a split that stays empty.
    """
    groups: dict[tuple[int, str], list[SourceDocument]] = {}
    seen: set[str] = set()
    for document in documents:
        if document.path in seen:
            raise DataError("the path is listed twice.", where=document.path)
        seen.add(document.path)
        groups.setdefault((group_of(document.path, spec), split_of(document.path, spec)), []).append(document)
    for members in groups.values():
        members.sort(key=lambda member: (hash_text("order", str(spec.seed), member.path), member.path))
    _refuse_empty_splits({split for _, split in groups}, len(seen), spec)
    return dict(sorted(groups.items()))


def _refuse_empty_splits(present: set[str], num_documents: int, spec: ShardSpec) -> None:
    for split in sorted({TRAIN, HELDOUT} - present):
        raise DataError(
            f"none of {num_documents} files falls into split {split!r} (heldout_fraction {spec.heldout_fraction}).",
            advice="Add files, or change shards.heldout_fraction or shards.split_salt.",
        )
