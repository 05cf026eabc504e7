"""SplitMix64 and hashes of text: the only sources of order, so that no library's generator can change one.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), in Vigna's constants.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

U64 = NDArray[np.uint64]


def splitmix64(states: U64) -> U64:
    """The generator's output for each state: a bijection of 64-bit integers that looks random."""
    mixed = states + np.uint64(GAMMA)
    shifted = mixed >> np.uint64(30)
    mixed ^= shifted
    mixed *= np.uint64(FIRST)
    mixed ^= np.right_shift(mixed, np.uint64(27), out=shifted)
    mixed *= np.uint64(SECOND)
    mixed ^= np.right_shift(mixed, np.uint64(31), out=shifted)
    return mixed


def mix(*values: int) -> int:
    """One 64-bit integer from several, order mattering: a seed for each purpose."""
    state = 0
    for value in values:
        state = ((state ^ value) + GAMMA) & MASK
        state = ((state ^ (state >> 30)) * FIRST) & MASK
        state = ((state ^ (state >> 27)) * SECOND) & MASK
        state ^= state >> 31
    return state


def hash_text(purpose: str, *parts: str) -> int:
    """64 bits of SHA-256 of the parts, each preceded by its length, so that no two lists read alike."""
    digest = hashlib.sha256()
    for part in (purpose, *parts):
        data = part.encode("utf-8", "surrogateescape")
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest()[:8], "little")
