"""A workspace that goes away while a flow run uses it: one clear error, and nothing is made in its stead."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.data_contracts.store.errors import EnvironmentProblem, IntegrityError
from headway.flows.config.request import RetrainRequest
from headway.flows.run.session import session
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from tests.flows.tiny_pipeline import CONTRACT, PIPELINE


@pytest.fixture
def request_here(tmp_path: Path) -> RetrainRequest:
    (tmp_path / "contract.yaml").write_text(CONTRACT)
    (tmp_path / "tiny.yaml").write_text(PIPELINE)
    return RetrainRequest(pipeline=str(tmp_path / "tiny.yaml"), workspace=str(tmp_path / "workspace"))


@pytest.mark.parametrize("mount_point_is_left", [False, True])
def test_whatever_fails_while_the_workspace_is_away_is_that_it_is_away(
    request_here: RetrainRequest, tmp_path: Path, mount_point_is_left: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = tmp_path / "workspace"
    with (
        pytest.raises(EnvironmentProblem, match="moved, unmounted or deleted") as told,
        session(request_here) as (run, _),
    ):
        workspace.rename(tmp_path / "moved")
        if mount_point_is_left:
            workspace.mkdir()
        with pytest.raises(EnvironmentProblem, match="moved, unmounted or deleted"):
            run.workspace.publish("documents/one", b"bytes")
        with pytest.raises(EnvironmentProblem, match="moved, unmounted or deleted"):
            AttemptRecords(workspace / "runs" / "one").begin(AttemptRecord(attempt=1, scope="one"))
        raise IntegrityError("the file is gone.", where="documents/one")
    assert told.value.exit_code == 8 and told.value.where == str(workspace)
    assert list(workspace.iterdir()) == [] if mount_point_is_left else not workspace.exists()
    card = Path(capsys.readouterr().err.rpartition("it is ")[2].strip())
    assert "moved, unmounted or deleted" in card.read_text()
    card.unlink()
