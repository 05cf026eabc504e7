"""What ranks occupy while they run, and what that may cost, as tasks see it.

`headway.flows.prefect_api.devices` knows who keeps count, and `headway.flows.accounts.spending` knows prices.
"""

from __future__ import annotations

from typing import Protocol

from headway.training.launch.base.stop_request import StopRequest

LIMITS = "HEADWAY_LIMITS"
"""What the names of a deployment's limits begin with; `headway deploy` sets it."""


class Devices(Protocol):
    def take(self) -> None:
        """Have the devices, waiting for them; once taken they are kept.

        Raises:
            ConfigError: there are none of that name, or never so many.
            RunStopped: the time was over before they were free.
        """

    def release(self) -> None:
        """Let others have them, if they were taken."""


class UnlimitedDevices:
    """Nobody keeps count."""

    def take(self) -> None:
        return

    def release(self) -> None:
        return


class Spending(Protocol):
    def require(self, doing: str, run: str) -> None:
        """Look whether something may still be paid for.

        Args:
            doing: what would begin now.
            run: the id of the run that it would be for; empty: none yet.

        Raises:
            CostBoundReached: all that may be spent is spent.
        """

    def bounding(self, stop: StopRequest, run: str) -> StopRequest:
        """The same request, with how long devices may still be paid for.

        Raises:
            CostBoundReached: all that may be spent is spent.
        """


class UnboundSpending:
    """Nobody bounds it."""

    def require(self, doing: str, run: str) -> None:
        return

    def bounding(self, stop: StopRequest, run: str) -> StopRequest:
        return stop
