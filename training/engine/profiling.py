"""Profiler traces on demand: a window of steps by configuration, or a request left in the run's folder.

Every rank writes a Chrome trace (chrome://tracing, Perfetto) into its attempt's folder. torch's profiler is imported
once somebody wants it; until then a step costs a comparison, and a look at the folder once a second. A trace that is
open when training ends, however it ends, holds the steps so far.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headway.training.config.training_spec import ProfileSpec
from headway.training.launch.base.protocol import read_json, write_json

if TYPE_CHECKING:
    import torch

    from headway.training.launch.node.rank_process import RankProcess

REQUEST_NAME = "profile-request.json"
POLL_EVERY_S = 1.0


def request_profile(run_dir: Path, *, num_steps: int = 3) -> str:
    """Ask the ranks of a run for a trace of its next steps; each rank serves a request once.

    Returns where the traces will lie, below the run's folder: a pattern, since each rank of an attempt writes one.
    """
    name = f"{time.time_ns():x}"
    write_json(run_dir / REQUEST_NAME, {"id": name, "num_steps": num_steps})
    return f"attempts/*/{trace_name(name, '*')}"


def trace_name(request: str, rank: int | str) -> str:
    return f"profile-{request}-rank-{rank}.json"


class StepProfiler:
    """Called at every step boundary; a context manager around training.

    Args:
        wanted: a window of steps to trace; None for none but what is requested.
    """

    def __init__(self, rank: RankProcess, run_dir: Path, wanted: ProfileSpec | None) -> None:
        self._rank, self._request, self._wanted = rank, run_dir / REQUEST_NAME, wanted
        self._looked_s = 0.0
        # Requests that an earlier attempt served: their file still lies in the run's folder.
        self._served: set[str] = {path.name.split("-")[1] for path in run_dir.glob("attempts/*/profile-*")}
        self._profile: torch.profiler.profile | None = None
        self._name, self._steps_left, self._num_done = "", 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._end()

    def at_boundary(self, num_done: int) -> None:
        """Begin or end a trace, now that so many steps are done."""
        self._num_done = num_done
        if self._profile is not None:
            self._steps_left -= 1
            if self._steps_left == 0:
                self._end()
        # Before the step: a trace begins at the boundary where the wanted step starts.
        elif self._wanted is not None and num_done + 1 == self._wanted.first_step:
            self._begin("config", self._wanted.num_steps)
        # Once a second, for the folder may be on a network file system.
        elif time.monotonic() - self._looked_s > POLL_EVERY_S:
            self._looked_s = time.monotonic()
            self._serve_request()

    def _serve_request(self) -> None:
        request = read_json(self._request)
        if request is not None and str(request.get("id")) not in self._served:
            self._served.add(str(request["id"]))
            self._begin(str(request["id"]), max(1, int(request.get("num_steps", 1))))

    def _begin(self, name: str, num_steps: int) -> None:
        # Imported when somebody wants a trace; it is no small module.
        from torch import profiler

        self._profile = profiler.profile(profile_memory=True)  # of every kind of activity there is
        self._profile.start()
        self._name, self._steps_left = name, num_steps

    def _end(self) -> None:
        assert self._profile is not None
        path = self._rank.files.folder / trace_name(self._name, self._rank.rank)
        unfinished = path.with_suffix(".unfinished")  # who waits for the trace must not read half of it
        profile, self._profile = self._profile, None
        # A trace that finds no space is not worth a run; the span tells what became of it.
        with (
            contextlib.suppress(OSError),
            self._rank.ledger.span("profile", path=str(path), last_step=self._num_done),
        ):
            profile.stop()
            profile.export_chrome_trace(str(unfinished))
            unfinished.replace(path)
