"""What a run is asked to stop by: a time, a step, or somebody's wish; its supervisor, ranks and flow agree on it.

No part of the run's key, for it decides no bit: what is stopped goes on to the same weights. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from headway.data_contracts.store.errors import StopReason, stop_error
from headway.training.launch.base import protocol
from headway.training.launch.base.protocol import read_json, write_json
from headway.training.launch.base.record import record_or_none

NAME = "stop-request.json"
LATEST_UNIX_S = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""Dates end there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRequest:
    """Never, by default."""

    at_unix_s: float = math.inf
    """By then a checkpoint is durable. Work that leaves none ends then, as do ranks that are late."""
    at_step: int | None = None
    """The step after which the run ends, if it has more."""
    reason: StopReason = "requested"
    """What the time means; a step is asked for."""
    detail: str = ""
    """In the words of whoever asked."""
    paid_s: float = math.inf
    """How long the devices may still be held for what the run may cost: a bound in time once they are held."""
    paid_since_unix_s: float = 0.0
    """When that was reckoned; what attempts have taken since is paid from it."""
    paid_detail: str = ""
    """Which bound on the cost it is."""

    @classmethod
    def now(cls, detail: str) -> Self:
        """Somebody's wish."""
        return cls(at_unix_s=time.time(), detail=detail)

    def is_due(self, now_unix_s: float) -> bool:
        return now_unix_s >= self.at_unix_s

    def if_due(self) -> Self | None:
        """None while there is time."""
        # By the wall clock, unlike deadlines: the moment is a window's end, which other hosts and jobs share.
        if not self.is_due(time.time()):
            return None
        return self if self.detail else replace(self, detail=f"the time was over at {self.end}")

    def require_time(self, doing: str, *, advice: str) -> None:
        """Raises `RunStopped` when the time is over; what is not begun leaves nothing behind.

        Args:
            doing: what would begin now.
        """
        if (due := self.if_due()) is not None:
            raise stop_error(f"{due.why}: {doing} was not started.", advice=advice, reason=due.reason)

    def holding_devices(self, now_unix_s: float, paid_already_s: float) -> Self:
        """The same from when the devices are held: what may still be paid for ends at a moment.

        Not before: a scheduler's queue is free, and may be longer than all that is paid for.

        Args:
            paid_already_s: of attempts since it was reckoned.
        """
        end_unix_s = now_unix_s + self.paid_s - paid_already_s
        unpaid = replace(self, paid_s=math.inf, paid_since_unix_s=0.0, paid_detail="")
        if end_unix_s >= self.at_unix_s:
            return unpaid
        return replace(unpaid, at_unix_s=end_unix_s, reason="cost bound reached", detail=self.paid_detail)

    @property
    def why(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason

    @property
    def end(self) -> str:
        """ISO 8601, in UTC, to the second."""
        return datetime.fromtimestamp(min(max(self.at_unix_s, 0), LATEST_UNIX_S), UTC).isoformat(timespec="seconds")

    def __str__(self) -> str:
        """When, for a person; empty for never."""
        step = "" if self.at_step is None else f"after step {self.at_step:,}"
        time_over = "" if math.isinf(self.at_unix_s) else f"by {self.end} ({self.reason})"
        return " or ".join(filter(None, (step, time_over)))

    def environment(self) -> dict[str, str]:
        """For guards and ranks, whose devices are held; ranks of an older run know of no cost."""
        fields = {name: value for name, value in asdict(self).items() if not name.startswith("paid")}
        return {protocol.STOP_REQUEST: json.dumps(fields)} if str(self) else {}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        return cls(**json.loads(environment.get(protocol.STOP_REQUEST, "{}")))


NEVER = StopRequest()


def continuing(command: str, reason: StopReason | None) -> str:
    """What to do about a stop."""
    when = " once that bound in the pipeline file lets it" if reason == "cost bound reached" else ""
    return f"`{command}` continues it{when}."


def request_stop(run_dir: Path, detail: str) -> None:
    """Leave the request in the run's folder, where whoever owns the run finds it."""
    # A file, since owner and asker may be on different hosts, and the owner may be a job of a scheduler.
    write_json(run_dir / NAME, asdict(StopRequest.now(detail)))


def requested_stop(run_dir: Path) -> StopRequest | None:
    """None when nobody asked."""
    return record_or_none(StopRequest, read_json(run_dir / NAME))


def clear_stop(run_dir: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (run_dir / NAME).unlink()
