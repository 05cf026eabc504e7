"""A PostgreSQL cluster of the tests' own: on a Unix socket, as a user without rights, gone when the tests are."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.training.launch.base.process_tree import die_with_parent

USER = "headway"
READY_WITHIN_S = 120.0
DATABASES = Path(__file__).resolve().parents[2] / "deployments" / "docker" / "databases.sql"
"""What the container's first start reads, too."""


class Postgres:
    def __init__(self, binaries: Path, folder: Path) -> None:
        self.folder, self.password = folder, secrets.token_hex(8)
        self._binaries, self._account = binaries, _account()
        if self._account is not None:
            shutil.chown(folder, *self._account)
        self.password_file = folder / "password"
        self.password_file.write_text(self.password)
        self.password_file.chmod(0o644)
        options = (f"--username={USER}", f"--pwfile={self.password_file}", "--auth=scram-sha-256", "--no-sync")
        self._run("initdb", "-D", str(folder / "data"), *options)
        self._start()
        self._run("createdb", "prefect")
        self._run("psql", "-q", "-d", "prefect", "-f", str(DATABASES))

    @property
    def environment(self) -> dict[str, str]:
        """How clients are told the password; no URL holds it."""
        return {"PGPASSWORD": self.password}

    def restart(self) -> None:
        """At once, as after a crash: every connection breaks, and the next start recovers from the log."""
        self.stop()
        self._start()

    def stop(self) -> None:
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait(READY_WITHIN_S)

    def _start(self) -> None:
        command = (str(self._binaries / "postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder))
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                (*command, "-c", "listen_addresses=", "-c", "fsync=off"),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                user=self._account and self._account[0],
                group=self._account and self._account[1],
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        deadline = time.monotonic() + READY_WITHIN_S
        while subprocess.run(
            (self._binaries / "pg_isready", "-q", "-h", str(self.folder), "-d", "postgres")
        ).returncode:
            assert self._server.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL is not ready"
            time.sleep(0.1)

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            (self._binaries / name, *arguments),
            cwd=self.folder,
            env=os.environ | self.environment | {"PGHOST": str(self.folder), "PGUSER": USER, "PGDATABASE": "postgres"},
            user=self._account and self._account[0] if name == "initdb" else None,
            group=self._account and self._account[1] if name == "initdb" else None,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Skips, and says why, where it is not installed."""
    binaries = _binaries()
    if binaries is None or (os.geteuid() == 0 and _account() is None):
        pytest.skip("no PostgreSQL server here: apt-get install --no-install-recommends postgresql")
    # A short path, which a Unix socket needs, and not in pytest's folder, which is closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="headway-pg-"))
    folder.chmod(0o755)
    try:
        made = Postgres(binaries, folder)
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    there = shutil.which("postgres")
    return None if there is None else Path(there).resolve().parent


def _account() -> tuple[str, str] | None:
    """User and group for the server, which refuses to be root; None: our own."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return name, _group_of(name)
        except KeyError:
            continue
    return None


def _group_of(name: str) -> str:
    import grp

    return grp.getgrgid(pwd.getpwnam(name).pw_gid).gr_name
