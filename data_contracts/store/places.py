"""Names of places: paths that stay within their folder, the local sides of remote workspaces, and refusals to write."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from headway.data_contracts.store.errors import EnvironmentProblem, IntegrityError
from headway.data_contracts.store.full_disk import is_out_of_space
from headway.data_contracts.store.regular_files import PUT_BACK, NotRegular

NO_RIGHT = (errno.EACCES, errno.EPERM)
MISPLACED = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
"""A folder lies where a file belongs, or the other way around, or a loop of links."""
UNUSABLE = (
    *(*NO_RIGHT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO),
    *(errno.EHOSTDOWN, errno.ETIMEDOUT, *MISPLACED),
)
"""What the system answers of a place that is there and cannot be used: no right to it, or its mount or disk fails."""
PUT_RIGHT = "Put right what lies at that path, such as a file where a folder belongs, and run again."
LOCAL = "HEADWAY_LOCAL"
"""Environment: the folder that holds the local sides of remote workspaces; `headway` in the user's cache by default."""
PRIVATE = 0o700
"""A new workspace, and the local side of one, is its user's alone: it holds data, models and what decides which model
serves."""
COMPILED = "TORCHINDUCTOR_CACHE_DIR"
"""Environment: where torch keeps compiled code."""


def confined(relative: str) -> str:
    """`relative` itself, or `IntegrityError` when it could leave the folder it is relative to."""
    parts = relative.split("/")
    # By parts, not by resolving: this also holds for paths that do not exist, and for object stores.
    if not relative or "\\" in relative or "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise IntegrityError(f"path {relative!r} leaves the workspace.", advice="The document was tampered with.")
    return relative


def confined_in(folder: Path, relative: str) -> Path:
    """A path below the folder, symbolic links followed, or `IntegrityError`."""
    path = folder / confined(relative)
    try:
        # Links are followed for the check: one inside the workspace may lead out of it.
        is_inside = path.resolve().is_relative_to(resolved(folder))
    except RuntimeError as error:  # as Python calls a circle of links before 3.13
        raise IntegrityError("its links lead in a circle.", where=str(path), advice=PUT_RIGHT) from error
    if not is_inside:
        raise IntegrityError("a link leads out of the workspace.", where=str(path), advice=PUT_BACK)
    return path


def local_side(uri: str, endpoint: str) -> Path:
    """The folder on this machine that belongs to a remote workspace."""
    # By the endpoint too: two stores may have a bucket of one name.
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(os.environ.get(LOCAL) or f"{cache}/headway").absolute()
    # Here alone, for ranks and guards that start import this module, and nothing that is no part of Python.
    from headway.data_contracts.store.digests import sha256_bytes

    return folder / sha256_bytes(f"{endpoint} {uri}".encode())[:16]


