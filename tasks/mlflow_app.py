"""MLflow's server behind a password: `mlflow server --app-name headway`, which finds this by its entry point.

MLflow itself refuses a foreign Host and Origin, but not another user of the machine. Its own app `basic-auth` has users
and rights of theirs, and with them tables, a further package, and a slow hash at each request; one password for
whoever may look needs none of that.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
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

    if not (password := os.environ.get(PASSWORD, "")):
        raise SystemExit(f"{PASSWORD} is not set: it holds user:password")
    return behind_password(app, password)


def behind_password(app: Application, password: str) -> Application:
    """The application, for those who know the password.

    Args:
        password: `user:password`, for HTTP basic authentication.
    """
    wanted = b"Basic " + base64.b64encode(password.encode())

    async def guarded(scope: Message, receive: Receive, send: Send) -> None:
        is_open = scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] == HEALTH)
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if is_open or hmac.compare_digest(given, wanted):
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"www-authenticate", b'Basic realm="Headway"'), (b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"It asks for the servers' password.\n"})

    return guarded
