"""The exporter: a workspace's metrics over HTTP, for who knows the password; or once, as a file for a collector."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.exposition import choose_encoder, generate_latest

from headway.flows.console.output import write_whole
from headway.flows.monitoring.closed_server import Answer, ClosedServer, listen_address, serve, served_password
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics

PASSWORD_FILE = "metrics-password"


class Exporter(ClosedServer):
    """Answers `GET /metrics`.

    Args: and what is raised: as of `ClosedServer`.
    """

    path = "/metrics"

    def __init__(self, address: tuple[str, int], metrics: WorkspaceMetrics, password: str) -> None:
        self._metrics = metrics
        super().__init__(address, password)

    def page(self, accept: str) -> Answer:
        render, content_type = choose_encoder(accept)
        return Answer(render(self._metrics), content_type)


def write_textfile(metrics: WorkspaceMetrics, path: Path) -> None:
    """For node_exporter's textfile collector, which reads `*.prom` and must never read half a file.

    Raises:
        EnvironmentProblem: it cannot be written there.
    """
    write_whole(path, generate_latest(metrics), is_public=True)


def serve_metrics(metrics: WorkspaceMetrics, what: str, listen: str, password_file: Path | None) -> None:
    """Until a signal ends it.

    Args:
        what: the workspace, for people.
    """
    address = listen_address(listen)
    password, file = served_password(password_file, PASSWORD_FILE)
    serve(Exporter(address, metrics, password), f"metrics of {what}", file)
