"""What ranks occupy while they run, as tasks see it; `flows.devices` knows who keeps count."""

from __future__ import annotations

from typing import Protocol


class Devices(Protocol):
    def take(self) -> None:
        """Have the devices, waiting for them; once taken they are kept.

        Raises:
            ConfigError: there are none of that name, or never so many.
            RunStopped: the time was over before they were free.
        """

    def give_back(self) -> None:
        """Let others have them, if they were taken."""


class Uncounted:
    """Nobody keeps count."""

    def take(self) -> None:
        return

    def give_back(self) -> None:
        return