def entries(folder: Path) -> list[Path]:
    """What lies directly in a folder, sorted; nothing where it is not there.

    Unlike `Path.glob`, for which a folder that may not be listed is an empty one.

    Raises:
        OSError: it may not be listed.
    """
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def all_named(name: str, folder: Path) -> Iterator[Path]:
    """Files and folders of that name at any depth, links to folders not followed.

    Raises:
        OSError: a folder may not be listed.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    # A folder that may not be listed must not look like one that holds nothing.
    for inside, folders, files in os.walk(folder, onerror=refuse):
        if name in folders or name in files:
            yield Path(inside, name)


def resolved(path: Path) -> Path:
    """With symbolic links followed. Raises `OSError`: they lead in a circle."""
    try:
        return path.resolve()
    except RuntimeError as error:  # pathlib's word for it
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error


def real(path: Path) -> Path:
    """With symbolic links followed, as far as they lead anywhere; `stat` says what is wrong with those that do not."""
    return Path(os.path.realpath(path))


def at_home(path: str) -> Path:
    """A path as a person writes it: `~` is a home, where there is such a user."""
    # pathlib's own raises where there is none, as of a file whose name begins with `~`.
    return Path(os.path.expanduser(path))  # noqa: PTH111


def require_usable(place: Path) -> None:
    """A folder that is not there yet is fine: whoever writes makes it.

    Raises:
        EnvironmentProblem: what is there is no folder, may not be looked into, or lies on a mount that fails.
    """
    try:
        # Listed and entered: a mount that is gone answers the one and not the other.
        with os.scandir(place) as entries:
            next(entries, None)
        (place / ".").stat()  # to enter it is a right of its own
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(place, error) from error


def as_unusable(error: BaseException, places: Iterable[Path]) -> EnvironmentProblem | None:
    """What to say instead of the system's refusal of a file in one of the places; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in UNUSABLE:
        return None
    # Only files in our places: a missing library is no trouble of the workspace.
    named = [Path(os.fsdecode(name)) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    held = [place for place in places if any(path.is_relative_to(place) for path in named)]
    # The outermost of them, which is what a person can put right.
    return _unusable(min(held, key=lambda place: len(place.parts)), error) if held else None


def _unusable(place: Path, error: OSError) -> EnvironmentProblem:
    if error.errno in NO_RIGHT:
        advice = f"Run as who owns it ({_owner(place)}), or have its owner and mode changed."
    elif error.errno == errno.EROFS:
        advice = "Have it mounted for writing, then run again."
    elif error.errno in MISPLACED:
        advice = "Put right what lies at that path, or name another workspace with --workspace."
    else:
        advice = "Look after its disk or its mount, then run again: what is finished is in it."
    name = os.fsdecode(error.filename or "")
    file = f" at {name}" if name and Path(name) != place else ""
    return EnvironmentProblem(f"it cannot be used ({error.strerror or error}{file}).", where=str(place), advice=advice)


def _owner(place: Path) -> str:
    """Whose it is, as far as that can be seen from outside."""
    try:
        return place.owner()
    except (OSError, KeyError):
        return "not to be seen from outside"


def lost_place(place: Path, known: Path, *, to_write: bool = False) -> EnvironmentProblem | None:
    """What to say when a place holds `known` no more, or may not be entered; else None.

    Args:
        to_write: `known` is a file, and has to be one that this process may still write to.
    """
    try:
        known.stat()
        if to_write:
            # Opened for writing: a mount that became read-only still answers `stat`.
            os.close(os.open(known, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
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
        # Names and links that the system cannot follow come from a damaged document, not from the disk.
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise IntegrityError(f"cannot be a file of ours ({error.strerror}).", where=where) from error
        raise EnvironmentProblem(
            f"cannot be read ({error.strerror or error}).", where=where, advice="Check its owner, mode and disk."
        ) from error


@contextlib.contextmanager
def naming_the_place(place: str) -> Iterator[None]:
    """Turn the operating system's refusals into errors a person can act on.

    Raises:
        EnvironmentProblem: there is no space, or writing is refused.
        IntegrityError: nothing of ours can have this name.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise IntegrityError(f"cannot be a file of ours ({error.strerror}).", where=place) from error
        if is_out_of_space(error):
            raise EnvironmentProblem(
                "no space left while writing; nothing was published.",
                where=place,
                advice="Free some space and run again: finished stages are kept.",
            ) from error
        if error.errno in UNUSABLE or isinstance(error, NotRegular):
            raise EnvironmentProblem(
                f"writing is refused ({error.strerror}); nothing was published.",
                where=place,
                advice=PUT_RIGHT if error.errno in MISPLACED else "Check the workspace's owner, mode and mount.",
            ) from error
        raise


def keep_compiled_code_private() -> None:
    """For this process and its children, before torch works; what the environment says already stays.

    By itself torch takes /tmp/torchinductor_USER, and loads what it finds there unasked: who makes that first decides
    what code the ranks run. It wants the folder even to export.
    """
    if COMPILED not in os.environ:
        os.environ[COMPILED] = _private_folder()
    # Headers that it compiles once for all stay in /tmp whatever is set, and are part of what it compiles.
    os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")


def _private_folder() -> str:
    """One that no other user can have made. torch makes it where it needs it."""
    with contextlib.suppress(RuntimeError):  # nobody knows a home of this user's
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        # The folder itself may not exist yet; whether it can be made is for the one above it to say.
        above = next(folder for folder in (cache, *cache.parents) if folder.exists())
        if cache.is_absolute() and os.access(above, os.W_OK | os.X_OK):
            return str(cache / "headway" / "torch")
    import tempfile  # which takes time, and is hardly ever wanted here

    # Unguessable, since /tmp is everybody's: a name that can be guessed could be made by another first.
    return f"{tempfile.gettempdir()}/headway-torch-{secrets.token_hex(16)}"
