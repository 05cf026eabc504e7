"""What is said where an answer is none of Prefect's, be it to our own questions or to those of Prefect's engine."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import httpx

from headway.data_contracts.store.errors import EnvironmentProblem, HeadwayError

MAX_MESSAGE_CHARS = 300
ANOTHER = "Let PREFECT_API_URL name a Prefect server that answers, and run again; what was finished is kept."
OF_CLIENT = "prefect.client."
"""Modules of Prefect that talk to a server, and nothing else does."""


def foreign_answer(url: str, error: Exception) -> EnvironmentProblem:
    """What is said of a server that answers, and not as Prefect does."""
    what = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_MESSAGE_CHARS]
    return EnvironmentProblem(
        f"what answers is not Prefect's API, or another version's ({what}).",
        where=url,
        advice=ANOTHER,
    )


@contextlib.contextmanager
def naming_foreign_answers(url: str) -> Iterator[None]:
    """Around a flow that tells this server of itself: Prefect's engine takes any answer for its server's, and what the
    answer leads to for the flow's own error.

    Raises:
        EnvironmentProblem: Prefect's client failed, be it that nobody answers.
    """
    try:
        yield
    except HeadwayError:
        raise
    except Exception as error:
        modules = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__))
        if not any(module.startswith(OF_CLIENT) for module in modules):
            raise
        if isinstance(error, httpx.HTTPError):
            raise EnvironmentProblem(
                f"the Prefect server refused, or went away: {error_message(error)}.", where=url, advice=ANOTHER
            ) from error
        raise foreign_answer(url, error) from error


def error_message(error: httpx.HTTPError) -> str:
    """What a server answered, or why it did not."""
    if isinstance(error, httpx.HTTPStatusError):
        text = " ".join(error.response.text.split())[:MAX_MESSAGE_CHARS]
        return f"{error.response.status_code} {text}".strip()
    return f"{type(error).__name__} {error}".strip()
