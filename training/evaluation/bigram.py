"""The baseline that a first model must beat: an interpolated Kneser-Ney bigram over tokens.

Counts are of the whole training split. Absolute discount D = n1 / (n1 + 2 n2); the discounted mass goes to each
token in proportion to how many different tokens it follows (Kneser and Ney, 1995; Ney, Essen and Kneser, 1994).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.training.data.encode.packing import PAD_ID

Tokens = NDArray[np.integer]


class Bigram:
    """Fitted on packed rows.

    Args:
        rows: tokens, shape (rows, context + 1); a row's pairs are its neighbours, padding left out.
    """

    def __init__(self, rows: Tokens, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        # A pair as one number: unique numbers are counted much faster than unique rows.
        self._pairs, self._counts = np.unique(self._pair_numbers(rows, rows[:, 1:] != PAD_ID), return_counts=True)
        first, second = np.divmod(self._pairs, vocab_size)
        singles, doubles = int((self._counts == 1).sum()), int((self._counts == 2).sum())
        # At least 1: a tiny split may have no pair that occurs once or twice.
        self._discount = singles / max(1, singles + 2 * doubles)
        self._num_followers = np.bincount(first, minlength=vocab_size)
        self._num_first = np.bincount(first, weights=self._counts, minlength=vocab_size)
        # One more predecessor for each token, so that none is impossible.
        predecessors = np.bincount(second, minlength=vocab_size) + 1.0
        self._lower_order = predecessors / predecessors.sum()

    def nats(self, rows: Tokens) -> NDArray[np.float64]:
        """Loss of every target, (rows, context); 0 at padding."""
        valid = rows[:, 1:] != PAD_ID
        pairs = self._pair_numbers(rows, valid)
        first, second = np.divmod(pairs, self._vocab_size)
        # A pair that never occurred falls on a neighbour, which the next line notices.
        place = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        counts = np.where(self._pairs[place] == pairs, self._counts[place], 0)
        num_first = self._num_first[first]
        kept = np.maximum(counts - self._discount, 0.0) / np.maximum(num_first, 1.0)
        freed = self._discount * self._num_followers[first] / np.maximum(num_first, 1.0)
        # A token that was never first leaves all of its mass to the lower order.
        probability = kept + np.where(num_first > 0, freed, 1.0) * self._lower_order[second]
        losses = np.zeros(valid.shape)
        losses[valid] = -np.log(probability)
        return losses

    def _pair_numbers(self, rows: Tokens, valid: NDArray[np.bool_]) -> NDArray[np.int64]:
        tokens = rows.astype(np.int64)
        return (tokens[:, :-1] * self._vocab_size + tokens[:, 1:])[valid]
