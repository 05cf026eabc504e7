"""A tiny project whose pipeline has windows: 01:00 to 05:00 every night on Berlin's clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.flows.config.request import RetrainRequest
from headway.flows.windows.admission import Pipeline, open_pipeline
from tests.flows.tiny_pipeline import CONTRACT, PIPELINE

WINDOWS = """\
windows:
  time_zone: Europe/Berlin
  open: [{start: "01:00", end: "05:00"}]
  blackouts: [{first: 2026-12-24, last: 2026-12-26, why: nobody is there}]
  margin_s: 300
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("one\n")
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    (tmp_path / "tiny.yaml").write_text(PIPELINE + WINDOWS)
    (tmp_path / "plain.yaml").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PROJECT", raising=False)
    monkeypatch.setenv("HEADWAY_WORKSPACE", str(tmp_path / "workspace"))
    return tmp_path


@pytest.fixture
def request_of(project: Path) -> RetrainRequest:
    return RetrainRequest(pipeline="tiny.yaml", workspace=str(project / "workspace"))


@pytest.fixture
def reopened(request_of: RetrainRequest):
    """Reads the pipeline as it is now, with what was decided until now."""

    def read() -> Pipeline:
        return open_pipeline(request_of)

    return read
