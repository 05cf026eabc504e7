"""Files that others write, opened to be read: what is none, a pipe say, keeps nobody waiting. Standard library only."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import Literal

PUT_BACK = "Move aside what lies there, and put the file back from a copy."


class NotRegular(FileNotFoundError):
    """Something lies there, and it is no file; for whoever reads what may be missing, it is."""

    def __init__(self, path: Path, mode: int) -> None:
        self.what = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"
        super().__init__(errno.ENOENT, f"{self.what}, not a file", str(path))


def open_unbuffered(path: Path) -> io.FileIO:
    """Errors as of `open_regular`."""
    # Before the open: opening a pipe would wait for its writer.
    try:
        status = path.stat()
    except NotADirectoryError as error:
        # A stray file where a folder belongs holds nothing: what would lie in it is missing.
        raise FileNotFoundError(errno.ENOENT, "what it would lie in is no folder", str(path)) from error
    require_regular(path, status)
    # Without waiting, should it have become a pipe since; then it is looked at once more.
    stream = io.FileIO(str(path), "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    return _checked(path, stream)


def _checked(path: Path, stream: io.FileIO) -> io.FileIO:
    """Looked at once it is open: by then nothing can take its place."""
    try:
        require_regular(path, os.fstat(stream.fileno()))
    except NotRegular:
        stream.close()
        raise
    return stream


def open_regular(path: Path) -> io.BufferedReader:
    """A file to be read.

    Raises:
        OSError: it is missing, or may not be read; `NotRegular`, too.
    """
    return io.BufferedReader(open_unbuffered(path))


def read_regular(path: Path, max_bytes: int | None = None) -> bytes:
    """The whole file, at most so long: what is longer is an error, for holes make a file of any length.

    Raises:
        OSError: as of `open_regular`, or it is longer.
    """
    with open_unbuffered(path) as stream:
        if max_bytes is not None and os.fstat(stream.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, f"longer than {max_bytes:,} bytes, and nothing of its kind is", str(path))
        return stream.readall()


def open_to_write(path: Path, mode: Literal["wb", "ab"]) -> io.FileIO:
    """A log under a name that can be guessed, unbuffered: another user who may write to its folder could put a link
    there, to a file that this user alone may write.

    Raises:
        OSError: it cannot be written; a link lies there; `NotRegular`, too.
    """
    flags_besides = os.O_NONBLOCK | os.O_NOFOLLOW
    stream = io.FileIO(str(path), mode, opener=lambda name, flags: os.open(name, flags | flags_besides, 0o666))
    return _checked(path, stream)


def open_in_place(path: Path) -> io.FileIO:
    """A record that is there, to be written over from its beginning, unbuffered; errors as of `open_to_write`."""
    flags_besides = os.O_NONBLOCK | os.O_NOFOLLOW
    stream = io.FileIO(str(path), "r+b", opener=lambda name, flags: os.open(name, flags | flags_besides))
    return _checked(path, stream)


def open_lock(path: Path) -> int:
    """A descriptor to be locked, of a file that is made if it is missing; no child inherits it, and with it the lock.

    Raises:
        OSError: it cannot be written; `NotRegular`, too.
    """
    # `O_NONBLOCK`: a pipe in the lock's place must not hold the process. `O_NOFOLLOW`: nor may a link in its place lead
    # to a file that whoever takes the lock then empties.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o644)
    try:
        require_regular(path, os.fstat(descriptor))
    except NotRegular:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(path: Path, status: os.stat_result) -> None:
    """Raises `NotRegular`: its status is of something else."""
    if not stat.S_ISREG(status.st_mode):
        raise NotRegular(path, status.st_mode)
