"""A Prometheus Pushgateway: where it is, and what it takes, by Prometheus's own client.

Nothing of its address is shown but scheme, host and port: the rest may be a password.
"""

from __future__ import annotations

import errno
import http.client
import os
import threading
import urllib.error
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from prometheus_client import push_to_gateway
from prometheus_client.exposition import basic_auth_handler, default_handler
from prometheus_client.registry import Collector

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.console.environment import PUSHGATEWAY

JOB = "headway"
"""As rules look for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushgateway:
    """Where a last word goes."""

    url: str = field(repr=False)
    user: str = field(repr=False)
    password: str = field(repr=False)
    shown: str
    """Its scheme, host and port."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Pushgateway:
        """Raises `ConfigError`: no address, or one that is none."""
        try:
            split = urlsplit(environ.get(PUSHGATEWAY, "").strip())
            host, port = split.hostname or "", split.port
        except ValueError:
            split, host, port = SplitResult("", "", "", "", ""), "", None
        if split.scheme not in ("http", "https") or not host:
            raise ConfigError(
                "no address of a Pushgateway.", where=PUSHGATEWAY, advice="Say one, such as http://localhost:9091"
            )
        named = f"[{host}]" if ":" in host else host
        place = named if port is None else f"{named}:{port}"
        return cls(
            url=urlunsplit((split.scheme, place, split.path, "", "")),
            user=unquote(split.username or ""),
            password=unquote(split.password or ""),
            shown=f"{split.scheme}://{place}",
        )

    def put(self, metrics: Collector, group: Mapping[str, str], within_s: float) -> None:
        """All metrics of the group: what was pushed for it before is gone.

        Raises:
            EnvironmentProblem: they were not taken.
        """
        try:
            push_to_gateway(self.url, JOB, metrics, dict(group), within_s, self._handler())
        except urllib.error.HTTPError as error:
            # A redirection is one, for a password is meant for this address alone.
            # Not what it says besides: a server may repeat what it was sent.
            raise self._refused(f"HTTP {error.code} {http.client.responses.get(error.code, '')}".strip()) from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            # A text may quote the address of a proxy, with its password.
            kind = type(error if isinstance(reason, str) else reason).__name__
            words = reason.strerror if isinstance(reason, OSError) and reason.strerror else kind
            raise self._refused(words) from None
        except ValueError as error:  # of an address that HTTP has no form for
            raise self._refused(type(error).__name__) from None

    def _handler(self) -> Callable[..., Callable[[], None]]:
        handler = default_handler
        if self.user or self.password:
            handler = partial(basic_auth_handler, username=self.user, password=self.password)

        def bounded(*, timeout: float | None, **rest: Any) -> Callable[[], None]:
            return partial(_within, timeout, handler(timeout=timeout, **rest))

        return bounded

    def _refused(self, what: str) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"the Pushgateway did not take the metrics: {what}.",
            where=self.shown,
            advice="See whether it answers there, and whether it wants a password.",
        )


def _within(seconds: float | None, act: Callable[[], None]) -> None:
    """Do it, for so long at most. Raises what it raises, or `TimeoutError`."""
    problems: list[Exception] = []

    def make() -> None:
        try:
            act()
        except Exception as error:
            problems.append(error)

    # The client's own limit is of each read, and an answer may come byte by byte for ever.
    thread = threading.Thread(target=make, name="metrics-put", daemon=True)
    thread.start()
    thread.join(seconds)
    if problems:
        raise problems[0]
    if thread.is_alive():
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
