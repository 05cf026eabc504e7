"""The password of the servers that Headway starts: drawn, never on a command line, and never in a log.

Prefect calls it the auth string: a user and a password with a colon between them, as HTTP basic authentication has it.
A server of one command draws one and keeps it to itself. That of `headway ui` lasts, so that workers and shells which
have it go on when the servers are started again: it lies in a file that its owner alone can read, beside Prefect's own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from headway.data_contracts.store.errors import EnvironmentProblem

USER = "headway"
FILE = "password"
RANDOM_BYTES = 24
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def new_password() -> str:
    """`user:password`, the password drawn."""
    return f"{USER}:{secrets.token_urlsafe(RANDOM_BYTES)}"


def password_file() -> Path:
    """Of this user's `headway ui`."""
    return private_folder() / FILE


def private_folder() -> Path:
    """What Headway keeps beside Prefect's records of this user; made, for this user alone.

    Raises:
        EnvironmentProblem: it cannot be made, or is another user's.
    """
    folder = _folder()
    try:
        if not folder.parent.exists():  # Prefect's database will lie there, and every log
            folder.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise PermissionError("it belongs to another user")
        folder.chmod(PRIVATE_FOLDER)
        for database in folder.parent.glob("prefect.db*"):  # that Prefect made, for everybody to read
            database.chmod(PRIVATE_FILE)
    except OSError as error:
        raise EnvironmentProblem(
            f"the folder for what only this user may read cannot be had ({error}).",
            where=str(folder),
            advice="Let PREFECT_HOME name a folder of your own.",
        ) from error
    return folder


def _folder() -> Path:
    return Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect").expanduser() / "headway"


def is_of_headway_ui(password: str) -> bool:
    """Whether this user's `headway ui` has drawn it: no server of another user's should ever hear it."""
    with contextlib.suppress(OSError):
        return bool(password) and _read(_folder() / FILE) == password
    return False


def kept_password(file: Path, draw: Callable[[], str] = new_password) -> str:
    """The password in `file`, drawn where there is none, or where others might have read it.

    Raises:
        EnvironmentProblem: it cannot be read or written.
    """
    try:
        return _read(file) or _write(file, draw())
    except OSError as error:
        raise EnvironmentProblem(f"the servers' password cannot be kept ({error}).", where=str(file)) from error


def _read(file: Path) -> str:
    """Empty where nothing trustworthy is there."""
    # No link is followed, and the opened file itself is looked at: a name may come to mean another file in between.
    with contextlib.suppress(FileNotFoundError), os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW)) as stream:
        status = os.fstat(stream.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & OF_OTHERS:
            return stream.read().strip()
    return ""


def _write(file: Path, drawn: str) -> str:
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")  # made with mode 0600
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"{drawn}\n")
    Path(name).replace(file)
    return drawn
