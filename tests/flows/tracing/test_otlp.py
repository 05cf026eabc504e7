"""OTLP over HTTP as its specification has it, against a receiver; keys go to the endpoint, and nowhere else."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.flows.tracing.otlp import Endpoint, encode, send
from headway.flows.tracing.spans import SpanMoment, Trace, TraceSpan
from tests.flows.tracing.collector import Collector, attributes, collector

KEY = "kanarienvogel"
ROOT = TraceSpan(
    name="retrain p",
    span_id="00f067aa0ba902b7",
    parent_id="1" * 16,
    begin_unix_s=1795681258.742338,
    end_unix_s=1795681260.5,
    attributes={"cicd.pipeline.name": "p\udc80", "n": 3, "huge": 1 << 70, "x": 0.5, "found": True},
    error="TrainingFailed",
    is_cut=True,
    moments=(SpanMoment(name="guard", unix_s=1795681259.0, attributes={"headway.step": 7}),),
)
TRACE = Trace(
    flow_run="f", pipeline="p", trace_id="4bf92f3577b34da6a3ce929d0e0e4736", is_sampled=True, host="h", spans=(ROOT,)
)


@pytest.fixture
def here() -> Iterator[Collector]:
    with collector() as found:
        yield found


def endpoint(**said: str) -> Endpoint:
    return Endpoint.from_environment({f"OTEL_EXPORTER_OTLP_{name}": value for name, value in said.items()})


def test_a_span_arrives_with_all_that_it_says(here: Collector) -> None:
    send(TRACE, endpoint(ENDPOINT=here.url), 5.0, {})
    (received,) = here.received
    assert (received.path, received.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    (span,) = received.spans
    assert (span.trace_id.hex(), span.span_id.hex()) == (TRACE.trace_id, ROOT.span_id)
    assert (span.parent_span_id.hex(), span.name) == (ROOT.parent_id, "retrain p")
    assert span.start_time_unix_nano / 1e9 == pytest.approx(ROOT.begin_unix_s, abs=1e-6)
    assert span.end_time_unix_nano == 1795681260_500000000
    assert attributes(span.attributes) == {
        **{"cicd.pipeline.name": "p?", "n": 3, "huge": float(1 << 70), "x": 0.5, "found": True},
        **{"error.type": "TrainingFailed", "headway.is_cut": True},
    }
    assert (span.status.code, span.status.message) == (2, "TrainingFailed")
    (event,) = span.events
    assert (event.name, attributes(event.attributes)) == ("guard", {"headway.step": 7})
    assert received.resource["service.name"] == "headway" and received.resource["host.name"] == "h"


def test_service_and_resource_are_called_as_the_environment_says(here: Collector) -> None:
    given = {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=ci%2Cone, service.name=x,nonsense"}
    send(TRACE, endpoint(ENDPOINT=here.url), 5.0, given)
    send(TRACE, endpoint(ENDPOINT=here.url), 5.0, given | {"OTEL_SERVICE_NAME": "nightly"})
    first, second = (each.resource for each in here.received)
    assert (first["service.name"], first["deployment.environment.name"]) == ("x", "ci,one")
    assert second["service.name"] == "nightly"


def test_what_is_said_of_traces_goes_before_what_is_said_of_all(here: Collector) -> None:
    said = {"ENDPOINT": "http://127.0.0.1:9", "TRACES_ENDPOINT": f"{here.url}/mine?tenant=7"}
    send(
        TRACE, endpoint(**said, HEADERS="a=1", TRACES_HEADERS="b=%20two, c = 3 ,nonsense", COMPRESSION="gzip"), 5.0, {}
    )
    (received,) = here.received
    assert received.path == "/mine?tenant=7", "as it is"
    assert (received.headers.get("a"), received.headers["b"], received.headers["c"]) == (None, "two", "3")
    assert received.headers["content-encoding"] == "gzip" and len(received.spans) == 1
    send(TRACE, endpoint(ENDPOINT=f"{here.url}/base/"), 5.0, {})
    assert here.received[-1].path == "/base/v1/traces"


def test_a_password_in_the_address_is_sent_and_not_shown(here: Collector) -> None:
    found = endpoint(ENDPOINT=here.url.replace("//", f"//user:{KEY}%40@"), HEADERS=f"api-key={KEY}")
    send(TRACE, found, 5.0, {})
    scheme, _, pair = here.received[0].headers["authorization"].partition(" ")
    assert (scheme, base64.b64decode(pair).decode()) == ("Basic", f"user:{KEY}@")
    assert KEY not in repr(found) and found.shown == here.url


def test_a_busy_collector_is_asked_again_and_one_that_refuses_is_not(here: Collector) -> None:
    here.statuses = [503, 429]
    send(TRACE, endpoint(ENDPOINT=here.url), 5.0, {})
    assert len(here.received) == 3
    here.statuses, here.answer = [401], KEY.encode()
    with pytest.raises(EnvironmentProblem, match="HTTP 401 Unauthorized") as refused:
        send(TRACE, endpoint(ENDPOINT=here.url, HEADERS=f"api-key={KEY}"), 5.0, {})
    assert len(here.received) == 4
    assert KEY not in str(refused.value), "a server may repeat what it was sent"


def test_keys_are_not_sent_where_the_endpoint_points(here: Collector) -> None:
    with collector() as elsewhere:
        here.statuses, here.location = [302, 307], elsewhere.url
        for code in (302, 307):
            with pytest.raises(EnvironmentProblem, match=f"HTTP {code}"):
                send(TRACE, endpoint(ENDPOINT=here.url, HEADERS=f"api-key={KEY}"), 5.0, {})
        assert elsewhere.received == []


def test_spans_that_are_left_out_are_told_and_an_answer_of_nonsense_is_none(here: Collector) -> None:
    here.answer = b"\xff\xff"
    send(TRACE, endpoint(ENDPOINT=here.url), 5.0, {})
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTracePartialSuccess,
        ExportTraceServiceResponse,
    )

    refused = ExportTracePartialSuccess(rejected_spans=3, error_message=KEY)
    here.answer = ExportTraceServiceResponse(partial_success=refused).SerializeToString()
    with pytest.raises(EnvironmentProblem, match="it left out 3 spans") as problem:
        send(TRACE, endpoint(ENDPOINT=here.url), 5.0, {})
    assert KEY not in str(problem.value)


def test_nobody_there_and_one_who_never_answers_are_told_in_time(here: Collector) -> None:
    started_s = time.monotonic()
    with pytest.raises(EnvironmentProblem, match="Connection refused"):
        send(TRACE, endpoint(ENDPOINT="http://127.0.0.1:9"), 0.2, {})
    here.silent.set()
    with pytest.raises(EnvironmentProblem, match=r"TimeoutError|timed out"):
        send(TRACE, endpoint(ENDPOINT=here.url), 0.2, {})
    assert time.monotonic() - started_s < 5.0


@pytest.mark.parametrize(
    ("said", "where"),
    [
        *(
            ({"ENDPOINT": text}, "ENDPOINT")
            for text in ("", "collector:4318", "ftp://c", "file:///etc/passwd", "http://")
        ),
        *(({"ENDPOINT": text}, "ENDPOINT") for text in ("http://[", "http://c:x")),
        ({"ENDPOINT": "http://c", "PROTOCOL": "grpc"}, "PROTOCOL"),
        ({"ENDPOINT": "http://c", "TRACES_PROTOCOL": "http/json"}, "PROTOCOL"),
        ({"ENDPOINT": "https://c", "CERTIFICATE": "/nowhere"}, "CERTIFICATE"),
    ],
)
def test_what_it_cannot_speak_to_is_told_by_the_variable(said: dict[str, str], where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        endpoint(**said)
    assert refused.value.where == f"OTEL_EXPORTER_OTLP_{where}"


def test_the_same_trace_is_the_same_bytes() -> None:
    assert encode(TRACE, {}) == encode(TRACE, {})
