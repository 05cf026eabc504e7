"""Restoring: the whole gang takes up the same verified checkpoint, and bad ones are put aside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from data_contracts.documents import Link
from data_contracts.errors import ConfigError, IntegrityError
from training.checkpoint import layout
from training.checkpoint.verify import Verified, latest_good, load_checkpoint
from training.distributed import Gang

NOTHING = b"\0" * 32
OnQuarantine = Callable[[Path, IntegrityError], None]


def quarantine(directory: Path, folder: Path) -> Path:
    """Move a bad checkpoint aside, keeping it for a person to look at. Returns where it is now."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = {path.name for path in folder.iterdir()}
    number = next(number for number in range(len(taken) + 1) if f"{directory.name}.{number}" not in taken)
    return directory.rename(folder / f"{directory.name}.{number}")


def restore_newest(
    run_dir: Path, run: Link, gang: Gang, *, on_quarantine: OnQuarantine = lambda _directory, _error: None
) -> Verified | None:
    """The newest good checkpoint of this run, the same on every rank; None when there is none yet.

    Rank 0 chooses and puts aside what does not verify; the others load exactly what it chose.

    Raises:
        ConfigError: the folder holds another run's checkpoints.
        IntegrityError: the chosen checkpoint reads differently on this rank.
    """
    checkpoints = run_dir / "checkpoints"

    def put_aside(directory: Path, error: IntegrityError) -> None:
        on_quarantine(quarantine(directory, run_dir / "quarantine"), error)

    found = latest_good(checkpoints, on_bad=put_aside) if gang.leads else None
    step = 0 if found is None else found.manifest.step
    chosen_step = int.from_bytes(gang.from_leader(step.to_bytes(8, "big")), "big")
    chosen = gang.from_leader(NOTHING if found is None else bytes.fromhex(found.manifest.sha256))
    if chosen == NOTHING:
        return None
    directory = checkpoints / layout.directory_name(chosen_step)
    verified = found or load_checkpoint(directory)
    if verified.manifest.sha256 != chosen.hex():
        raise IntegrityError("rank 0 reads another manifest here than this rank.", where=str(directory))
    if verified.manifest.run != run:
        raise ConfigError(
            f"the checkpoint belongs to {verified.manifest.run.short}, not to {run.short}.",
            where=str(directory),
            advice="Give every run a folder of its own with --run-dir.",
        )
    return verified
