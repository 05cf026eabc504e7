"""Packing: documents become one token stream, cut into rows that overlap by one token.

The stream of a group is EOT + tokens of document 0 + EOT + tokens of document 1, and so on. Row r holds stream
positions [r * L, r * L + L], so that predicting each row's tokens 1..L from the ones before predicts every token of
the stream exactly once, but for the very first EOT. The last row is filled with PAD, which a loss must leave out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

EOT_ID: Final = 0
"""Opens every document, and belongs to the one it opens."""
PAD_ID: Final = 1
"""Fills the last row of a group; never a target."""

NUM_MARKERS: Final = 2
"""Ids that a source brings along are stored higher by so much, so that none is mistaken for a marker."""

Tokens = NDArray[Any]
"""Unsigned integers, one token each."""


class Packed(NamedTuple):
    tokens: Tokens
    """Shape (rows, sequence_tokens + 1)."""
    document: NDArray[np.int32]
    """Shape (rows, 1), number of the document that the row's first token belongs to."""


class Packer:
    """Documents in, rows out; what does not fill a row waits for the next document."""

    def __init__(self, sequence_tokens: int, dtype: str) -> None:
        self._sequence_tokens, self._dtype = sequence_tokens, np.dtype(dtype)
        self._waiting: Tokens = np.zeros(0, dtype=self._dtype)
        self._waiting_documents: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._num_documents = 0

    def push(self, documents: Sequence[Tokens]) -> Packed:
        """The rows that these documents complete."""
        # One more for the marker that opens the document.
        lengths = np.array([len(tokens) + 1 for tokens in documents], dtype=np.int64)
        opened = np.full(1, EOT_ID, dtype=self._dtype)
        parts = [part for tokens in documents for part in (opened, tokens.astype(self._dtype, copy=False))]
        numbers = np.arange(self._num_documents, self._num_documents + len(documents), dtype=np.int32)
        self._num_documents += len(documents)
        self._waiting = np.concatenate([self._waiting, *parts])
        self._waiting_documents = np.concatenate([self._waiting_documents, np.repeat(numbers, lengths)])
        # Rows overlap by one token, so a row needs one more than it advances.
        return self._cut(max(0, len(self._waiting) - 1) // self._sequence_tokens)

    def finish(self) -> Packed:
        """The last row, padded, where tokens are left that no row predicts yet."""
        # Nothing but a single token: every target was predicted already.
        lacking = -(len(self._waiting) - 1) % self._sequence_tokens if len(self._waiting) > 1 else 0
        self._waiting = np.concatenate([self._waiting, np.full(lacking, PAD_ID, dtype=self._dtype)])
        return self._cut(max(0, len(self._waiting) - 1) // self._sequence_tokens)

    def _cut(self, num_rows: int) -> Packed:
        length = self._sequence_tokens
        rows = np.zeros((0, length + 1), dtype=self._dtype)
        if num_rows:
            # A view of overlapping windows; no token is copied until rows are shuffled.
            rows = sliding_window_view(self._waiting, length + 1)[: num_rows * length : length]
        documents = self._waiting_documents[: num_rows * length : length, None]
        self._waiting = self._waiting[num_rows * length :]
        self._waiting_documents = self._waiting_documents[num_rows * length :]
        return Packed(rows, documents)


def unpack(rows: Tokens) -> list[Tokens]:
    """The documents' tokens from all rows of a group, in packing order."""
    if not len(rows):
        return []
    # The first token of a row is the last of the one before.
    stream = np.concatenate([rows[:1, 0], rows[:, 1:].reshape(-1)])
    stream = stream[stream != PAD_ID]
    return [part[1:] for part in np.split(stream, np.flatnonzero(stream == EOT_ID))[1:]]


def document_of_positions(tokens: NDArray[np.integer], first_document: NDArray[np.integer]) -> NDArray[np.int32]:
    """The document of every position: the row's first document plus the EOTs seen since.

    Args:
        tokens: shape (..., sequence_tokens + 1).
        first_document: the `document` column, shape (..., 1).

    Returns:
        int32, shape of `tokens`: position i counts the EOTs among tokens[1..i]. An EOT belongs to the document that
        it opens; padding counts as the last document. The document of target i is that of position i + 1.
    """
    opens = tokens == EOT_ID
    opened: NDArray[np.int32] = np.cumsum(opens, axis=-1, dtype=np.int32)
    opened += first_document.astype(np.int32) - opens[..., :1]
    return opened
