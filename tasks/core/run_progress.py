"""How far a run's training is, from what its ranks write down: steps, pace, and when it should be done."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.regular_files import open_regular
from headway.training.launch.base.protocol import attempt_numbers
from headway.training.observe.ledger import Event
from headway.training.observe.ledger_lines import parse_event

TAIL_BYTES = 64 << 10
"""Of a rank's spool: the newest fifty steps and more, however long the run."""
RANK_TAIL_BYTES = 16 << 10
"""Where all ranks are compared: some twenty steps of each, so that a look at 256 ranks stays a look."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunProgress:
    attempt: int = 0
    """0 before the first."""
    step: int | None = None
    """The newest of this attempt."""
    step_unix_s: float | None = None
    """When it was done."""
    step_s: float | None = None
    """Wall time a step, over the newest of them."""
    tokens_per_s: float | None = None
    """Tokens, or examples, over the same steps; None where nobody counted them."""

    def eta_s(self, max_steps: int, now_unix_s: float) -> float | None:
        """Seconds until the last step at this pace; None where there is no pace yet."""
        if self.step is None or self.step_s is None or self.step_unix_s is None:
            return None
        return max((max_steps - self.step) * self.step_s - max(now_unix_s - self.step_unix_s, 0.0), 0.0)

    def __str__(self) -> str:
        if not self.attempt:
            return "before its first attempt"
        return f"attempt {self.attempt}, {'before its first step' if self.step is None else f'step {self.step:,}'}"


def read_progress(run_dir: Path) -> RunProgress:
    """Of the newest attempt at training."""
    attempts = attempt_numbers(run_dir / "attempts")
    if not attempts:
        return RunProgress()
    newest = max(attempts)
    steps = read_steps(attempts[newest] / "ledger" / "rank-0.jsonl")
    if not steps:
        return RunProgress(attempt=newest)
    ends = [float(event["unix_s"]) + float(event.get("duration_s") or 0.0) for event in steps]
    step_s = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else float(steps[-1].get("duration_s") or 0.0)
    counted = [int(event.get("tokens") or 0) for event in steps]
    # The first of them ended when the time began.
    tokens = sum(counted[1:]) / (len(steps) - 1) if len(steps) > 1 else counted[0]
    return RunProgress(
        attempt=newest,
        step=int(steps[-1]["step"]),
        step_unix_s=ends[-1],
        step_s=max(step_s, 0.0),
        tokens_per_s=tokens / step_s if tokens and step_s > 0 else None,
    )


def read_steps(spool: Path) -> list[Event]:
    """The newest steps that a rank wrote down, oldest first."""
    return _steps_in(_tail(spool, TAIL_BYTES))


def read_rank_steps(spools: Mapping[int, Path]) -> tuple[dict[int, list[Event]], int]:
    """The newest steps of each rank, oldest first, and how many stages of a pipeline the ranks make up."""
    found = {rank: _steps_in(_tail(spool, RANK_TAIL_BYTES)) for rank, spool in spools.items()}
    models = (event for event in _head(spools[0]) if event.get("event") == "model") if 0 in spools else iter(())
    return found, max(int(next(models, {}).get("num_stages") or 1), 1)


def _steps_in(events: list[Event]) -> list[Event]:
    return [event for event in events if event.get("event") == "step"]


def _head(spool: Path) -> list[Event]:
    """The oldest whole lines: what a rank says of itself before its first step."""
    try:
        with open_regular(spool) as stream:
            lines = stream.read(TAIL_BYTES).split(b"\n")
    except OSError:
        return []
    return list(filter(None, map(parse_event, lines[:-1])))


def _tail(spool: Path, most_bytes: int) -> list[Event]:
    """The newest whole lines."""
    try:
        with open_regular(spool) as stream:
            size_bytes = stream.seek(0, os.SEEK_END)
            stream.seek(max(size_bytes - most_bytes, 0))
            lines = stream.read().split(b"\n")
    except OSError:
        return []
    # The first line may be cut off by the seek, and the last is perhaps being written.
    return list(filter(None, map(parse_event, lines[1 if size_bytes > most_bytes else 0 : -1])))
