"""Restoring: the whole gang takes up the same verified checkpoint, and bad ones are put aside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from data_contracts.documents import Link
from data_contracts.errors import ConfigError, IntegrityError
from training.checkpoint import layout
from training.checkpoint.agreement import gathered
from training.checkpoint.pieces import State, pieces_of
from training.checkpoint.read import Rest, require_fit
from training.checkpoint.retention import sweep
from training.checkpoint.verify import Verified, committed_steps, read_checkpoint, read_manifest
from training.distributed import Gang

NONE = b"-"
OnQuarantine = Callable[[Path, IntegrityError], None]


def quarantine(directory: Path, folder: Path) -> Path:
    """Move a bad checkpoint aside, keeping it for a person to look at. Returns where it is now."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = {path.name for path in folder.iterdir()}
    number = next(number for number in range(len(taken) + 1) if f"{directory.name}.{number}" not in taken)
    return directory.rename(folder / f"{directory.name}.{number}")


def restore_newest(
    run_dir: Path,
    run: Link,
    gang: Gang,
    *,
    state: State | None = None,
    on_quarantine: OnQuarantine = lambda _directory, _error: None,
) -> Verified | None:
    """The newest good checkpoint of this run, the same on every rank; None when there is none yet.

    Rank 0 chooses; every rank reads and verifies its own part of that. One rank's bad part is everybody's: rank 0
    puts the checkpoint aside, and the one before is tried. What interrupted saves left is removed.

    Args:
        state: what this rank is to hold, by name; only that is read, however it was sharded when it was saved.
            None: all of it.

    Raises:
        ConfigError: the folder holds another run's checkpoints.
        IntegrityError: a good checkpoint holds other tensors than `state`.
    """
    checkpoints = run_dir / "checkpoints"
    if gang.leads:
        sweep(checkpoints)
    while True:
        directory = _chosen(checkpoints, gang)
        if directory is None:
            return None
        found, error = _read(directory, run, gang, state)
        problems = [problem.decode() for problem in gathered(gang, b"" if error is None else str(error).encode())]
        if found is not None and not any(problems):
            return found
        if gang.leads:
            rank, problem = next((rank, problem) for rank, problem in enumerate(problems) if problem)
            named = error or IntegrityError(f"rank {rank} cannot use it: {problem}", where=str(directory))
            on_quarantine(quarantine(directory, run_dir / "quarantine"), named)


def _chosen(checkpoints: Path, gang: Gang) -> Path | None:
    """The newest checkpoint that rank 0 sees."""
    steps = committed_steps(checkpoints) if gang.leads else []
    said = gathered(gang, layout.directory_name(steps[-1]).encode() if steps else NONE)[0]
    return None if said == NONE else checkpoints / said.decode()


def _read(
    directory: Path, run: Link, gang: Gang, state: State | None
) -> tuple[Verified, None] | tuple[None, IntegrityError]:
    try:
        manifest = read_manifest(directory)
    except IntegrityError as error:
        manifest, problem = None, error
    # What rank 0 reads is what all must read: a stale view of a shared folder would mix two checkpoints.
    digests = gathered(gang, NONE if manifest is None else manifest.sha256.encode())
    if manifest is None:
        return None, problem
    if digests[0] != manifest.sha256.encode():
        return None, IntegrityError("rank 0 reads another manifest here than this rank.", where=str(directory))
    if manifest.run != run:
        raise ConfigError(
            f"the checkpoint belongs to {manifest.run.short}, not to {run.short}.",
            where=str(directory),
            advice="Give every run a folder of its own with --run-dir.",
        )
    wanted = None if state is None else [piece.slice(name) for name, piece in pieces_of(state).items()]
    require_fit(manifest, wanted or ())
    try:
        rest: Rest = "headers" if gang.leads else "skip"
        return read_checkpoint(directory, manifest, wanted=wanted, rest=rest), None
    except IntegrityError as error:
        return None, error
