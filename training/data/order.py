"""Global sample order: a pure function of (number of rows, seed, position), whoever asks and however often.

Position p lies in epoch p // num_rows. Each epoch is a permutation of all rows by a Feistel network over
Z_a x Z_b with a * b just above num_rows, walking the cycle on where it leaves the range. State: two integers.
Sources: Luby, Rackoff (SIAM J. Comput. 1988); Black, Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from training.data.splitmix import U64, mix, splitmix64

NUM_ROUNDS = 6
"""Four let neighbours meet too often (1.4 times chance); six show no such bias."""
MAX_ROWS = MAX_POSITION = 1 << 62
BLOCK_ROWS = 1 << 13
"""Positions permuted at once: the temporaries stay in a core's own cache."""


def sample_rows(num_rows: int, *, seed: int, first_position: int, count: int) -> NDArray[np.int64]:
    """Rows at positions [first_position, first_position + count) of the endless, shuffled sequence of epochs.

    Every row is used exactly once an epoch; a range may span epochs, so no tail is dropped.

    Returns:
        int64 row numbers, shape (count,).

    Raises:
        ValueError: no rows, or a negative position or count.
    """
    if not 0 < num_rows <= MAX_ROWS or not 0 <= first_position <= MAX_POSITION - count or count < 0:
        raise ValueError(f"no sample order for {num_rows=}, {first_position=}, {count=}")
    rows = np.empty(count, dtype=np.int64)
    for done in range(0, count, BLOCK_ROWS):
        size = min(count - done, BLOCK_ROWS)
        epochs, indices = _epochs_and_indices(first_position + done, size, num_rows)
        keys = splitmix64(np.uint64(mix(seed)) ^ epochs)
        rows[done : done + size] = _permute(indices, num_rows, keys)
    return rows


def _epochs_and_indices(first_position: int, count: int, num_rows: int) -> tuple[U64, U64]:
    """Each position's epoch and index in it; one epoch for all of them where they share it, the usual case."""
    epoch, index = divmod(first_position, num_rows)
    indices = np.arange(index, index + count, dtype=np.uint64)
    if index + count <= num_rows:
        return np.array([epoch], dtype=np.uint64), indices
    passed = indices // np.uint64(num_rows)
    return passed + np.uint64(epoch), indices - passed * np.uint64(num_rows)


class SampleOrder:
    """`sample_rows` for one plan, permuting a block at a time: a loader asks for small batches, one after another.

    What it remembers speeds up and never shows: any range may be asked for at any time, from any thread.
    """

    def __init__(self, num_rows: int, *, seed: int) -> None:
        self.num_rows, self.seed = num_rows, seed
        self._block: tuple[int, NDArray[np.int64]] = (0, np.empty(0, dtype=np.int64))

    def rows(self, first_position: int, count: int) -> NDArray[np.int64]:
        """Same as `sample_rows`; the array is read-only."""
        start, block = self._block
        if not start <= first_position <= first_position + count <= start + block.size:
            start, size = first_position, max(count, BLOCK_ROWS)
            block = sample_rows(self.num_rows, seed=self.seed, first_position=start, count=size)
            block.flags.writeable = False
            self._block = (start, block)
        return block[first_position - start : first_position - start + count]


def _permute(indices: U64, num_rows: int, keys: U64) -> U64:
    """Images under the permutations of range(num_rows) that the keys name: one key for all, or one each."""
    num_left = math.isqrt(num_rows - 1) + 1
    num_right = -(-num_rows // num_left)
    images = _feistel(indices, num_left, num_right, keys)
    while (outside := np.flatnonzero(images >= np.uint64(num_rows))).size:
        walking = keys if keys.size == 1 else keys[outside]
        images[outside] = _feistel(images[outside], num_left, num_right, walking)
    return images


def _feistel(values: U64, num_left: int, num_right: int, keys: U64) -> U64:
    """Permutations of range(num_left * num_right)."""
    left = values // np.uint64(num_right)
    right = values - left * np.uint64(num_right)
    for number in range(0, NUM_ROUNDS, 2):
        _add_hash(left, right, num_left, splitmix64(keys ^ np.uint64(number)))
        _add_hash(right, left, num_right, splitmix64(keys ^ np.uint64(number + 1)))
    return left * np.uint64(num_right) + right


def _add_hash(target: U64, source: U64, modulus: int, keys: U64) -> None:
    """target += hash(source), modulo `modulus`, in place: undone by subtracting, hence a bijection.

    The hash's upper 32 bits are scaled to the modulus by a product and a shift (Lemire 2019), not by a slow division.
    """
    step = splitmix64(source ^ keys)
    step >>= np.uint64(32)
    step *= np.uint64(modulus)
    step >>= np.uint64(32)
    target += step
    # Below the modulus the difference wraps to something huge, so the minimum is the remainder.
    np.subtract(target, np.uint64(modulus), out=step)
    np.minimum(target, step, out=target)
