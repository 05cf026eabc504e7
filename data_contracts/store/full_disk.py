"""A full disk under many names: the system's own error, a library's that quotes it, or one that says nothing of it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator

from headway.data_contracts.store.errors import EnvironmentProblem, HeadwayError, shortened

FULL_BYTES = 64 << 10
"""Less than this is free where a library just failed to write: torch speaks of an unexpected position then."""
ADVICE = (
    "Free some space there, or let TMPDIR name a larger folder for temporary files, and run again: "
    "finished stages are kept."
)


def is_out_of_space(error: BaseException) -> bool:
    """Whether the error says so: by number, or in the system's words, as DuckDB, Arrow and MLflow hand them on."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in str(error)


def as_full_disk(error: BaseException, *places: str) -> EnvironmentProblem | None:
    """What to say instead of the error when a full disk is behind it, naming the fullest of the places; else None."""
    if isinstance(error, EnvironmentProblem):
        return None
    # The fullest of the places: temporary files and the workspace may lie on different disks.
    free_bytes = {place: _free_bytes(place) for place in places}
    fullest = min(places, key=free_bytes.__getitem__)
    # torch and others report something else when a write fails; then the free space decides.
    is_silent = not isinstance(error, HeadwayError) and free_bytes[fullest] < FULL_BYTES
    if not is_silent and not is_out_of_space(error):
        return None
    message = shortened(error.what if isinstance(error, HeadwayError) else str(error), 200)
    return EnvironmentProblem(f"no space left ({type(error).__name__}: {message}).", where=fullest, advice=ADVICE)


def _free_bytes(place: str) -> float:
    # A place that cannot be asked is not blamed.
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return float("inf")


@contextlib.contextmanager
def naming_a_full_disk(*places: str) -> Iterator[None]:
    """Raises `EnvironmentProblem` for whatever fails in the body because one of the places is full."""
    try:
        yield
    except Exception as error:
        problem = as_full_disk(error, *places)
        if problem is None:
            raise
        raise problem from error
