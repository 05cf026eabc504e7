"""A flow run's surroundings go with it, or with the next one when it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import RunStopped
from headway.data_contracts.store.leftovers import MACHINE
from headway.flows.config.request import RetrainRequest, TrainingRequest, TrialsRequest
from headway.flows.run.session import session
from headway.tasks.ownership import pipeline_history
from tests.warm_programs import Program

DEPLOYMENTS = Path(__file__).resolve().parents[3] / "deployments"
SESSION = """
import sys, time
from headway.flows.console.environment import prepare
prepare()
from headway.flows.config.request import RetrainRequest
from headway.flows.run.session import session
with session(RetrainRequest(pipeline=sys.argv[1], workspace=sys.argv[2])) as (run, _):
    (run.scratch / "rows.parquet").write_bytes(bytes(1000))
    print(run.scratch, flush=True)
    if sys.argv[3] == "be killed":
        with run.workspace.staged("shards/x/shard.parquet") as staging:
            staging.write_bytes(bytes(1000))
            print("writing", flush=True)
            time.sleep(600)
"""


def start(folder: Path, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SESSION, str(DEPLOYMENTS / "stdlib-lm.yaml"), str(folder / "workspace"), what]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    return Program(command, env=environment, stdout=subprocess.PIPE)


@pytest.mark.process
def test_a_killed_flow_leaves_nothing_to_the_next_but_its_ledger(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    killed = start(tmp_path, "be killed")
    assert killed.stdout is not None
    scratch = Path(killed.stdout.readline().strip())
    assert killed.stdout.readline() == "writing\n"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    workspace = tmp_path / "workspace"
    assert scratch.parent == tmp_path / "tmp" and (scratch / "rows.parquet").exists()
    assert len(list(workspace.rglob("*.partial"))) == len(list((workspace / "sessions").iterdir())) == 1
    following = start(tmp_path, "end well")
    following.communicate()
    assert following.returncode == 0
    assert not scratch.exists() and not list((tmp_path / "tmp").glob("headway-*"))
    left = sorted(path.relative_to(workspace).as_posix() for path in workspace.rglob("*") if path.is_file())
    assert [name.partition("/")[0] for name in left] == ["accounts", "ledger", "ledger"]
    assert not [name for name in left if MACHINE in name]


@pytest.mark.parametrize(("requested", "found"), [(RetrainRequest, "stopped"), (TrialsRequest, None)])
def test_trials_that_stop_leave_what_a_window_cut_to_the_next(
    tmp_path: Path, requested: type[TrainingRequest], found: str | None
) -> None:
    request = requested(pipeline=str(DEPLOYMENTS / "stdlib-lm.yaml"), workspace=str(tmp_path))
    with pytest.raises(RunStopped), session(request) as (run, _):
        raise RunStopped("requested")
    assert pipeline_history.read(run.workspace, "stdlib-lm").state == found
