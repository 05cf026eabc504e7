"""The gradient noise scale: how many rows a batch should have, by how much gradients of small and large ones differ.

McCandlish et al., 2018, "An Empirical Model of Large-Batch Training", appendix A.1: `B_simple = tr(S) / |G|^2`.
G is the gradient of the mean loss, S the covariance of one row's. Far below it, twice the rows need nearly half the
steps; far above it, nearly as many.
"""

from __future__ import annotations

from collections.abc import Mapping

DECAY = 0.95
"""Of the means over steps that were measured, which look back over the last twenty: one's figures are mostly noise."""


class GradientNoise:
    """Means of `|G|^2` and `tr(S)` over steps, each unbiased; their quotient is the noise scale.

    They are of gradients of summed losses a row, so a row's number of tokens is part of its noise.

    Args:
        small_rows: of a replica.
    """

    def __init__(self, small_rows: int) -> None:
        self._small_rows = small_rows
        self._signal = self._noise = 0.0
        self._num_steps = 0

    def take(self, small_square: float, large_square: float, large_rows: int) -> None:
        """Take in a step: squared norms of the summed gradients of a replica and of the whole global batch.

        Args:
            large_rows: of the global batch. Where it is one replica there is nothing to tell.
        """
        if self._small_rows == large_rows:
            return
        small, large = small_square / self._small_rows**2, large_square / large_rows**2
        # Estimates of the same two figures, whatever the size: a batch may grow.
        signal = (large_rows * large - self._small_rows * small) / (large_rows - self._small_rows)
        noise = (small - large) / (1 / self._small_rows - 1 / large_rows)
        self._num_steps += 1
        # 1 at first; each step's figure then counts `DECAY` times the next one's.
        share = (1 - DECAY) / (1 - DECAY**self._num_steps)
        self._signal += share * (signal - self._signal)
        self._noise += share * (noise - self._noise)

    @property
    def scale(self) -> float | None:
        """In rows; None while noise hides the gradient, whose estimate is then no positive number."""
        # Means first and the quotient last: a mean of quotients would be biased.
        return self._noise / self._signal if self._signal > 0 and self._noise > 0 else None

    def scalars(self) -> dict[str, float]:
        """For a checkpoint; nothing where no step was taken in."""
        if not self._num_steps:
            return {}
        return {
            "gradient_noise_signal": self._signal,
            "gradient_noise_variance": self._noise,
            "gradient_noise_steps": self._num_steps,
        }

    def load(self, scalars: Mapping[str, float | int | str]) -> None:
        """Take over what `scalars()` gave."""
        # A checkpoint of a mode that does not measure it has none.
        self._signal = float(scalars.get("gradient_noise_signal", 0.0))
        self._noise = float(scalars.get("gradient_noise_variance", 0.0))
        self._num_steps = int(scalars.get("gradient_noise_steps", 0))
