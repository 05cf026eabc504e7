"""What an exception in a rank means for the run: its cause decides whether another attempt can help.

Standard library and error classes only: torch's own exceptions are known by name, since this is imported before torch.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from headway.data_contracts.store.errors import Cause, HeadwayError, RunStopped, StopReason, shortened
from headway.data_contracts.store.full_disk import as_full_disk
from headway.data_contracts.store.plain_text import one_line
from headway.training.launch.base.record import read_record

EndState = Literal["done", "stopped", "failed"]
"""How a rank, an attempt or a job ended."""
TRACEBACK_CHARACTERS = 4000
MESSAGE_CHARACTERS = 300

# torch raises a plain RuntimeError where host memory is short; only its words say so.
_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|cannot allocate memory", re.IGNORECASE)
# gloo and TCPStore raise a plain RuntimeError too when a peer dies. Words are all there is to go by.
_PEER_GONE = re.compile(
    r"connection (was )?(closed|reset|refused)|connectFullMesh|timed? ?out waiting|timed out after|"
    r"wait timeout|broken pipe|socket (closed|timeout)|peer (is )?(gone|dead)",
    re.IGNORECASE,
)
_PEER_ERRORS = frozenset({"DistNetworkError", "DistStoreError", "DistBackendError"})


def cause_of(error: BaseException) -> Cause:
    """`oom`, `infrastructure` (a peer or the network went away), `training`, or the cause an error of ours carries."""
    if isinstance(error, HeadwayError):
        return error.cause
    names = {base.__name__ for base in type(error).__mro__}
    text = str(error)
    # Before the peers' patterns: a rank without memory may also report connections that broke.
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names:
        return "oom"
    if isinstance(error, RuntimeError) and _NO_MEMORY.search(text):
        return "oom"
    if isinstance(error, ConnectionError) or names & _PEER_ERRORS:
        return "infrastructure"
    if isinstance(error, RuntimeError) and _PEER_GONE.search(text):
        return "infrastructure"
    return "training"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why something ended before its end, in words that outlive its process: the same from a rank's marker to the
    failure card. Of a stop, which is no failure, the cause is `stopped`."""

    cause: str = ""
    """Empty where nothing failed. A text, for a frozen worker may know a cause that its supervisor does not."""
    error: str = ""
    """Class of the error."""
    exit_code: int = 1
    retryable: bool = False
    what: str = ""
    where: str = ""
    advice: str = ""
    reason: StopReason | None = None
    """Why it stopped; None where it did not, and of a rank that follows another's wish."""
    rank: int | None = None
    """The first that failed, on `host`; its stderr is `log`."""
    node: int | None = None
    host: str = ""
    log: str = ""

    @property
    def what_and_where(self) -> str:
        return f"{one_line(self.where)}: {self.what}" if self.where else self.what

    @classmethod
    def of(cls, error: BaseException, place: str = ".") -> Self:
        """Args:
        place: where the process writes, in case the disk is full.
        """
        # A full disk appears under many exceptions; what matters to the person is where it is full.
        error = as_full_disk(error, place) or error
        cause, name = cause_of(error), type(error).__name__
        if not isinstance(error, HeadwayError):
            # An unknown exception may come from a broken peer or a flaky device, so it is worth another attempt.
            is_passing = cause in ("infrastructure", "training")
            return cls(cause=cause, error=name, retryable=is_passing, what=_one_line(error))
        return cls(
            cause=cause,
            error=name,
            exit_code=error.exit_code,
            retryable=error.retryable,
            what=error.what,
            where=error.where,
            advice=error.advice,
            reason=error.reason if isinstance(error, RunStopped) else None,
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Unknown fields are left out; raises `ValueError`: it is none."""
        return read_record(cls, value)

    def to_error(self) -> HeadwayError | None:
        """The error that it was made of, with the same words; None where it was none of ours."""
        # By name, since a class cannot travel through JSON, and nothing read from a folder is unpickled.
        error_class = error_classes().get(self.error)
        if error_class is None:
            return None
        if issubclass(error_class, RunStopped):
            return error_class(self.what, where=self.where, advice=self.advice, reason=self.reason)
        return error_class(self.what, where=self.where, advice=self.advice)


NO_FAILURE = Failure()


def traceback_of(error: BaseException) -> str:
    # The end of a traceback holds the error; the beginning is our own start-up.
    return "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]


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
    text = shortened(str(error), MESSAGE_CHARACTERS)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
