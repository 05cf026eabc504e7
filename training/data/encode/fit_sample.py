"""What a tokenizer is fitted on: all documents, or as many as memory is meant for, drawn by hash."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from headway.data_contracts.store.documents import Json
from headway.training.data.encode.blocks import SourceBlock
from headway.training.data.encode.source_columns import texts
from headway.training.data.splitmix import hash_text, splitmix64


class FitSample:
    """Documents in the order of their hashes, until they are `limit_bytes`; the last of them is cut.

    A pure function of the documents, their places and the limit: neither the order in which they come nor how they are
    shared out decides. At most `limit_bytes` and one document are held.

    Args:
        column: of the documents' text.
    """

    def __init__(self, blocks: Iterable[SourceBlock], column: str, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: list[tuple[int, str, int, bytes]] = []
        """A heap, the last in order first: minus the hash, path, row, text."""
        self._held_bytes = self._all_bytes = self._num_all = 0
        self._beyond: int | None = None
        """Minus the hash of the first that was let go: what comes after it is not needed."""
        for block in blocks:
            self._add(block, column)
        self._used_bytes = min(self._held_bytes, limit_bytes)

    def _add(self, block: SourceBlock, column: str) -> None:
        documents = texts(block, column)
        # Of the place alone: the seed that orders rows is no reason to learn something else.
        hashes = splitmix64(block.row_numbers.astype(np.uint64) ^ np.uint64(hash_text("fit-sample", block.path)))
        places = zip(hashes.tolist(), block.row_numbers.tolist(), documents, strict=True)
        for name, row, document in places:
            self._num_all += 1
            self._all_bytes += len(document)
            # Beyond the limit already, so its text need not be held.
            if self._beyond is not None and -name <= self._beyond:
                continue
            heapq.heappush(self._held, (-name, block.path, row, document))
            self._held_bytes += len(document)
            while self._held_bytes - len(self._held[0][3]) >= self._limit_bytes:
                last = heapq.heappop(self._held)
                self._held_bytes -= len(last[3])
                self._beyond = last[0]

    def documents(self) -> Iterator[bytes]:
        """By path and row."""
        excess = self._held_bytes - self._used_bytes
        # Only the last in order can be cut; it lies on top of the heap.
        last = self._held[0] if excess else None
        for entry in sorted(self._held, key=lambda entry: entry[1:3]):
            yield entry[3][: len(entry[3]) - excess] if entry is last else entry[3]

    @property
    def account(self) -> Json:
        """For the fitted state; None where all was read."""
        if self._used_bytes == self._all_bytes:
            return None
        return {
            "documents": len(self._held),
            "bytes": self._used_bytes,
            "of_documents": self._num_all,
            "of_bytes": self._all_bytes,
        }


def sample_line(statistics: Any) -> str:
    """For a person, what a fitted state says of its sample; empty where it was fitted on all of the training split."""
    sample = statistics.get("sample") if isinstance(statistics, dict) else None
    if sample is None:
        return ""
    return (
        f"fitted on {sample['documents']:,} of {sample['of_documents']:,} documents, {sample['bytes'] / 1e6:,.1f} of "
        f"{sample['of_bytes'] / 1e6:,.1f} MB, drawn by hash"
    )
