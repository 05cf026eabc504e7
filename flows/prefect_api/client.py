"""Prefect's API for `headway deploy`: its client, and what goes wrong in words for a person."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem, HeadwayError
from headway.flows.prefect_api.ephemeral_server import require_answer

PAGE = 200
"""The most that Prefect hands out at once."""
MAX_MESSAGE_CHARS = 300
ANOTHER = "Let PREFECT_API_URL name a Prefect server that answers, and run again; what was finished is kept."
MAX_FOUND = 100_000
"""Of what a filter finds: no project has so many, and a server that goes on for ever would fill the memory."""
NOT_AS_PREFECT = (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError)
"""What comes of reading an answer that has another form."""
OF_CLIENT = "prefect.client."
"""Modules of Prefect that talk to a server, and nothing else does."""


class PrefectClient:
    """A Prefect server that answers."""

    def __init__(self, client: SyncPrefectClient, url: str) -> None:
        self._client, self.url = client, url

    def ask(self, method: str, path: str, body: Json = None) -> Any:
        """The answer's JSON; None where it has none.

        Raises:
            EnvironmentProblem: what answers is no Prefect server.
            httpx.HTTPError: refused, or no answer; `error_message` puts it in words.
        """
        client: Any = self._client  # its types know constant paths alone
        answer = client.request(method, path, json=body)
        with self.reading():
            return answer.json() if answer.content else None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Around the lines that take what they need from an answer: whoever answers may say anything.

        Raises:
            EnvironmentProblem: it has not what Prefect's has.
        """
        try:
            yield
        except NOT_AS_PREFECT as error:
            raise foreign_answer(self.url, error) from error

    def all(self, path: str) -> list[dict[str, Any]]:
        """Every one that a filter without conditions finds."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.ask("POST", path, {"limit": PAGE, "offset": len(found)})
            with self.reading():
                found.extend(each | {} for each in page)
                if len(page) < PAGE:
                    return found
                if len(found) > MAX_FOUND:
                    raise ValueError(f"{path} finds more than {MAX_FOUND:,}")

    def notification_block(self, slug: str) -> str:
        """The id of the block called `type/name`.

        Raises:
            ConfigError: there is none.
        """
        kind, name = slug.split("/")
        try:
            block = self.ask("GET", f"/block_types/slug/{kind}/block_documents/name/{name}")
            with self.reading():
                return str(block["id"])
        except PrefectHTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            raise ConfigError(
                f"the Prefect server {self.url} has no block {slug!r}.",
                where="notify",
                advice="Make it there, on the page Blocks; what it knows stays on the server.",
            ) from error


@contextlib.contextmanager
def connected() -> Iterator[PrefectClient]:
    """The server that is configured.

    Raises:
        EnvironmentProblem: none is, or it does not answer, or refuses to.
    """
    url = PREFECT_API_URL.value()
    if not url:
        raise EnvironmentProblem(
            "no Prefect server is named.",
            where="PREFECT_API_URL",
            advice="Name one, such as PREFECT_API_URL=http://127.0.0.1:4200/api; `headway ui` starts one there.",
        )
    require_answer(url)
    try:
        with get_client(sync_client=True) as client:
            yield PrefectClient(client, url)
    except httpx.HTTPError as error:
        raise EnvironmentProblem(f"the Prefect server refused: {error_message(error)}.", where=url) from error


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
