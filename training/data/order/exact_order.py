"""Global sample order: a pure function of (number of rows, seed, position), whoever asks and however often.

Position p lies in epoch p // num_rows. Each epoch is a permutation of all rows by a Feistel network over
Z_a x Z_b with a * b just above num_rows, walking the cycle on where it leaves the range. State: one integer.
Sources: Luby, Rackoff (SIAM J. Comput. 1988); Black, Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002).
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headway.training.data.splitmix import U64, mix, splitmix64

NUM_ROUNDS = 6
"""Four let neighbours meet too often (1.3 times chance); six show no such bias."""
FIRST, SECOND = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
"""Multipliers of `lowbias32` (Wellons, "Prospecting for hash functions", 2018)."""
U32 = NDArray[np.uint32]
MAX_ROWS = MAX_POSITION = 1 << 62
MAX_CANDIDATES = 4096
BLOCK_ROWS = 1 << 14
"""Positions permuted at once: the temporaries stay in a core's own cache."""


class SampleOrder(Protocol):
    """An endless sequence of rows, any part of which can be asked for at any time, from any thread."""

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row at each position.

        Args:
            positions: not negative, ascending, none twice.

        Raises:
            ValueError: a position out of range.
        """
        ...


class ExactOrder:
    """Every row exactly once an epoch, anywhere in it. A range of positions may span epochs, so no tail is dropped.

    Raises:
        ValueError: no rows, or too many.
    """

    def __init__(self, num_rows: int, *, seed: int) -> None:
        if not 0 < num_rows <= MAX_ROWS:
            raise ValueError(f"no sample order for {num_rows=}")
        # Mixed: seeds that differ by one must not give related keys.
        self.num_rows, self._seed = num_rows, np.uint64(mix(seed))
        self._domain = _domain(num_rows)

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        check_positions(positions)
        rows = np.empty(positions.size, dtype=np.int64)
        for first in range(0, positions.size, BLOCK_ROWS):
            epochs, indices = epochs_and_indices(positions[first : first + BLOCK_ROWS], self.num_rows)
            # An epoch is another key, so nothing is stored and no epoch depends on the one before.
            keys = _round_keys(self._seed ^ epochs.astype(np.uint64))
            rows[first : first + BLOCK_ROWS] = _permute(indices, self.num_rows, self._domain, keys)
        return rows


def check_positions(positions: NDArray[np.int64]) -> None:
    """Raises `ValueError` when one is out of range; they ascend, none twice."""
    if positions.size and not 0 <= int(positions[0]) <= int(positions[-1]) < MAX_POSITION:
        raise ValueError(f"no sample at positions {positions[0]} to {positions[-1]}")


def epochs_and_indices(positions: NDArray[np.int64], num_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each position's epoch and index in it; one epoch for all of them where they share it, the usual case."""
    epoch = int(positions[0]) // num_rows
    indices = positions - epoch * num_rows
    # The usual case is one epoch for all positions, and one division instead of one for each.
    if int(indices[-1]) < num_rows:
        return np.array([epoch], dtype=np.int64), indices
    passed = indices // num_rows
    return passed + epoch, indices - passed * num_rows


class _Domain(NamedTuple):
    """Z_left x Z_right: at least as many pairs as rows."""

    left: int
    right: int


def _domain(num_rows: int) -> _Domain:
    """Of two factors near the root, the pair with the fewest numbers to walk past: mostly none or one."""
    # Both factors near the root keep the halves of the network even.
    root = math.isqrt(num_rows - 1) + 1
    lefts = np.arange(root, root + max(1, min(root // 4, MAX_CANDIDATES)))
    rights = -(-num_rows // lefts)
    best = int(np.argmin(lefts * rights))
    return _Domain(int(lefts[best]), int(rights[best]))


def _permute(indices: NDArray[np.int64], num_rows: int, domain: _Domain, keys: U32) -> NDArray[np.int64]:
    """Images under the permutations of range(num_rows) that the keys name, one column for all or one each."""
    images = _feistel(indices, domain, keys)
    # Cycle walking: an image outside is permuted again until it is inside, which keeps the map one to one.
    while int(images.max(initial=0)) >= num_rows:
        outside = np.flatnonzero(images >= num_rows)
        walking = keys if keys.shape[1] == 1 else keys[:, outside]
        images[outside] = _feistel(images[outside], domain, walking)
    return images


def _feistel(values: NDArray[np.int64], domain: _Domain, keys: U32) -> NDArray[np.int64]:
    """Permutations of range(domain.left * domain.right)."""
    numbers = values.astype(np.uint64)
    left = numbers // np.uint64(domain.right)  # numpy divides by one number much faster than divmod does
    right = numbers - left * np.uint64(domain.right)
    for even, odd in zip(keys[::2], keys[1::2], strict=True):
        # Each half is moved by a hash of the other, which the inverse can undo.
        _add_hash(left, right, domain.left, even)
        _add_hash(right, left, domain.right, odd)
    left *= np.uint64(domain.right)
    left += right
    return left.view(np.int64)


def _round_keys(seeds: U64) -> U32:
    """A key for each round and epoch, shape (rounds, epochs)."""
    numbers = np.arange(NUM_ROUNDS, dtype=np.uint64)[:, None]
    # The upper bits of splitmix64 are the better mixed ones.
    return (splitmix64(splitmix64(seeds) ^ numbers) >> np.uint64(32)).astype(np.uint32)


def _add_hash(target: U64, source: U64, modulus: int, keys: U32) -> None:
    """target += hash(source), modulo `modulus`, in place: undone by subtracting, hence a bijection.

    32 bits are hashed, and scaled to the modulus by a product and a shift (Lemire 2019), not by a slow division.
    """
    mixed = source.astype(np.uint32)  # factors of at most 2^62 rows are below 2^32
    mixed ^= keys
    mixed *= FIRST
    mixed ^= mixed >> np.uint32(15)
    mixed *= SECOND
    step = mixed.astype(np.uint64)
    step *= np.uint64(modulus)
    step >>= np.uint64(32)
    target += step
    # Below the modulus the difference wraps to something huge, so the minimum is the remainder.
    np.subtract(target, np.uint64(modulus), out=step)
    np.minimum(target, step, out=target)
