"""Of numbers: how far off a model is, in the label's own unit, over all examples and by quantile of the label."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data_contracts.store.documents import Interval, NumberFigures, TargetBand
from headway.training.evaluation.outputs import Outputs
from headway.training.evaluation.statistics import ratio_interval

MAX_BANDS = 10
MIN_BAND_EXAMPLES = 10
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def number_figures(
    outputs: Outputs,
    *,
    resamples: int,
    confidence: float,
    seed: int,
    groups: NDArray[np.integer[Any]] | None = None,
) -> NumberFigures:
    """Args: groups: as `ratio_interval`; (rows,)."""
    label, error = outputs.label, outputs.predicted - outputs.label

    def mean(values: NDArray[np.float64], of: NDArray[np.int64] | None = None) -> Interval:
        own = groups if groups is None or of is None else groups[of]
        ones = np.ones(len(values))
        return ratio_interval(values, ones, resamples=resamples, confidence=confidence, seed=seed, groups=own)

    bands = []
    for chosen in _bands(label):
        own = error[chosen]
        bands.append(
            TargetBand(
                low=float(label[chosen].min()),
                high=float(label[chosen].max()),
                num_examples=len(own),
                mean_error=mean(own, chosen),
                mean_absolute_error=mean(np.abs(own), chosen),
                rmse=float(np.sqrt(np.square(own).mean())),
            )
        )
    return NumberFigures(
        mean_error=mean(error),
        mean_absolute_error=mean(np.abs(error)),
        error_quantiles={f"p{100 * share:02.0f}": float(np.quantile(error, share)) for share in QUANTILES},
        bands=tuple(bands),
    )


def _bands(label: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Examples of each quantile, equal labels in one; fewer quantiles where there are few examples."""
    num_bands = max(1, min(MAX_BANDS, len(label) // MIN_BAND_EXAMPLES))
    # `lower` picks a number that occurs, so that equal labels fall into one band.
    bounds = np.quantile(label, np.arange(1, num_bands) / num_bands, method="lower")
    places = np.searchsorted(np.unique(bounds), label, side="left")
    return [np.flatnonzero(places == place) for place in np.unique(places)]
