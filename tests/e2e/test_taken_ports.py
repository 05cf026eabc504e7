"""Another user of the machine, or another service, is where a retrain's servers should be."""

from __future__ import annotations

import http.server
import threading

import pytest

from headway.flows.console.prefect_settings import RECORDS
from tests.stranger import squatter


@pytest.mark.long
def test_who_takes_every_port_that_command_lines_show_keeps_no_retrain_from_its_end(project) -> None:
    """Its data lie in shards already: what listens are Prefect's server, and the ranks of its training."""
    project.forget_training()
    project.settings[RECORDS] = "1"
    assert "PREFECT_API_URL" not in project.settings, "so it has a server of its own"
    with squatter():
        done = project.retrain()
    assert done.returncode == 0, done.stderr
    assert len(project.attempts()) == 1


@pytest.mark.parametrize("health", [pytest.param(b"true", marks=pytest.mark.soak), b"{}"])
def test_what_answers_as_prefect_would_and_is_not_is_refused_in_one_line(new_project, health: bytes) -> None:
    class Pretender(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            message = health if self.path == "/api/health" else b"{}"
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(message)))
            self.end_headers()
            self.wfile.write(message)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pretender) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = new_project.settings["PREFECT_API_URL"] = f"http://127.0.0.1:{server.server_port}/api"
        done = new_project.retrain()
        server.shutdown()
    assert done.returncode == 8, done.stderr
    assert url in done.stderr and "is not Prefect's API" in done.stderr and "PREFECT_API_URL" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""
