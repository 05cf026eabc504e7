"""Which checkpoints may go, and how one goes."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from headway.data_contracts.store.errors import IntegrityError
from headway.data_contracts.store.publication import fsync_path
from headway.training.checkpoint import layout, recycled_files
from headway.training.checkpoint.layout import committed_steps
from headway.training.checkpoint.verified_files import read_manifest
from headway.training.config.checkpoints import CheckpointSpec
from headway.training.launch.base.fence import NO_FENCE, AttemptFence


class RetainedCheckpoint(NamedTuple):
    """A checkpoint on disk."""

    step: int
    is_good: bool
    """Whether it is known to be: written or verified by this process."""
    score: float | None = None
    """The scalar it is ranked by; None: it has none that can be read."""
    best_step: int | None = None
    """Which one it names as the run's best so far."""


def expired(kept: Collection[RetainedCheckpoint], spec: CheckpointSpec) -> tuple[int, ...]:
    """Steps whose checkpoints may be deleted, oldest first.

    The newest `keep_last` stay, those of every `keep_every_steps`, the `keep_best` best (of equals, the newest), and
    always the newest that is known to be good, however old it is. What one that stays names as the run's best so far
    stays with it. While none is known to be good, all stay.
    """
    good = [each.step for each in kept if each.is_good]
    # Without one that is known to be good the old ones are the only hope after damage.
    if not good:
        return ()
    steps = sorted(each.step for each in kept)
    sign = 1 if spec.best_is == "lowest" else -1
    ranked = sorted(
        (sign * each.score, -each.step) for each in kept if each.score is not None and math.isfinite(each.score)
    )
    # A good one always stays: newer ones may all turn out to be damaged.
    stay = {
        max(good),
        *steps[-spec.keep_last :],
        *(step for step in steps if spec.keep_every_steps is not None and step % spec.keep_every_steps == 0),
        # The step is part of the key with a minus, so that of equal scores the newest ranks first.
        *(-negative_step for _, negative_step in ranked[: spec.keep_best]),
    }
    # Whichever of them a run continues from, its best is there.
    stay |= {each.best_step for each in kept if each.step in stay and each.best_step is not None}
    return tuple(step for step in steps if step not in stay)


def discard_expired(
    checkpoints: Path,
    spec: CheckpointSpec,
    *,
    known_good: Collection[int],
    has_best: bool = False,
    fence: AttemptFence = NO_FENCE,
) -> None:
    """Delete what has expired, its manifest first, so that an interrupted deletion leaves no checkpoint.

    The tensor files of one stay as spares, for the next to be written over them; that begins only once the disk, too,
    knows no manifest of theirs.

    Args:
        has_best: whether the run's model is its best checkpoint, which manifests name.

    Raises:
        Superseded: a later attempt has begun; what it may know is untouched.
    """
    asks = spec.keep_best > 0 or has_best
    kept = [_retained(checkpoints, step, step in known_good, spec, asks) for step in committed_steps(checkpoints)]
    for step in expired(kept, spec):
        with fence.fenced():
            # Out of reach first: a later attempt that restores meanwhile would find half a checkpoint.
            directory = fence.take_out(checkpoints / layout.directory_name(step))
            # The manifest first, and durably: files are written over only once no manifest names them.
            (directory / layout.MANIFEST_NAME).unlink()
            for changed in (directory, checkpoints):
                fsync_path(changed)
            recycled_files.keep(checkpoints, directory)
            shutil.rmtree(directory)


def sweep(checkpoints: Path, fence: AttemptFence = NO_FENCE) -> Iterable[str]:
    """Remove what interrupted saves and deletions left; nobody may be writing. Returns the folders' names.

    Spares go, too: who starts anew may write files of other sizes, on another number of ranks.

    Raises:
        Superseded: a later attempt has begun, and may be writing.
    """
    recycled_files.drop(checkpoints)
    folders = sorted(checkpoints.iterdir()) if checkpoints.is_dir() else []
    # Without a manifest it never became a checkpoint, or stopped being one.
    left = [
        path for path in folders if layout.step_of(path.name) is not None and not (path / layout.MANIFEST_NAME).exists()
    ]
    for path in left:
        discard_unfinished(path, fence)
    return [path.name for path in left]


def discard_unfinished(directory: Path, fence: AttemptFence) -> None:
    """Remove what an interrupted save or deletion left of a checkpoint, if it did.

    Raises:
        Superseded: a later attempt has begun, and may be writing there.
    """
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(fence.take_out(directory), ignore_errors=True)


def _retained(checkpoints: Path, step: int, is_good: bool, spec: CheckpointSpec, asks: bool) -> RetainedCheckpoint:
    """
    Args:
        asks: whether its manifest is read.
    """
    if not asks:
        return RetainedCheckpoint(step, is_good)
    try:
        manifest = read_manifest(checkpoints / layout.directory_name(step))
    # A damaged manifest has no score; it is not this function's to report that.
    except IntegrityError:
        return RetainedCheckpoint(step, is_good)
    value = manifest.scalars.get(spec.best_by) if spec.keep_best else None
    score = float(value) if isinstance(value, (int, float)) else None
    return RetainedCheckpoint(step, is_good, score, layout.best_step_of(manifest))


def abandon_after(run_dir: Path, step: int, fence: AttemptFence) -> None:
    """Put aside every checkpoint after `step`, newest first, for a roll-back; they stay for a person to look at.

    Their steps are to be done again, on other data. An interruption leaves the older ones, from which the run meets the
    same alarm and comes here again.

    Raises:
        Superseded: a later attempt has begun.
    """
    checkpoints = run_dir / "checkpoints"
    for later in reversed([kept for kept in committed_steps(checkpoints) if kept > step]):
        fence.quarantine(checkpoints / layout.directory_name(later), run_dir / layout.ABANDONED)
