"""Prefect's API for `headway deploy`: its client, and what goes wrong in words for a person."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.prefect_api.ephemeral_server import require_answer
from headway.flows.prefect_api.foreign_answers import error_message, foreign_answer

PAGE = 200
"""The most that Prefect hands out at once."""
MAX_FOUND = 100_000
"""Of what a filter finds: no project has so many, and a server that goes on for ever would fill the memory."""
NOT_AS_PREFECT = (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError)
"""What comes of reading an answer that has another form."""


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
                # Raises here where an entry is no object, and not at whoever uses it.
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
                advice="Make it there, on the page Blocks; what it knows stays on the server. Without one, give the "
                "profile `notify: none` in deployments/profiles.yaml: alerts then show on the server's pages alone.",
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
