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

PAGE = 200
"""The most that Prefect hands out at once."""
MAX_MESSAGE_CHARS = 300


class PrefectClient:
    """A Prefect server that answers."""

    def __init__(self, client: SyncPrefectClient, url: str) -> None:
        self._client, self.url = client, url

    def ask(self, method: str, path: str, body: Json = None) -> Any:
        """The answer's JSON; None where it has none.

        Raises:
            httpx.HTTPError: refused, or no answer; `error_message` puts it in words.
        """
        client: Any = self._client  # its types know constant paths alone
        answer = client.request(method, path, json=body)
        return answer.json() if answer.content else None

    def all(self, path: str) -> list[dict[str, Any]]:
        """Every one that a filter without conditions finds."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.ask("POST", path, {"limit": PAGE, "offset": len(found)})
            found.extend(page)
            if len(page) < PAGE:
                return found

    def notification_block(self, slug: str) -> str:
        """The id of the block called `type/name`.

        Raises:
            ConfigError: there is none.
        """
        kind, name = slug.split("/")
        try:
            return str(self.ask("GET", f"/block_types/slug/{kind}/block_documents/name/{name}")["id"])
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


def error_message(error: httpx.HTTPError) -> str:
    """What a server answered, or why it did not."""
    if isinstance(error, httpx.HTTPStatusError):
        text = " ".join(error.response.text.split())[:MAX_MESSAGE_CHARS]
        return f"{error.response.status_code} {text}".strip()
    return f"{type(error).__name__} {error}".strip()
