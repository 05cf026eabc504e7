"""Bootstrap intervals over documents (Efron, 1979), seeded: equal scores give equal intervals."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headway.data_contracts.store.documents import Interval

BLOCK_DRAWS = 1 << 20
"""Draws held at once, so that memory does not grow with resamples times documents."""
KEPT_DRAWS = 1 << 23
"""Draws kept for the next figure, of which an evaluation has dozens, in 32 MiB at most."""

Array = NDArray[np.float64]


def ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike,
    *,
    resamples: int,
    confidence: float,
    seed: int,
    groups: NDArray[np.integer[Any]] | None = None,
) -> Interval:
    """sum(numerators) / sum(denominators), such as bits over bytes, with a percentile interval over documents.

    Args:
        numerators, denominators: one value a document, shape (documents,).
        groups: which documents are drawn together, for they depend on each other, (documents,); None: each alone.

    Raises:
        ValueError: no documents, lengths that differ, or a sum of denominators that is not positive.
    """
    columns = _columns(numerators, denominators)
    sums, drawn = columns.sum(axis=0), _resampled_sums(_grouped(columns, groups), resamples, seed)
    return _interval(sums[0] / sums[1], drawn[:, 0] / drawn[:, 1], confidence)


def paired_difference(
    challenger: ArrayLike,
    champion: ArrayLike,
    denominators: ArrayLike,
    *,
    resamples: int,
    confidence: float,
    seed: int,
    groups: NDArray[np.integer[Any]] | None = None,
) -> Interval:
    """Challenger's ratio minus champion's, resampling documents for both at once: what they share cancels.

    Raises:
        ValueError: as `ratio_interval`.
    """
    return paired_difference_over_seeds(
        [challenger], [champion], denominators, resamples=resamples, confidence=confidence, seed=seed, groups=groups
    )


def paired_difference_over_seeds(
    challengers: Sequence[ArrayLike],
    champions: Sequence[ArrayLike],
    denominators: ArrayLike,
    *,
    resamples: int,
    confidence: float,
    seed: int,
    groups: NDArray[np.integer[Any]] | None = None,
) -> Interval:
    """The mean of `paired_difference` over models that differ by their seeds, resampling these seeds as well.

    Of two or three seeds many resamples hold but one: the interval leaves out 0 only where each of them says the same.

    Args:
        challengers, champions: of each seed one value a document, shape (seeds, documents).

    Raises:
        ValueError: as `ratio_interval`.
    """
    columns, num_seeds = _columns(*challengers, *champions, denominators), len(challengers)

    def differences(sums: Array) -> Array:
        return (sums[..., :num_seeds] - sums[..., num_seeds:-1]) / sums[..., -1:]

    # One draw for both: what makes a document hard moves both ratios alike, and cancels.
    drawn = differences(_resampled_sums(_grouped(columns, groups), resamples, seed))
    seeds = np.random.default_rng([seed, num_seeds]).integers(num_seeds, size=drawn.shape)
    over_seeds = np.take_along_axis(drawn, seeds, axis=1).mean(axis=1)
    return _interval(differences(columns.sum(axis=0)).mean(), over_seeds, confidence)


def _columns(*values: ArrayLike) -> Array:
    arrays: Sequence[Array] = [np.asarray(value, dtype=np.float64) for value in values]
    lengths = [array.shape for array in arrays]
    if len(set(lengths)) != 1 or len(lengths[0]) != 1 or not lengths[0][0]:
        raise ValueError(f"need equally many values for at least one document, got {lengths}")
    if not arrays[-1].sum() > 0:
        raise ValueError("the denominators' sum must be positive")
    return np.stack(arrays, axis=1)


def _grouped(columns: Array, groups: NDArray[np.integer[Any]] | None) -> Array:
    """Sums of each group, which is drawn as a whole (cluster bootstrap: Davison and Hinkley, 1997, section 3.8)."""
    if groups is None:
        return columns
    _, numbers = np.unique(groups, return_inverse=True)
    return np.stack([np.bincount(numbers, weights=column) for column in columns.T], axis=1)


def _interval(value: float, drawn: Array, confidence: float) -> Interval:
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value=float(value), low=float(low), high=float(high))


def _resampled_sums(columns: Array, resamples: int, seed: int) -> Array:
    """Column sums of documents drawn with replacement, shape (resamples, columns)."""
    num_documents = len(columns)
    # Each column in one piece of memory: its draws are added up several times as fast as rows of columns are.
    values = np.ascontiguousarray(columns.T)
    # One whose values are all equal, and whole numbers, comes to the same in every resample.
    is_fixed = [bool((column == column[0]).all()) and float(column[0]).is_integer() for column in values]
    sums, first = np.empty((resamples, len(values))), 0
    drawn = np.empty((min(resamples, _rows_at_once(num_documents)), num_documents))
    for chosen in _draws(num_documents, resamples, seed):
        block, taken = sums[first : first + len(chosen)], drawn[: len(chosen)]
        first += len(chosen)
        for number, column in enumerate(values):
            if is_fixed[number]:
                block[:, number] = column[0] * num_documents
                continue
            # Into the same memory each time; no place is outside, and without a look at that it takes a fifth.
            np.take(column, chosen, out=taken, mode="clip")
            block[:, number] = taken.sum(axis=1)
    return sums


def _draws(num_documents: int, resamples: int, seed: int) -> Iterator[NDArray[Any]]:
    """Which documents are drawn, in blocks of resamples; those of one evaluation's figures are the same."""
    if num_documents * resamples <= KEPT_DRAWS:
        yield from _kept_draws(num_documents, resamples, seed)
        return
    yield from _new_draws(num_documents, resamples, seed)


@functools.lru_cache(maxsize=1)
def _kept_draws(num_documents: int, resamples: int, seed: int) -> tuple[NDArray[np.int32], ...]:
    return tuple(chosen.astype(np.int32) for chosen in _new_draws(num_documents, resamples, seed))


def _new_draws(num_documents: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    generator, rows = np.random.default_rng(seed), _rows_at_once(num_documents)
    for first in range(0, resamples, rows):
        yield generator.integers(num_documents, size=(min(rows, resamples - first), num_documents))


def _rows_at_once(num_documents: int) -> int:
    """In blocks, since the draws are resamples times documents."""
    return max(1, BLOCK_DRAWS // num_documents)
