"""A flow run's surroundings go with it, or with the next one when it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from data_contracts.errors import RunStopped
from data_contracts.leftovers import MACHINE
from flows.request import RetrainRequest, TrainingRequest, TrialsRequest
from flows.session import session
from tasks import current_run

DEPLOYMENTS = Path(__file__).resolve().parents[2] / "deployments"
SESSION = """
import sys, time
from flows.environment import prepare
prepare()
from flows.request import RetrainRequest
from flows.session import session
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
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
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
    left = sorted(path.name for path in workspace.rglob("*") if path.is_file())
    assert left == ["flow.jsonl", "flow.jsonl"]
    assert not [name for name in left if MACHINE in name]


@pytest.mark.parametrize(("asked", "found"), [(RetrainRequest, "stopped"), (TrialsRequest, None)])
def test_trials_that_stop_leave_what_a_window_cut_to_the_next(
    tmp_path: Path, asked: type[TrainingRequest], found: str | None
) -> None:
    request = asked(pipeline=str(DEPLOYMENTS / "stdlib-lm.yaml"), workspace=str(tmp_path))
    with pytest.raises(RunStopped), session(request) as (run, _):
        raise RunStopped("asked")
    now = current_run.read(run.workspace, "stdlib-lm")
    assert (None if now is None else now.state) == found
