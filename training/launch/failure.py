"""What an exception in a rank means for the run: its cause decides whether another attempt can help.

Standard library and error classes only: torch's own exceptions are known by name, since this is imported before torch.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from typing import Any

from data_contracts.errors import HeadwayError, RunStopped, shortened
from data_contracts.full_disk import as_full_disk

TRACEBACK_CHARACTERS = 4000
WORDS_CHARACTERS = 300

_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|cannot allocate memory", re.IGNORECASE)
_PEER_GONE = re.compile(
    r"connection (was )?(closed|reset|refused)|connectFullMesh|timed? ?out waiting|timed out after|"
    r"wait timeout|broken pipe|socket (closed|timeout)|peer (is )?(gone|dead)",
    re.IGNORECASE,
)
_PEER_ERRORS = frozenset({"DistNetworkError", "DistStoreError", "DistBackendError"})


def cause_of(error: BaseException) -> str:
    """`oom`, `infrastructure` (a peer or the network went away), `training`, or the cause an error of ours carries."""
    if isinstance(error, HeadwayError):
        return error.cause
    names = {base.__name__ for base in type(error).__mro__}
    text = str(error)
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names:
        return "oom"
    if isinstance(error, RuntimeError) and _NO_MEMORY.search(text):
        return "oom"
    if isinstance(error, ConnectionError) or names & _PEER_ERRORS:
        return "infrastructure"
    if isinstance(error, RuntimeError) and _PEER_GONE.search(text):
        return "infrastructure"
    return "training"


def describe(error: BaseException, place: str = ".") -> dict[str, Any]:
    """Fields of a rank's marker.

    Args:
        place: where the rank writes, in case the disk is full.
    """
    error = as_full_disk(error, place) or error
    cause = cause_of(error)
    if isinstance(error, HeadwayError):
        words = {"what": error.what, "where": error.where, "advice": error.advice}
        code, retryable = error.exit_code, error.retryable
    else:
        words = {"what": _one_line(error)}
        code, retryable = 1, cause in ("infrastructure", "training")
    if isinstance(error, RunStopped):
        words["reason"] = error.reason or ""
    text = "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]
    return (
        {"cause": cause, "error": type(error).__name__, "exit_code": code, "retryable": retryable}
        | words
        | {"traceback": text}
    )


def rebuilt(fields: Mapping[str, Any]) -> HeadwayError | None:
    """The error that was described, with the same words; None where it was none of ours."""
    error_class = error_classes().get(str(fields.get("error", "")))
    if error_class is None:
        return None
    words = {name: str(fields.get(name, "")) for name in ("where", "advice")}
    if issubclass(error_class, RunStopped):
        return error_class(str(fields.get("what", "")), **words, reason=fields.get("reason") or None)
    return error_class(str(fields.get("what", "")), **words)


def error_classes() -> dict[str, type[HeadwayError]]:
    """Ours, by name."""
    found: dict[str, type[HeadwayError]] = {}
    unseen: list[type[HeadwayError]] = [HeadwayError]
    while unseen:
        error_class = unseen.pop()
        found[error_class.__name__] = error_class
        unseen += error_class.__subclasses__()
    return found


def _one_line(error: BaseException) -> str:
    text = shortened(str(error), WORDS_CHARACTERS)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
