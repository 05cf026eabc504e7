"""Two files whose pipelines are called alike share runs and history: who uses one is told of the other."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headway.flows.config.pipeline_file import pipeline_file, same_named
from headway.flows.deploy.deploying import rendered
from tests.flows.config.test_first_step import CONTRACT
from tests.waiting import DEADLINE_S

PIPELINE = """\
pipeline: words
source: {format: csv, uri: data, include: ["*.csv"]}
contract: contract.yaml
shards: {encoder: {kind: tabular, categorical: [word], label: language}}
training: {recipe: {name: tabular-classifier}}
registry: {model: words}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PROJECT", raising=False)
    folder = tmp_path / "deployments"
    folder.mkdir()
    (folder / "contract.yaml").write_text(CONTRACT)
    (folder / "a.yaml").write_text(PIPELINE)
    return tmp_path


@pytest.mark.parametrize("place", ["deployments/b.yaml", "b.pipeline.yaml"])
def test_a_command_names_both_files_once(project: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    (project / place).write_text(PIPELINE)
    for _ in range(2):
        pipeline_file("a")
    (told,) = capsys.readouterr().err.splitlines()
    assert str(project / "deployments" / "a.yaml") in told and Path(place).name in told
    assert "words" in told and "Give each file a name of its own" in told


def test_others_and_the_same_file_by_another_name_are_not_told(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = project / "deployments"
    (folder / "b.yaml").write_text(PIPELINE.replace("pipeline: words", "pipeline: other # words"))
    (folder / "c.yaml").symlink_to("a.yaml")
    (folder / "broken.yaml").write_text("pipeline: words\n  : [")
    (folder / "folder.yaml").mkdir()
    (folder / "circle.yaml").symlink_to("circle.yaml")
    pipeline_file("a")
    assert capsys.readouterr().err == ""


def test_a_fifo_beside_it_holds_nothing_up(project: Path) -> None:
    os.mkfifo(project / "deployments" / "b.yaml")
    found: list[object] = []
    looking = threading.Thread(
        target=lambda: found.append(same_named(project / "deployments" / "a.yaml", "words", project)), daemon=True
    )
    looking.start()
    looking.join(DEADLINE_S)
    assert found == [[]]


def test_windows_and_a_check_of_changes_tell_it_too(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headway.data_contracts.store.errors import ConfigError
    from headway.flows.ci.checks import Checks, CiRequest
    from headway.flows.ci.results import Checklist
    from headway.flows.config.request import RetrainRequest
    from headway.flows.windows.admission import open_pipeline

    (project / "deployments" / "b.yaml").write_text(PIPELINE)
    with pytest.raises(ConfigError, match="no windows"):
        open_pipeline(RetrainRequest(pipeline="a", workspace=str(project / "workspace")))
    assert "b.yaml" in capsys.readouterr().err
    checklist = Checklist(lambda _: None)
    Checks(CiRequest(pipeline="a", smoke=False), str(project / "workspace"), lambda _: None).make(checklist, project)
    config = next(result for result in checklist.results if result.check == "config")
    assert config.outcome == "failed" and "b.yaml" in config.reason
    (project / "deployments" / "profiles.yaml").write_text("project: t\nprofiles: {local: {pool: {name: t}}}\n")
    with pytest.raises(ConfigError, match=r"as that of a\.yaml is"):
        rendered(project, "local")
