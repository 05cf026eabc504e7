"""Until when a run may go on: what its supervisor, its ranks and the flow around them agree on.

No part of the run's key, for it decides no bit: what is stopped goes on to the same weights. Standard library only.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Self

from data_contracts.errors import RunStopped, StopReason
from training.launch import protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class StopWish:
    """That a run is to stop, and why."""

    reason: StopReason
    detail: str = ""
    """In the words of whoever asked."""

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


@dataclass(frozen=True, kw_only=True, slots=True)
class StopBound:
    """No bound at all by default."""

    at_unix_s: float = math.inf
    """By then a checkpoint is durable. Work that leaves none ends then, as do ranks that are late."""
    at_step: int | None = None
    """The step after which the run ends, if it has more."""
    reason: StopReason = "asked"
    """What the time means; a step is asked for."""

    def is_over(self, now_unix_s: float) -> bool:
        return now_unix_s >= self.at_unix_s

    def wish(self) -> StopWish | None:
        """None while there is time."""
        if not self.is_over(time.time()):
            return None
        return StopWish(reason=self.reason, detail=f"the time was over at {self.end}")

    def require_time(self, doing: str, *, advice: str) -> None:
        """Raises `RunStopped` when the time is over; what is not begun leaves nothing behind.

        Args:
            doing: what would begin now.
        """
        if (wish := self.wish()) is not None:
            raise RunStopped(f"{wish}: {doing} was not started.", advice=advice, reason=wish.reason)

    @property
    def end(self) -> str:
        """ISO 8601, in UTC, to the second."""
        return datetime.fromtimestamp(self.at_unix_s, UTC).isoformat(timespec="seconds")

    def __str__(self) -> str:
        """For a person; empty without a bound."""
        step = "" if self.at_step is None else f"after step {self.at_step:,}"
        time_over = "" if math.isinf(self.at_unix_s) else f"by {self.end} ({self.reason})"
        return " or ".join(filter(None, (step, time_over)))

    def environment(self) -> dict[str, str]:
        """For guards and ranks."""
        return {protocol.STOP_BOUND: json.dumps(asdict(self))} if str(self) else {}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        return cls(**json.loads(environment.get(protocol.STOP_BOUND, "{}")))


NO_BOUND = StopBound()
