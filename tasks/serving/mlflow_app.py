"""MLflow's server behind a password: `mlflow server --app-name headway`, which finds this by its entry point.

MLflow itself refuses no user of the machine, and no page of a loopback address, whatever its port: what another program
serves here must not act with the password that a browser remembers. MLflow's own app `basic-auth` has users and rights
of theirs, and with them tables, a further package, and a slow hash at each request; one password for whoever may look
needs none of that.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

PASSWORD = "HEADWAY_MLFLOW_AUTH_STRING"
"""In the server's environment: `user:password`."""
HEALTH = "/health"
"""Open to everybody: it tells whether the server is up, and nothing else."""


def create() -> Application:
    """Called by the server, once for each of its processes; MLflow's command imports this module, too."""
    from mlflow.server.fastapi_app import app
    from mlflow.server.security_utils import get_allowed_origins_from_env

    if not (password := os.environ.get(PASSWORD, "")):
        raise SystemExit(f"{PASSWORD} is not set: it holds user:password")
    return behind_password(app, password, tuple(get_allowed_origins_from_env() or ()))


def behind_password(app: Application, password: str, origins: Collection[str] = ()) -> Application:
    """The application, for those who know the password, and for its own pages alone.

    Args:
        password: `user:password`, for HTTP basic authentication.
        origins: further ones whose pages may ask it.
    """
    wanted = b"Basic " + base64.b64encode(password.encode())

    async def guarded(scope: Message, receive: Receive, send: Send) -> None:
        is_open = scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] == HEALTH)
        given = dict(scope.get("headers", ()))
        # In constant time, so that answers tell nothing of how far a guess is right.
        knows = hmac.compare_digest(given.get(b"authorization", b""), wanted)
        if is_open or (knows and _is_own(given, origins)):
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif knows:
            await _refuse(send, 403, b"Pages of other origins may not ask it.\n")
        else:
            asks = (b"www-authenticate", b'Basic realm="Headway"')
            await _refuse(send, 401, b"It asks for the servers' password.\n", asks)

    return guarded


def _is_own(headers: Mapping[bytes, bytes], origins: Collection[str]) -> bool:
    """Whether a request comes from a page of the host that it names, or from no page. MLflow checks the host."""
    origin = headers.get(b"origin", b"").decode("latin-1").lower()
    host = headers.get(b"host", b"").decode("latin-1").lower()
    return not origin or origin in (f"http://{host}", f"https://{host}", *origins)


async def _refuse(send: Send, status: int, why: bytes, *headers: tuple[bytes, bytes]) -> None:
    headers = ((b"content-type", b"text/plain"), *headers)
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})
    await send({"type": "http.response.body", "body": why})
