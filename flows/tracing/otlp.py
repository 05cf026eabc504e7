"""OTLP over HTTP, as binary protobuf: where the standard variables say, encoded by OpenTelemetry's own messages.

Nothing of an endpoint is shown but its host and port: paths, parameters and headers carry keys.
"""

from __future__ import annotations

import base64
import gzip
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem

if TYPE_CHECKING:
    from headway.flows.tracing.spans import Attributes, Trace, TraceSpan

SERVICE = "headway"
"""Without `OTEL_SERVICE_NAME`."""
MAX_ANSWER_BYTES = 64 << 10
TRY_AGAIN = frozenset({408, 429, 502, 503, 504})
AGAIN_S = 0.5
"""Before the second try; doubles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where traces go."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    """May hold keys."""
    shown: str
    """Its scheme, host and port."""
    is_compressed: bool
    tls: ssl.SSLContext | None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Endpoint:
        """As OpenTelemetry's specification has it: what is said of traces goes before what is said of all.

        Raises:
            ConfigError: no endpoint, or one that this cannot speak to.
        """
        protocol = _of_traces(environ, "PROTOCOL") or "http/protobuf"
        if protocol != "http/protobuf":
            raise ConfigError(
                f"{protocol!r} is not spoken here.",
                where="OTEL_EXPORTER_OTLP_PROTOCOL",
                advice="Say http/protobuf, and the port of it, 4318 by default.",
            )
        whole = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
        base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
        try:
            split = urlsplit(whole or f"{base.rstrip('/')}/v1/traces")
            host, port = split.hostname or "", split.port
        except ValueError:
            split, host, port = SplitResult("", "", "", "", ""), "", None
        if split.scheme not in ("http", "https") or not host:
            raise ConfigError(
                "no address of a collector.",
                where="OTEL_EXPORTER_OTLP_ENDPOINT",
                advice="Say one, such as http://localhost:4318",
            )
        named = f"[{host}]" if ":" in host else host
        place = named if port is None else f"{named}:{port}"
        headers = {"Content-Type": "application/x-protobuf", "User-Agent": f"headway/{version('headway')}"}
        if split.username is not None:
            user_info = f"{unquote(split.username)}:{unquote(split.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(user_info.encode()).decode()}"
        return cls(
            url=urlunsplit((split.scheme, place, split.path or "/", split.query, "")),
            headers=headers | _pairs(_of_traces(environ, "HEADERS")),
            shown=f"{split.scheme}://{place}",
            is_compressed=_of_traces(environ, "COMPRESSION") == "gzip",
            tls=_tls(environ) if split.scheme == "https" else None,
        )


def send(trace: Trace, endpoint: Endpoint, within_s: float, environ: Mapping[str, str] = os.environ) -> None:
    """Post it, more than once where the collector is too busy.

    Raises:
        EnvironmentProblem: it was not taken.
    """
    until_s, wait_s = time.monotonic() + within_s, AGAIN_S
    body = encode(trace, environ)
    while problem := _post(body, endpoint, until_s - time.monotonic()):
        what, may_pass = problem
        if not may_pass or time.monotonic() + wait_s >= until_s:
            raise EnvironmentProblem(f"the collector did not take the trace: {what}.", where=endpoint.shown)
        time.sleep(wait_s)
        wait_s *= 2


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keys are for the endpoint alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(body: bytes, endpoint: Endpoint, within_s: float) -> tuple[str, bool] | None:
    """What was wrong, and whether that may pass; None: nothing."""
    headers = dict(endpoint.headers)
    if endpoint.is_compressed:
        body = gzip.compress(body)
        headers["Content-Encoding"] = "gzip"
    handlers = [] if endpoint.tls is None else [urllib.request.HTTPSHandler(context=endpoint.tls)]
    opener = urllib.request.build_opener(_NoRedirect, *handlers)
    try:
        request = urllib.request.Request(endpoint.url, data=body, headers=headers, method="POST")
        with opener.open(request, timeout=max(within_s, 0.1)) as answer:
            return _refused(answer.read(MAX_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        # Not what it says besides: a server may repeat what it was sent.
        return f"HTTP {error.code} {http.client.responses.get(error.code, '')}".strip(), error.code in TRY_AGAIN
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        words = reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
        return words, True
    except ValueError as error:  # of a header or an address that HTTP has no form for
        return type(error).__name__, False


def _refused(answer: bytes) -> tuple[str, bool] | None:
    try:
        rejected = ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans
    except DecodeError:
        return None  # it has been taken; what else it says is nobody's
    return (f"it left out {rejected} spans", False) if rejected else None


def encode(trace: Trace, environ: Mapping[str, str] = os.environ) -> bytes:
    """One request with the whole trace."""
    scope = InstrumentationScope(name=SERVICE, version=version("headway"))
    spans = ScopeSpans(scope=scope, spans=[_span(trace, span) for span in trace.spans])
    whole = ResourceSpans(resource=_resource(trace, environ), scope_spans=[spans])
    data: bytes = ExportTraceServiceRequest(resource_spans=[whole]).SerializeToString()
    return data


def _resource(trace: Trace, environ: Mapping[str, str]) -> Resource:
    own = {"service.name": SERVICE, "service.version": version("headway"), "host.name": trace.host}
    given = _pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    service = environ.get("OTEL_SERVICE_NAME", "").strip()
    return Resource(attributes=_key_values(own | given | ({"service.name": service} if service else {})))


def _span(trace: Trace, span: TraceSpan) -> Span:
    cut = {"headway.is_cut": True} if span.is_cut else {}
    error = {"error.type": span.error} if span.error else {}
    moments = [
        Span.Event(name=each.name, time_unix_nano=_nanos(each.unix_s), attributes=_key_values(each.attributes))
        for each in span.moments
    ]
    return Span(
        trace_id=bytes.fromhex(trace.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        name=span.name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=_nanos(span.begin_unix_s),
        end_time_unix_nano=_nanos(span.end_unix_s),
        attributes=_key_values({**span.attributes, **error, **cut}),
        events=moments,
        status=Status(code=Status.STATUS_CODE_ERROR, message=span.error) if span.error else Status(),
    )


def _nanos(unix_s: float) -> int:
    return round(unix_s * 1e9)


def _key_values(attributes: Attributes) -> list[KeyValue]:
    return [KeyValue(key=name, value=_value(value)) for name, value in attributes.items()]


def _value(value: str | int | float | bool) -> AnyValue:
    if isinstance(value, bool):  # which is an int as well
        return AnyValue(bool_value=value)
    if isinstance(value, int) and abs(value) < 1 << 63:
        return AnyValue(int_value=value)
    if isinstance(value, int | float):
        return AnyValue(double_value=value)
    # Half a surrogate, as a file's name may have it, is no UTF-8.
    return AnyValue(string_value=value.encode(errors="replace").decode())


def _of_traces(environ: Mapping[str, str], name: str) -> str:
    of_traces = environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}", "").strip()
    return of_traces or environ.get(f"OTEL_EXPORTER_OTLP_{name}", "").strip()


def _pairs(text: str) -> dict[str, str]:
    """`name=value,name=value`, percent-encoded; what is none is left out, as the specification has it."""
    parts = (part.partition("=") for part in text.split(","))
    return {unquote(name.strip()): unquote(value.strip()) for name, equals, value in parts if equals and name.strip()}


def _tls(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Raises `ConfigError`: a certificate cannot be read."""
    authority, own = _of_traces(environ, "CERTIFICATE"), _of_traces(environ, "CLIENT_CERTIFICATE")
    try:
        context = ssl.create_default_context(cafile=authority or None)
        if own:
            context.load_cert_chain(own, _of_traces(environ, "CLIENT_KEY") or None)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the certificate cannot be read ({type(error).__name__}).", where="OTEL_EXPORTER_OTLP_CERTIFICATE"
        ) from error
    return context
