"""What every test process needs first, and the object store that some tests talk to."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal import charmap
from hypothesis.internal.conjecture import providers
from s3fs import S3FileSystem

from tests.longest_first import LongestFirst, unit

pytest_plugins = ("tests.forked_workers", "tests.tiers")

# Tests of remote workspaces leave nothing in anybody's cache.
os.environ["HEADWAY_LOCAL"] = tempfile.mkdtemp(prefix="headway-tests-")

# What all test processes make once; the first of them is their parent.
SHARED = "HEADWAY_TESTS_SHARED"
if SHARED not in os.environ:
    os.environ[SHARED] = tempfile.mkdtemp(prefix="headway-tests-")
    os.environ["HEADWAY_TESTS_FIRST"] = str(os.getpid())

# SQLite and MLflow wait for the disk at every commit. What has to survive here are killed processes, not cut power.
IN_MEMORY, WANTED_BYTES = Path("/dev/shm"), 4 << 30
if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > WANTED_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))

# Until all tests are collected; a third of the time that takes is spent on looking for garbage.
gc.disable()

# Before torch is imported. Test processes run side by side: threads of one would wait for cores that another has.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# For every new cache torch's compiler tries what this processor can do with programs that take ten seconds to compile,
# and starts processes to compile in beside it. The kernel says what it can do, and one process has a core at most.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# A shell that runs us in the background lets us ignore Ctrl-C, and `nohup` a closed terminal: so would every process
# that a test interrupts.
for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, default)

# How long an example takes says how busy the machine is; and what was red in CI is red again when it is repeated.
settings.register_profile(
    "headway", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headway")

# Hypothesis would parse the source of all modules that are imported, for numbers and words to try: seconds, and which
# examples a test is given would depend on the tests that its process had before.
providers._get_local_constants = lambda: providers._local_constants  # type: ignore[attr-defined]

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTKEY",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """Which characters UTF-8 can write Hypothesis finds out by trying a million: seconds of a first test of texts.

    Here the first process does it, before it starts others, and keeps the answer in `.hypothesis` for them.
    """
    charmap.charmap()
    charmap.intervals_from_codec("utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: unit(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    return LongestFirst(config, log)


def pytest_collection_finish() -> None:
    """What all those modules hold is there to stay: whoever looks for garbage need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure() -> None:
    is_first = os.environ["HEADWAY_TESTS_FIRST"] == str(os.getpid())
    for folder in (os.environ["HEADWAY_LOCAL"], *([os.environ[SHARED]] if is_first else [])):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[subprocess.Popen[str]]:
    """An S3 server, a real process on loopback, which says its port first."""
    from tests.warm_programs import Program

    server = Program(
        [sys.executable, str(Path(__file__).with_name("s3_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield server
    finally:
        server.kill()
        server.communicate()


@pytest.fixture(scope="session")
def s3_port(s3_server: subprocess.Popen[str]) -> int:
    assert s3_server.stdout is not None
    return int(s3_server.stdout.readline())


@pytest.fixture
def s3_environment(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Where the store is and who asks, as a user would say it; set in this process."""
    message = {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3_port}", "AWS_EC2_METADATA_DISABLED": "true"}
    for name, value in message.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    S3FileSystem.clear_instance_cache()  # it would go on talking to an earlier test's endpoint
    return message


@pytest.fixture
def new_bucket(s3_environment: dict[str, str], s3_port: int) -> Callable[[], str]:
    """Makes an empty bucket; returns its name."""
    import http.client

    def make() -> str:
        name = f"bucket-{uuid.uuid4().hex}"
        connection = http.client.HTTPConnection("127.0.0.1", s3_port, timeout=30)
        connection.request("PUT", f"/{name}")
        assert connection.getresponse().status == 200
        connection.close()
        return name

    return make


@pytest.fixture(scope="session")
def prefect_here() -> Iterator[None]:
    """A Prefect server for flows that run in this process: one, because Prefect's client stays with its first."""
    from headway.flows.console.environment import prepare

    prepare()
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from tests import shared_prefect

    api = shared_prefect.api()
    with temporary_settings({PREFECT_API_URL: api.url, PREFECT_API_AUTH_STRING: api.password}):
        yield


@pytest.fixture(scope="session")
def mlflow_tables() -> Path:
    """A database of MLflow's with nothing in it, to be copied: to make its tables takes seconds, once for all."""
    from headway.tasks.registry import mlflow_store

    path = Path(os.environ[SHARED]) / "mlflow.db"
    mlflow_store.connect(f"{mlflow_store.SQLITE}{path}")
    return path


@pytest.fixture
def new_disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a file system of so many bytes, which a test can fill; in `folder`, with `options` of its own."""
    mounted: list[Path] = []

    def mount(size_bytes: int, folder: Path = tmp_path / "small", options: str = "") -> Path:
        folder.mkdir()
        given = ",".join(filter(None, (f"size={size_bytes}", options)))
        command = ["mount", "-t", "tmpfs", "-o", given, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("no file system can be mounted here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
