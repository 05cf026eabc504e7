"""Prometheus and Alertmanager of the tests' own, on loopback, with the shipped files; and what their tools say."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from headway.training.launch.base.ports import free_port
from headway.training.launch.base.process_tree import die_with_parent
from tests.pages import HOME
from tests.waiting import wait_until

SHIPPED = HOME / "deployments" / "monitoring"
ENDS_WITHIN_S = 60.0


def tool(*command: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def shipped(name: str) -> dict[str, Any]:
    value = yaml.safe_load((SHIPPED / name).read_text())
    assert isinstance(value, dict)
    return value


def alertmanager_config(addresses: Mapping[str, str]) -> dict[str, Any]:
    """The shipped one, with addresses in it: Alertmanager reads them from files since 0.26, and Debian 12 has 0.25.

    Args:
        addresses: of webhooks, by the name of their file.
    """
    config = shipped("alertmanager.yaml")
    for receiver in config["receivers"]:
        for hook in receiver["webhook_configs"]:
            hook["url"] = addresses[hook.pop("url_file")]
    return config


class Daemon:
    """A server that is ours alone, known by its port."""

    def __init__(self, folder: Path, port: int, *command: str) -> None:
        self.url, self._log = f"http://127.0.0.1:{port}", folder / f"{Path(command[0]).name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        wait_until(self._is_ready, what=f"{command[0]} to be ready", every_s=0.05)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return json.load(answer)

    def post(self, path: str, value: Any) -> None:
        body = json.dumps(value).encode()
        request = urllib.request.Request(f"{self.url}{path}", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=30).close()

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(ENDS_WITHIN_S)
        finally:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            urllib.request.urlopen(f"{self.url}/-/ready", timeout=5).close()
        except urllib.error.HTTPError as error:
            return error.code == 401  # it answers, and wants a password
        except (urllib.error.URLError, OSError):
            return False
        return True


@contextmanager
def running_alertmanager(folder: Path, config: Mapping[str, Any]) -> Iterator[Daemon]:
    folder.mkdir()
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump(dict(config)))
    port = free_port()
    daemon = Daemon(
        folder,
        port,
        "prometheus-alertmanager",
        "--config.file=alertmanager.yaml",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    )
    try:
        yield daemon
    finally:
        daemon.end()


@contextmanager
def running_prometheus(folder: Path, config: Mapping[str, Any]) -> Iterator[Daemon]:
    """Args:
    folder: a new one; files that the configuration names are beside it.
    """
    folder.mkdir()
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(dict(config)))
    port = free_port()
    daemon = Daemon(
        folder,
        port,
        "prometheus",
        "--config.file=prometheus.yaml",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    try:
        yield daemon
    finally:
        daemon.end()


GATEWAY_USER, GATEWAY_PASSWORD = "team", "a-password"
GATEWAY_HASH = "$2b$04$1RJgBQoJhf.PW7gy2XIdOeLa0LObtE9m4k0gU1Hw0pfzg6.819UEm"
"""Of that password, as bcrypt has it."""


@contextmanager
def running_pushgateway(folder: Path) -> Iterator[Daemon]:
    """Args:
    folder: a new one.
    """
    folder.mkdir()
    (folder / "web.yaml").write_text(yaml.safe_dump({"basic_auth_users": {GATEWAY_USER: GATEWAY_HASH}}))
    port = free_port()
    daemon = Daemon(
        folder,
        port,
        "prometheus-pushgateway",
        "--web.config.file=web.yaml",
        "--persistence.file=",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    try:
        yield daemon
    finally:
        daemon.end()


def heading_of(link: str, base: str) -> tuple[Path, str]:
    """The page of the documentation that a link leads to, and the heading on it."""
    path, _, anchor = link.removeprefix(f"{base}/").partition("#")
    page = (HOME / "docs" / path).with_suffix(".md")
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return page, next(heading for heading in headings if heading.lower() == anchor)
