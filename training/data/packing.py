"""Packing: documents become one token stream, cut into rows that overlap by one token.

The stream of a group is EOT + tokens of document 0 + EOT + tokens of document 1, and so on. Row r holds stream
positions [r * L, r * L + L], so that predicting each row's tokens 1..L from the ones before predicts every token of
the stream exactly once, but for the very first EOT. The last row is filled with PAD, which a loss must leave out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

EOT_ID: Final = 0
"""Opens every document, and belongs to the one it opens."""
PAD_ID: Final = 1
"""Fills the last row of a group; never a target."""

Tokens = NDArray[np.uint16]


def pack(documents: Sequence[Tokens], sequence_tokens: int) -> tuple[Tokens, NDArray[np.int32]]:
    """Rows of the documents' stream.

    Returns:
        tokens: uint16, shape (rows, sequence_tokens + 1).
        document: int32, shape (rows, 1), index of the document that the row's first token belongs to.
    """
    lengths = np.array([len(tokens) + 1 for tokens in documents], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    num_tokens = int(lengths.sum())
    num_rows = max(0, -(-(num_tokens - 1) // sequence_tokens))
    stream = np.full(num_rows * sequence_tokens + 1, PAD_ID, dtype=np.uint16)
    stream[starts] = EOT_ID
    for start, tokens in zip(starts.tolist(), documents, strict=True):
        stream[start + 1 : start + 1 + len(tokens)] = tokens
    firsts = np.arange(num_rows, dtype=np.int64) * sequence_tokens
    rows = stream[firsts[:, None] + np.arange(sequence_tokens + 1)]
    return rows, (np.searchsorted(starts, firsts, side="right") - 1).astype(np.int32)[:, None]


def unpack(rows: Tokens) -> list[Tokens]:
    """The documents' tokens from all rows of a group, in packing order."""
    if not len(rows):
        return []
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
