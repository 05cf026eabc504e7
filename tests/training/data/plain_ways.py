"""What shards are compared with: the order of rows, and the bytes of tokens, in the plainest way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.training.data.splitmix import MASK, splitmix64


def shuffled(num_rows: int, seed: int) -> NDArray[np.int64]:
    """Row numbers in the order of their SplitMix64 keys. The keys are distinct, so the order is unique."""
    keys = splitmix64(np.arange(num_rows, dtype=np.uint64) ^ np.uint64(seed & MASK))
    return np.argsort(keys).astype(np.int64)


def decode_tokens(tokens: NDArray[np.integer], table: tuple[bytes, ...]) -> bytes:
    """The bytes of any run of tokens, whole documents or not."""
    return b"".join([table[token] for token in tokens.tolist()])
