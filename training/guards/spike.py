"""What makes a loss a spike: far above the recent ones, and above what they have reached lately.

Deviations alone gave alarm every 20 steps of healthy runs on small batches, whose losses are mostly tiny, with one
hard row now and then: so a spike also lies twice as far above the median as any loss has lain of late. Over 4,400
steps of two such runs that left none of 328 alarms, and one in 1,000 steps is what tests allow. The gradient's norm
is not asked: it rises with the loss of a hard row as it does with a spike, and told no two of them apart.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution, in median absolute deviations (Rousseeuw and Croux, 1993)."""
MIN_RELATIVE = 0.01
"""Least deviation taken for real, of the median: recent losses that hardly differ must not make noise a spike."""

TIMES_REACHED = 2.0
"""How far a spike lies above the median, in the farthest that another loss has lain above it."""
HALF_LIFE_WINDOWS = 8
"""Windows after which the farthest counts half: hard rows come back within an epoch or so."""


class SpikeDetector:
    """Args:
    window_steps: recent losses that a loss is compared with; until there are so many, nothing is a spike.
    threshold: robust standard deviations.
    """

    def __init__(self, window_steps: int, threshold: float) -> None:
        self._threshold = threshold
        self.recent: deque[float] = deque(maxlen=window_steps)
        self.farthest = 0.0
        """How far above the median a loss has lain, halved every `HALF_LIFE_WINDOWS`."""
        self._decay = 0.5 ** (1 / (HALF_LIFE_WINDOWS * window_steps))

    def is_spike(self, loss: float) -> bool:
        # Until the window is full the median rests on too few losses.
        if len(self.recent) < (self.recent.maxlen or 0) or robust_z(loss, self.recent) <= self._threshold:
            return False
        middle = statistics.median(self.recent)
        return loss - middle > TIMES_REACHED * max(self.farthest, max(self.recent) - middle)

    def add(self, loss: float) -> None:
        """Compare later losses with this one as well."""
        # Only from a full window on, like the alarm itself.
        if len(self.recent) == self.recent.maxlen:
            # It decays, so that one hard row of long ago does not hide spikes for ever.
            self.farthest = max(self._decay * self.farthest, loss - statistics.median(self.recent))
        self.recent.append(loss)

    def restore(self, recent: Sequence[float], farthest: float) -> None:
        """What `recent` and `farthest` were."""
        self.recent = deque(recent, maxlen=self.recent.maxlen)
        self.farthest = farthest


def robust_z(value: float, recent: Sequence[float]) -> float:
    """Negative below the median of the recent values. A pure function of the numbers, with no torch in it."""
    middle = statistics.median(recent)
    deviation = NORMAL_MAD * statistics.median(abs(each - middle) for each in recent)
    # A floor relative to the median: losses that hardly differ would make any change a spike.
    return (value - middle) / max(deviation, MIN_RELATIVE * abs(middle), 1e-12)
