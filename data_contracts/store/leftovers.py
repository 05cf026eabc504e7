"""What killed processes left behind, told from what living ones use: by a lock that the kernel drops with its holder.

A claim is a file that is locked for as long as its maker needs what it stands for: itself, as a staging file, or the
folder it lies in. Names carry the machine, since only there a free lock proves that nobody is left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import hashlib
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

# A digest of the host's name: names of files must not show it.
MACHINE = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
STAGING_SUFFIX = ".partial"
OWNER = ".owner"
"""The claim of a scratch folder, within it."""
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


def staging_name(name: str) -> str:
    """A name for a file that will be `name` once it is whole."""
    return f".{name}.{MACHINE}-{uuid.uuid4().hex}{STAGING_SUFFIX}"


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Make the file `path` and hold it: while the body runs, nobody takes it for a leftover.

    Raises:
        FileNotFoundError: its folder is not there.
    """
    descriptor = _claim(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _claim(path: Path) -> int:
    while True:
        # `O_NOFOLLOW`: a link put there would be locked, and removed, in the file's stead.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            # Waiting: whoever looks for leftovers holds the lock for a moment only.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return descriptor  # then nobody can lock it to remove it, either
            os.close(descriptor)
            raise
        # No link left: it was removed between its making and its locking, so another is made.
        if os.fstat(descriptor).st_nlink:
            return descriptor
        # Whoever looks for leftovers saw it between its making and its locking.
        os.close(descriptor)


def discard_if_abandoned(path: Path, discard: Callable[[], object] | None = None) -> bool:
    """Discard what the claim `path` stands for, the file itself by default, unless somebody holds it.

    Returns:
        Whether nobody did.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The name may have been removed while we waited for the lock.
        if os.fstat(descriptor).st_nlink:
            # Discarded while the lock is held, so nobody can take it up in between.
            (discard or path.unlink)()
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def is_held(claim: Path) -> bool:
    """Whether somebody on this machine holds a claim; True where that cannot be told."""
    try:
        descriptor = os.open(claim, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    # A shared lock, so that two who look do not take each other for the holder.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def scratch_folder(prefix: str, inside: Path | None = None) -> Iterator[Path]:
    """A folder for temporary files; it goes with the body, or, should this process be killed, when the next is made.

    Args:
        prefix: begins with `headway-`.
        inside: an existing folder, where there is more room than where temporary files lie by default.
    """
    # Others' leftovers go when a new folder is made: nobody else looks after a temporary directory.
    _discard_scratch(inside or Path(tempfile.gettempdir()))
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=inside))
        # Whoever cleans up may have removed the folder before it was claimed; then another is made.
        with contextlib.suppress(FileNotFoundError):
            descriptor = _claim(folder / OWNER)
            break
    try:
        yield folder
    finally:
        # The folder goes before the lock: until then nobody takes it for a leftover.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _discard_scratch(inside: Path) -> None:
    """Remove this user's scratch folders whose processes are gone."""
    for owner in inside.glob(f"headway-*/{OWNER}"):
        folder = owner.parent
        with contextlib.suppress(OSError):
            # Another user's folders are not ours to remove.
            if folder.stat().st_uid == os.geteuid():
                discard_if_abandoned(owner, lambda folder=folder: shutil.rmtree(folder, ignore_errors=True))  # type: ignore[misc]


@contextlib.contextmanager
def at_work_in(root: Path, sessions: Path) -> Iterator[Path]:
    """Be known as at work below `root` while the body runs; first remove what killed predecessors left unfinished.

    Looking through all of `root` takes time, so it happens only when there was such a predecessor.

    Args:
        sessions: the folder, below `root`, where those who are at work have their claims.

    Yields:
        The claim, a file.
    """
    sessions.mkdir(parents=True, exist_ok=True)
    for claim in sessions.glob(f"{MACHINE}-*"):
        # The claim goes last: an interrupted clean-up is taken up again by whoever comes next.
        discard_if_abandoned(claim, lambda claim=claim: _discard_unfinished(root) and claim.unlink())  # type: ignore[misc]
    own = sessions / f"{MACHINE}-{uuid.uuid4().hex}"
    with claimed(own):
        try:
            yield own
        finally:
            with contextlib.suppress(OSError):  # access to it was lost: what the body raised is what counts
                own.unlink(missing_ok=True)


def _discard_unfinished(root: Path) -> bool:
    """Whether every staging file of this machine could go; what is still being written will be looked for again."""
    # This machine's alone: on another, a free lock would say nothing.
    pattern = f".*.{MACHINE}-*{STAGING_SUFFIX}"
    found = [Path(folder, name) for folder, _, names in os.walk(root) for name in fnmatch.filter(names, pattern)]
    kept = [path for path in found if not discard_if_abandoned(path)]
    return not kept
