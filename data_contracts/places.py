"""Names of places: paths that stay within their folder, the local sides of remote workspaces, and refusals to write."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from data_contracts.digests import sha256_bytes
from data_contracts.errors import EnvironmentProblem, IntegrityError
from data_contracts.full_disk import is_out_of_space

LOCAL = "HEADWAY_LOCAL"
"""Environment: the folder that holds the local sides of remote workspaces; `headway` in the user's cache by default."""


def confined(relative: str) -> str:
    """`relative` itself, or `IntegrityError` when it could leave the folder it is relative to."""
    parts = relative.split("/")
    if not relative or "\\" in relative or "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise IntegrityError(f"path {relative!r} leaves the workspace.", advice="The document was tampered with.")
    return relative


def confined_in(folder: Path, relative: str) -> Path:
    """A path below the folder, symbolic links followed, or `IntegrityError`."""
    path = folder / confined(relative)
    try:
        is_inside = path.resolve().is_relative_to(folder.resolve())
    except RuntimeError as error:  # as Python calls a circle of links before 3.13
        raise IntegrityError("its links lead in a circle.", where=str(path)) from error
    if not is_inside:
        raise IntegrityError("a link leads out of the workspace.", where=str(path))
    return path


def local_side(uri: str, endpoint: str) -> Path:
    """The folder on this machine that belongs to a remote workspace."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(os.environ.get(LOCAL) or f"{cache}/headway").absolute()
    return folder / sha256_bytes(f"{endpoint} {uri}".encode())[:16]


def lost_place(place: Path, known: Path) -> EnvironmentProblem | None:
    """What to say when a place holds the file `known` no more, or may not be entered; else None."""
    try:
        known.stat()
    except (FileNotFoundError, NotADirectoryError):
        return EnvironmentProblem(
            "it is not there any more: moved, unmounted or deleted while in use. Nothing was written in its stead.",
            where=str(place),
            advice="Bring it back and run again: finished stages and checkpoints are in it, and no attempt counts.",
        )
    except OSError as error:
        return EnvironmentProblem(
            f"access to it was lost ({error.strerror}).",
            where=str(place),
            advice="Check its owner, mode and mount, and run again: finished stages and checkpoints are in it.",
        )
    return None


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what the operating system says of a file that cannot be read into an error that names it.

    Raises:
        FileNotFoundError, NotADirectoryError: there is none.
        IntegrityError: nothing of ours can have this name.
        EnvironmentProblem: it may not be read, or the disk fails.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise IntegrityError(f"cannot be a file of ours ({error.strerror}).", where=where) from error
        raise EnvironmentProblem(
            f"cannot be read ({error.strerror or error}).", where=where, advice="Check its owner, mode and disk."
        ) from error


@contextlib.contextmanager
def naming_the_place(place: str) -> Iterator[None]:
    """Turn the operating system's refusals into errors a person can act on."""
    try:
        yield
    except OSError as error:
        if is_out_of_space(error):
            raise EnvironmentProblem(
                "no space left while writing; nothing was published.",
                where=place,
                advice="Free some space and run again: finished stages are kept.",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise EnvironmentProblem(
                f"writing is refused ({error.strerror}); nothing was published.",
                where=place,
                advice="Check the workspace's owner and mode.",
            ) from error
        raise
