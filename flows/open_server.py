"""Whom a Prefect server lets in: who may create flow runs on one runs code as its workers."""

from __future__ import annotations

import base64
import contextlib
import http
import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping

ANSWER_WITHIN_S = 15.0
FOREIGN = "http://headway.invalid"
"""The origin of a page that no server of anybody's can mean."""
HOW_TO_CLOSE = (
    "Start it with PREFECT_SERVER_API_AUTH_STRING=user:password, PREFECT_SERVER_CORS_ALLOWED_ORIGINS=its own address "
    "and PREFECT_SERVER_CSRF_PROTECTION_ENABLED=true, and give its clients and workers PREFECT_API_AUTH_STRING; "
    "`headway ui` does that by itself."
)


class _GoesNowhereElse(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """urllib would give the next server the password too."""


_ASKING = urllib.request.build_opener(_GoesNowhereElse)


def openness(api_url: str) -> str:
    """What is open, in one sentence with advice; empty where nothing is, or the server does not answer."""
    api = api_url.rstrip("/")
    open_to = []
    if status_and_headers(f"{api}/admin/version")[0] == 200:
        open_to.append("it asks nobody for a password, and who can reach it can have its workers run any code")
    _, headers = status_and_headers(f"{api}/health", Origin=FOREIGN)
    if headers.get("access-control-allow-origin", "") in ("*", FOREIGN):
        open_to.append("any web page that a browser of its network shows may ask it")
    return f"the Prefect server {api} is open: {'; '.join(open_to)}. {HOW_TO_CLOSE}" if open_to else ""


def is_known(api_url: str, password: str) -> bool:
    """Whether a server that answers lets in who has this password; one that cannot tell does.

    Args:
        password: `user:password`; empty: none.
    """
    basic = {"Authorization": f"Basic {base64.b64encode(password.encode()).decode()}"} if password else {}
    return status_and_headers(f"{api_url.rstrip('/')}/admin/version", **basic)[0] != http.HTTPStatus.UNAUTHORIZED


def status_and_headers(url: str, **headers: str) -> tuple[int, Mapping[str, str]]:
    """What this server says to this GET alone, be it where else to ask; 0 where nobody answers."""
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        try:
            with _ASKING.open(urllib.request.Request(url, headers=headers), timeout=ANSWER_WITHIN_S) as answer:
                return answer.status, {name.lower(): value for name, value in answer.headers.items()}
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {name.lower(): value for name, value in error.headers.items()}
    return 0, {}
