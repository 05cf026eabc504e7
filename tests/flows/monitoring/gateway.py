"""A receiver that speaks the Pushgateway's protocol: a PUT replaces all of a group; it answers as it is set."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote_plus

from prometheus_client.parser import text_string_to_metric_families

from tests.loopback_server import serving


@dataclass
class Gateway:
    url: str = ""
    groups: dict[tuple[tuple[str, str], ...], str] = field(default_factory=dict)
    """What is kept, by the labels of each group."""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    """Of each request, by their names in small letters."""
    status: int = 200
    location: str = ""
    silent: threading.Event = field(default_factory=threading.Event)
    """Set: nothing is answered before `ended` is set, too."""
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def samples(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """By name; of the one group that there is."""
        (text,) = self.groups.values()
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found


@contextmanager
def gateway() -> Iterator[Gateway]:
    found = Gateway()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            if found.silent.is_set():
                found.ended.wait()
            if found.status == 200:
                found.groups[_group(self.path)] = body.decode()
            # As servers do that show what they were sent.
            self.send_response(found.status, f"for {self.headers.get('Authorization', 'nobody')}")
            if found.location:
                self.send_header("Location", f"{found.location}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            found.headers.append({name.lower(): value for name, value in self.headers.items()})
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler, found.ended) as found.url:
        yield found


def _group(path: str) -> tuple[tuple[str, str], ...]:
    parts = path.partition("/metrics/")[2].split("/")
    labels = []
    for name, value in zip(parts[::2], parts[1::2], strict=True):
        plain, _, encoding = name.partition("@")
        padded = value + "=" * (-len(value) % 4)
        text = base64.urlsafe_b64decode(padded).decode() if encoding == "base64" else unquote_plus(value)
        labels.append((plain, text))
    return tuple(labels)
