"""Whom a Prefect server lets in: who may create flow runs on one runs code as its workers."""

from __future__ import annotations

import base64
import contextlib
import http
import http.client
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

ANSWER_WITHIN_S = 15.0
FOREIGN = "http://headway.invalid"
"""The origin of a page that no server of anybody's can mean."""
MAX_MESSAGE_BYTES = 1 << 16
"""Of an answer."""
HOW_TO_CLOSE = (
    "Start it with PREFECT_SERVER_API_AUTH_STRING=user:password, PREFECT_SERVER_CORS_ALLOWED_ORIGINS=its own address "
    "and PREFECT_SERVER_CSRF_PROTECTION_ENABLED=true, and give its clients and workers PREFECT_API_AUTH_STRING; "
    "`headway ui` does that by itself."
)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """urllib would give the next server the password too."""


_ASKING = urllib.request.build_opener(_NoRedirects)


def openness(api_url: str) -> str:
    """What is open, in one sentence with advice; empty where nothing is, or the server does not answer."""
    api = api_url.rstrip("/")
    open_to = []
    if answer_to(f"{api}/admin/version").status == 200:
        open_to.append("it asks nobody for a password, and who can reach it can have its workers run any code")
    if answer_to(f"{api}/health", Origin=FOREIGN).headers.get("access-control-allow-origin", "") in ("*", FOREIGN):
        open_to.append("any web page that a browser of its network shows may ask it")
    return f"the Prefect server {api} is open: {'; '.join(open_to)}. {HOW_TO_CLOSE}" if open_to else ""


def is_known(api_url: str, password: str) -> bool:
    """Whether a server that answers lets in who has this password; one that cannot tell does.

    Args:
        password: `user:password`; empty: none.
    """
    return answer_to(f"{api_url.rstrip('/')}/admin/version", **_basic(password)).status != http.HTTPStatus.UNAUTHORIZED


def is_prefect_server(api_url: str, password: str) -> bool:
    """Whether what a flow asks first is answered in Prefect's form, where it is answered; else its client crashes."""
    api = api_url.rstrip("/")
    version = answer_to(f"{api}/admin/version", **_basic(password))
    if version.status == http.HTTPStatus.OK and not isinstance(version.json(), str):
        return False
    token = answer_to(f"{api}/csrf-token?client={uuid.uuid4()}", **_basic(password))
    message = token.json()
    return token.status != http.HTTPStatus.OK or (isinstance(message, dict) and isinstance(message.get("token"), str))


def _basic(password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(password.encode()).decode()}"} if password else {}


class HttpAnswer(NamedTuple):
    status: int = 0
    """0: nobody answered."""
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""
    """Its beginning."""

    def json(self) -> Any:
        """None where it is not JSON, or too long."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def answer_to(url: str, **headers: str) -> HttpAnswer:
    """What this server says to this GET alone, be it where else to ask."""
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        try:
            with _ASKING.open(urllib.request.Request(url, headers=headers), timeout=ANSWER_WITHIN_S) as answer:
                return _read(answer.status, answer)
        except urllib.error.HTTPError as error:
            with error:
                return _read(error.code, error)
    return HttpAnswer()


def _read(status: int, answer: Any) -> HttpAnswer:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return HttpAnswer(status, headers, answer.read(MAX_MESSAGE_BYTES))
