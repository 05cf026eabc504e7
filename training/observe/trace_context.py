"""Trace ids, as W3C's Trace Context has them: one trace for a flow run, which logs, spans and processes name alike.

Ids follow from the flow run's own: who sends a trace later, or once more, sends the same one. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

TRACEPARENT = "TRACEPARENT"
NAMES = (TRACEPARENT, "traceparent")
"""As OpenTelemetry has it in environments, and as some CI systems write it."""
SAMPLED = 1
_HEADER = re.compile(r"(?P<version>[0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?P<more>-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span that others stand below."""

    trace_id: str
    span_id: str
    is_sampled: bool = True
    """False: whoever began the trace keeps none of it."""

    @property
    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


def parse_traceparent(header: str) -> TraceContext | None:
    """None: it is none, by the rules of W3C."""
    found = _HEADER.fullmatch(header.strip())
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["more"]):
        return None
    trace_id, span_id, flags = found[2], found[3], int(found[4], 16)
    # Ids of zeros alone are invalid.
    return (
        TraceContext(trace_id, span_id, bool(flags & SAMPLED)) if trace_id.strip("0") and span_id.strip("0") else None
    )


def given_parent(environ: Mapping[str, str] = os.environ, own: str = "") -> TraceContext | None:
    """The span that this process was started below.

    Args:
        own: a header that is this work's alone; a worker's environment is that of all its work.
    """
    headers = (own, *(environ.get(name, "") for name in NAMES))
    return next((parent for header in headers if (parent := parse_traceparent(header)) is not None), None)


def flow_trace(flow_run: str, parent: TraceContext | None = None) -> TraceContext:
    """The root span of a flow run.

    Without a parent the trace's id is the flow run's, without its dashes: who knows one finds the other.
    """
    if parent is not None:
        trace_id, is_sampled = parent.trace_id, parent.is_sampled
    else:
        try:
            trace_id, is_sampled = uuid.UUID(flow_run).hex, True
        except ValueError:
            trace_id, is_sampled = _digest(flow_run, 16), True
    return TraceContext(trace_id, _digest(f"{trace_id}/{flow_run}", 8), is_sampled)


def span_id(root: TraceContext, *place: object) -> str:
    """Of the span of a trace that has this place in it."""
    return _digest("/".join((root.trace_id, root.span_id, *map(str, place))), 8)


def _digest(text: str, num_bytes: int) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:num_bytes].hex()
