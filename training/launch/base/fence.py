"""An attempt's fence: the right to publish for a run, which is revoked when a later attempt starts.

A cut link, or a rank that is halted, may leave an attempt behind that goes on while the next one runs elsewhere.
So all that a rank publishes for its run is staged in a folder of its attempt, and comes to its place by a rename out of
it. Who begins an attempt takes the folders of all earlier ones away first, each by one rename, and a rename out of one
that is gone fails, whenever its caller last looked: what an attempt publishes is there before the next one begins, or
never. What it deletes, or quarantines, goes the other way: by a rename into that folder, which fails as well. A
quarantine that was interrupted is completed by whoever revokes the fence.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.data_contracts.store.errors import EnvironmentProblem, Superseded
from headway.data_contracts.store.leftovers import staging_name
from headway.training.launch.base.protocol import FENCE, attempt_numbers

NAME = "fence"
REVOKED = f"{NAME}.revoked"
"""What is left of one that could not be removed at once: a file in it may still be open."""


def acquire(run_dir: Path, attempt: Path) -> None:
    """Acquire the fence of a new attempt, once that of every earlier one is revoked.

    Raises:
        EnvironmentProblem: one cannot be taken away.
        Superseded: a later attempt has begun meanwhile.
    """
    number, attempts = int(attempt.name), run_dir / "attempts"
    # All earlier ones, not the last alone: one that could not be revoked at the time may still be there.
    for earlier in (each for each in _numbers(attempts) if each < number):
        _revoke(attempts / f"{earlier:03d}")
    # Only then does its own exist: at no moment can two attempts publish.
    (attempt / NAME).mkdir()
    # A later attempt may have begun between the listing and the `mkdir`; it saw no folder here to revoke.
    if max(_numbers(attempts)) > number:
        _revoke(attempt)
        AttemptFence(attempt / NAME).require()


def _numbers(attempts: Path) -> list[int]:
    return [*attempt_numbers(attempts)]


def _revoke(attempt: Path) -> None:
    try:
        # One rename revokes everything below at once; deleting file by file would leave moments of half a fence.
        (attempt / NAME).rename(attempt / REVOKED)
    except FileNotFoundError:
        pass  # never acquired, or revoked already; what could not be removed then is tried again
    except OSError as error:
        raise EnvironmentProblem(
            f"an earlier attempt cannot be kept from publishing ({error.strerror}).",
            where=str(attempt / NAME),
            advice="Check the folder's owner, mode and disk, and run again.",
        ) from error
    with contextlib.suppress(OSError):  # then it stays, and the next attempt tries again
        for passage in (attempt / REVOKED).glob("[!.]*/"):
            # What was on its way to quarantine is kept; what the attempt had only staged is of no use to anybody.
            for path in passage.iterdir():
                path.rename(_free_place(attempt.parent.parent / passage.name, path.name))
        shutil.rmtree(attempt / REVOKED, ignore_errors=True)


def _free_place(folder: Path, name: str) -> Path:
    """Where something of that name can be put, beside others that had it."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = {path.name for path in folder.iterdir()}
    # Numbered: two damaged checkpoints of one step may be quarantined, and both are evidence.
    return next(folder / f"{name}.{number}" for number in itertools.count() if f"{name}.{number}" not in taken)


@dataclass(frozen=True, slots=True)
class AttemptFence:
    """What a rank holds: the folder, or None where nobody supervises it, and nothing is refused."""

    folder: Path | None = None

    @property
    def is_revoked(self) -> bool:
        """Whether the folder is gone; one that cannot be asked for is not."""
        if self.folder is None:
            return False
        try:
            self.folder.stat()
        except FileNotFoundError:
            return True
        except OSError:
            # A file system that does not answer is no sign of a later attempt; the rename itself will still decide.
            return False
        return False

    def require(self) -> None:
        """Raises `Superseded`."""
        if self.is_revoked:
            raise self.refusal()

    def refusal(self) -> Superseded:
        assert self.folder is not None
        own = self.folder.parent
        with contextlib.suppress(OSError, ValueError):
            newest = max(_numbers(own.parent))
            if newest > int(own.name):
                return Superseded(
                    f"attempt {newest} has started: attempt {int(own.name)} publishes nothing any more.", where=str(own)
                )
        return Superseded("the fence was revoked: a later attempt may run.", where=str(own))

    @contextlib.contextmanager
    def fenced(self) -> Iterator[None]:
        """What is published in the body is published under the fence.

        Raises:
            Superseded: it was not, for a later attempt has begun.
        """
        self.require()
        try:
            yield
        except FileNotFoundError:
            self.require()
            # The folder that is missing may be the fence, which is revoked, or the body's own file, which is an error.
            raise

    def take_out(self, path: Path) -> Path:
        """Move what the run has made to where only this attempt knows it. Returns where it is now.

        It goes for good with the fence. Without one nobody else is there, and it stays where it was.

        Raises:
            FileNotFoundError: it is not there.
            Superseded: a later attempt has begun, and may use it; it stays where it was.
        """
        if self.folder is None:
            return path
        with self.fenced():
            # A fresh name: the attempt may take out a file of the same name more than once.
            return path.rename(self.folder / staging_name(path.name))

    def quarantine(self, path: Path, folder: Path) -> Path:
        """Move what the run has made to another folder of the run's, where it is kept. Returns where it is now.

        Whoever is killed on the way leaves it to the next attempt, which moves it on.

        Raises:
            FileNotFoundError: it is not there.
            Superseded: a later attempt has begun, and may use it; it stays where it was.
        """
        place = _free_place(folder, path.name)
        if self.folder is None:
            return path.rename(place)
        with self.fenced():
            passage = self.folder / folder.name
            passage.mkdir(exist_ok=True)
            # Two renames: the first fails if the fence is gone, the second is completed by the next attempt if we die.
            return path.rename(passage / path.name).rename(place)


NO_FENCE = AttemptFence()
"""Of ranks that nobody supervises."""


def fence_of(environment: Mapping[str, str]) -> AttemptFence:
    """What whoever started this process gave it."""
    folder = environment.get(FENCE)
    return AttemptFence(None if folder is None else Path(folder))
