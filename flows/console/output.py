"""What commands print or write, without Rich, whose import a quick command does not pay for: lines, JSON, whole files.

A test keeps `print` out of every other module of flows.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

from pydantic import BaseModel

from headway.data_contracts.store import plain_text
from headway.data_contracts.store.errors import EnvironmentProblem

T = TypeVar("T")


def print_line(text: str, stream: TextIO | None = None) -> None:
    """Text that stays on its line; said at once.

    Args:
        stream: stdout by default.
    """
    print(plain_text.line(text), file=stream or sys.stdout, flush=True)


def print_lines(text: str, stream: TextIO | None = None) -> None:
    """Text of several lines, such as an error's message."""
    print(plain_text.lines(text), file=stream or sys.stdout, flush=True)


def require_writable(path: Path) -> None:
    """For what takes long to make: nothing is written.

    Raises:
        EnvironmentProblem: `write_whole` could not write there.
    """
    folder = path.parent
    fits = os.access(folder, os.W_OK | os.X_OK) and folder.is_dir() and (path.is_file() or not path.exists())
    if not fits:
        raise EnvironmentProblem(
            "it cannot be written.", where=str(path), advice="Name a file in a folder that this user may write."
        )


def write_whole(path: Path, data: bytes, *, is_public: bool = False) -> None:
    """A file that others read again and again: the one before, or this one, and never half of it.

    Args:
        is_public: other users read it whatever this one's umask is, such as a collector of metrics.

    Raises:
        EnvironmentProblem: it cannot be written there.
    """
    try:
        if path.exists() and not path.is_file():
            # For root a rename would put the file in a device's place, and /dev/null is every program's.
            raise FileExistsError(errno.EEXIST, "it is no file, and is not replaced")
        # In the same folder, or a rename would not be atomic; hidden, for some readers take all files of a folder.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as staging:
            try:
                staging.write(data)
                staging.flush()
                os.fsync(staging.fileno())
                os.fchmod(staging.fileno(), 0o644 if is_public else 0o666 & ~_umask())
                Path(staging.name).replace(path)
            except BaseException:
                Path(staging.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise EnvironmentProblem(
            f"it cannot be written ({error.strerror}).",
            where=str(path),
            advice="Name a file in a folder that this user may write.",
        ) from error


def _umask() -> int:
    """The kernel tells it to nobody who does not set it."""
    found = os.umask(0o077)
    os.umask(found)
    return found


def print_to_terminal(text: str) -> None:
    """A word to who waits at a terminal; scripts and logs are spared it."""
    if sys.stderr.isatty():
        print_line(f"headway: {text}", sys.stderr)


@contextlib.contextmanager
def only_shown(what: str) -> Iterator[None]:
    """Around what shows what was done: a failure is reported, and changes neither what was done nor the exit code.

    A closed pipe has nobody to be told.
    """
    try:
        yield
    except Exception as error:
        with contextlib.suppress(OSError):
            message = f"{what} could not be shown ({type(error).__name__}: {error}); what it is about was done."
            print_line(f"headway: {message}", sys.stderr)


def print_json(value: BaseModel | Any, stream: TextIO | None = None) -> None:
    """One line, ASCII alone: every other character is an escape of JSON's."""
    shown = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    print(json.dumps(shown, default=str), file=stream or sys.stdout, flush=True)


def emit(value: T, show: Callable[[T], object], *, as_json: bool) -> None:
    """What a command found: JSON for machines, or shown to people."""
    if as_json:
        print_json(value)
    else:
        show(value)
