"""A line to the object store that can be made to fail."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem

from tests import waiting

PROXY = Path(__file__).parent / "toys" / "faulty_proxy.py"


class Line:
    """The proxy between client and store: what it shall do to which request."""

    def __init__(self, port: int, bucket: str) -> None:
        self.port, self.bucket = port, bucket

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def break_(self, *faults: tuple[str, str, str, int]) -> None:
        """Each (fault, method, part of the path, number of times); the first that fits is applied."""
        rules = [dict(zip(("fault", "method", "match", "times"), fault, strict=True)) for fault in faults]
        self._ask("POST", "/-/faults", json.dumps(rules))

    def log(self) -> list[tuple[str, str, str]]:
        """Method, path and fault of every request since faults were last set."""
        return [(method, path, fault) for method, path, fault in json.loads(self._ask("GET", "/-/log"))]

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body)
        answer = connection.getresponse().read()
        connection.close()
        return answer


@pytest.fixture(scope="session")
def proxy_port(s3_port: int) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, str(PROXY), str(s3_port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def line(proxy_port: int, new_bucket: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> Line:
    """The store, reached through the proxy, with a bucket of the test's own."""
    made = Line(proxy_port, new_bucket())
    made.break_()
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
    S3FileSystem.clear_instance_cache()
    return made


@pytest.fixture
def wait_until() -> Callable[..., object]:
    return waiting.wait_until
