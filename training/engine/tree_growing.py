"""Trees, grown one at a time by scikit-learn's histogram grower, as the arrays that `BoostedTrees` keeps.

scikit-learn's estimators fit in one go, and cannot be stopped, saved and continued; what they are made of can.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble._hist_gradient_boosting.binning import _BinMapper
from sklearn.ensemble._hist_gradient_boosting.grower import TreeGrower

from headway.training.config.recipe_specs import GradientBoostingSpec
from headway.training.recipes.gradient_boosting import LARGEST, WORD_BITS


class GrownTree(NamedTuple):
    """Arrays by node, the root first."""

    value: NDArray[np.float64]
    """Of leaves; 0 elsewhere."""
    feature: NDArray[np.int64]
    threshold: NDArray[np.float32]
    missing_goes_right: NDArray[np.bool_]
    child: NDArray[np.int64]
    """Left and right, (nodes, 2); a leaf is its own."""
    left_ids: NDArray[np.int32]
    """Sets of ids as bits, (nodes, words)."""
    num_levels: int
    added: NDArray[np.float64]
    """What the tree says of each row that it was grown of."""


class BinnedRows:
    """Rows cut into bins, of which trees are grown.

    Args:
        records: (rows, columns) float32, numbers first.
        by_ids: which columns are split by sets of ids.
        num_words: of each node's set of ids.
        seed: of the rows that bins are counted on, where there are more than scikit-learn looks at.
    """

    def __init__(
        self,
        records: NDArray[np.float32],
        by_ids: list[bool],
        num_words: int,
        spec: GradientBoostingSpec,
        *,
        seed: int,
        num_threads: int,
    ) -> None:
        self._spec, self._num_threads = spec, num_threads
        wide = records.astype(np.float64)
        self._by_ids = np.array(by_ids, dtype=np.uint8)
        known = [np.unique(column) if mark else None for column, mark in zip(wide.T, by_ids, strict=True)]
        self._bins = _BinMapper(
            n_bins=spec.bins + 1,  # with the one of missing values
            is_categorical=self._by_ids,
            known_categories=known,
            random_state=seed % (1 << 32),
            n_threads=num_threads,
        )
        self._binned = self._bins.fit_transform(wide)
        self._has_missing = (self._binned == self._bins.missing_values_bin_idx_).any(axis=0).astype(np.uint8)
        self._known = np.zeros((len(by_ids), num_words), dtype=np.uint32)
        for column, ids in enumerate(known):
            for each in [] if ids is None else ids.astype(np.int64).tolist():
                self._known[column, each // WORD_BITS] |= np.uint32(1 << each % WORD_BITS)

    def grow(self, gradients: NDArray[np.float32], hessians: NDArray[np.float32]) -> GrownTree:
        """The next tree; a single hessian counts for all rows."""
        spec = self._spec
        grower = TreeGrower(
            X_binned=self._binned,
            gradients=gradients,
            hessians=hessians,
            n_bins=spec.bins + 1,
            n_bins_non_missing=self._bins.n_bins_non_missing_,
            has_missing_values=self._has_missing,
            is_categorical=self._by_ids,
            max_leaf_nodes=spec.leaves,
            max_depth=spec.depth,
            min_samples_leaf=spec.min_rows_per_leaf,
            l2_regularization=spec.l2,
            shrinkage=spec.learning_rate,
            n_threads=self._num_threads,
        )
        grower.grow()
        predictor = grower.make_predictor(binning_thresholds=self._bins.bin_thresholds_)
        added = predictor.predict_binned(self._binned, self._bins.missing_values_bin_idx_, self._num_threads)
        return self._arrays(predictor.nodes, predictor.raw_left_cat_bitsets, added)

    def _arrays(self, nodes: NDArray[Any], sets: NDArray[np.uint32], added: NDArray[np.float64]) -> GrownTree:
        is_leaf = nodes["is_leaf"].astype(bool)
        feature = np.where(is_leaf, 0, nodes["feature_idx"])
        missing_left = nodes["missing_go_to_left"].astype(bool)
        left_ids = np.zeros((len(nodes), self._known.shape[1]), dtype=np.uint32)
        for node in np.flatnonzero(~is_leaf & nodes["is_categorical"].astype(bool)):
            # An id that training never saw goes where missing values go.
            unseen = ~self._known[feature[node]] if missing_left[node] else np.uint32(0)
            left_ids[node] = sets[nodes["bitset_idx"][node]][: self._known.shape[1]] | unseen
        itself = np.arange(len(nodes))
        children = [np.where(is_leaf, itself, nodes[side]) for side in ("left", "right")]
        return GrownTree(
            value=np.where(is_leaf, nodes["value"], 0.0),
            feature=feature.astype(np.int64),
            threshold=np.where(is_leaf, 0.0, rounded_down(nodes["num_threshold"])).astype(np.float32),
            missing_goes_right=~is_leaf & ~missing_left,
            child=np.stack(children, axis=1).astype(np.int64),
            left_ids=left_ids.view(np.int32),
            num_levels=int(nodes["depth"].max()),
            added=added,
        )


def rounded_down(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """The largest float32 of at most so much: a float32 is above the one where it is above the other."""
    bounded = np.clip(thresholds, -LARGEST, LARGEST)
    near = bounded.astype(np.float32)
    return np.where(near > bounded, np.nextafter(near, np.float32(-np.inf)), near)
