"""What ranks occupy while they run, as tasks see it; `headway.flows.prefect_api.devices` knows who keeps count."""

from __future__ import annotations

from typing import Protocol

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
