"""Rolling back: checkpoints of steps that are to be done again, on other data, are no longer this run's."""

from __future__ import annotations

from pathlib import Path

from headway.training.checkpoint import layout
from headway.training.checkpoint.layout import committed_steps
from headway.training.launch.base.fence import AttemptFence

ABANDONED = "abandoned"


def abandon_after(run_dir: Path, step: int, fence: AttemptFence) -> None:
    """Put aside every checkpoint after `step`, newest first; they stay for a person to look at.

    An interruption leaves the older ones, from which the run meets the same alarm and comes here again.

    Raises:
        Superseded: a later attempt has begun.
    """
    checkpoints = run_dir / "checkpoints"
    for later in reversed([kept for kept in committed_steps(checkpoints) if kept > step]):
        fence.quarantine(checkpoints / layout.directory_name(later), run_dir / ABANDONED)
