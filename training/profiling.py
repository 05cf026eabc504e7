"""Profiler traces on demand: a window of steps by configuration, or a request left in the run's folder.

Every rank writes a Chrome trace (chrome://tracing, Perfetto) into its attempt's folder. torch's profiler is imported
once somebody wants it; until then a step costs a comparison, and a look at the folder once a second.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from data_contracts.documents import Frozen
from training.launch.protocol import read_json, write_json

if TYPE_CHECKING:
    import torch

    from training.launch.rank import Rank

REQUEST_NAME = "profile-request.json"
LOOK_EVERY_S = 1.0


class ProfileSpec(Frozen):
    first_step: int = Field(default=10, gt=0, description="First step of the trace, counted from 1.")
    num_steps: int = Field(default=3, gt=0, description="Steps to trace.")


def request_profile(run_dir: Path, *, num_steps: int = 3) -> None:
    """Ask the ranks of a run for a trace of its next steps; each rank serves a request once."""
    write_json(run_dir / REQUEST_NAME, {"id": f"{time.time_ns():x}", "num_steps": num_steps})


class StepProfiler:
    """Told of every step boundary.

    Args:
        wanted: a window of steps to trace; None for none but what is requested.
    """

    def __init__(self, rank: Rank, run_dir: Path, wanted: ProfileSpec | None) -> None:
        self._rank, self._request, self._wanted = rank, run_dir / REQUEST_NAME, wanted
        self._looked_s = 0.0
        self._served: set[str] = {path.name.split("-")[1] for path in run_dir.glob("attempts/*/profile-*")}
        self._profile: torch.profiler.profile | None = None
        self._name, self._steps_left = "", 0

    def at_boundary(self, num_done: int) -> None:
        """Begin or end a trace, now that so many steps are done."""
        if self._profile is not None:
            self._steps_left -= 1
            if self._steps_left == 0:
                self._end(num_done)
        elif self._wanted is not None and num_done + 1 == self._wanted.first_step:
            self._begin("config", self._wanted.num_steps)
        elif time.monotonic() - self._looked_s > LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self._serve_request()

    def _serve_request(self) -> None:
        request = read_json(self._request)
        if request is not None and str(request.get("id")) not in self._served:
            self._served.add(str(request["id"]))
            self._begin(str(request["id"]), max(1, int(request.get("num_steps", 1))))

    def _begin(self, name: str, num_steps: int) -> None:
        from torch import profiler

        self._profile = profiler.profile(profile_memory=True)  # of every kind of activity there is
        self._profile.start()
        self._name, self._steps_left = name, num_steps

    def _end(self, num_done: int) -> None:
        assert self._profile is not None
        path = self._rank.files.folder / f"profile-{self._name}-rank-{self._rank.rank}.json"
        with self._rank.ledger.span("profile", path=str(path), last_step=num_done):
            self._profile.stop()
            self._profile.export_chrome_trace(str(path))
        self._profile = None
