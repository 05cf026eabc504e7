"""A receiver of OTLP over HTTP: it decodes what it is sent by OpenTelemetry's own messages, and answers as told."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.loopback_server import serving


@dataclass
class Received:
    path: str
    headers: Mapping[str, str]
    """By their names in small letters."""
    body: bytes
    """As it came."""

    @property
    def data(self) -> bytes:
        return gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body

    @property
    def request(self) -> Any:
        return ExportTraceServiceRequest.FromString(self.data)

    @property
    def resource(self) -> dict[str, Any]:
        (one,) = self.request.resource_spans
        return attributes(one.resource.attributes)

    @property
    def spans(self) -> list[Any]:
        return [span for one in self.request.resource_spans for scope in one.scope_spans for span in scope.spans]


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@dataclass
class Collector:
    url: str = ""
    received: list[Received] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    """To answer with, one after another; 200 after them."""
    answer: bytes = field(default_factory=lambda: ExportTraceServiceResponse().SerializeToString())
    location: str = ""
    silent: threading.Event = field(default_factory=threading.Event)
    """Set: nothing is answered before `ended` is set, too."""
    ended: threading.Event = field(default_factory=threading.Event)
    drips: threading.Event = field(default_factory=threading.Event)
    """Set: the answer comes byte by byte, and never comes to its end before `ended` is set."""

    @property
    def spans(self) -> list[Any]:
        return [span for each in self.received for span in each.spans]


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.received.append(Received(self.path, self.lower(), body))
            if found.silent.is_set():
                found.ended.wait()
            status = found.statuses.pop(0) if found.statuses else 200
            self.send_response(status)
            if found.location:
                self.send_header("Location", found.location)
            self.send_header("Content-Length", str(1 << 20 if found.drips.is_set() else len(found.answer)))
            self.end_headers()
            while found.drips.is_set() and not found.ended.wait(0.05):
                self.wfile.write(b"\0")
            self.wfile.write(found.answer)

        def do_GET(self) -> None:
            found.received.append(Received(self.path, self.lower(), b""))
            self.send_error(404)

        def lower(self) -> dict[str, str]:
            return {name.lower(): value for name, value in self.headers.items()}

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler, found.ended) as found.url:
        yield found
