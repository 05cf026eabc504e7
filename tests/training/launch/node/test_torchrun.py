"""What only the real torchrun and the real gloo can show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.data_contracts.store.errors import TrainingFailed
from headway.training.frozen.code_archive import pack, rank_sources
from headway.training.launch.base.gang import Gang, LaunchSpec
from headway.training.launch.base.protocol import AttemptFiles
from headway.training.launch.supervise.supervisor import supervise
from tests.waiting import DEADLINE_S

TOYS = Path(__file__).parents[1] / "toys"

pytestmark = pytest.mark.long


def test_peers_blocked_in_a_collective_are_freed_and_the_next_attempt_finishes(toy_run) -> None:
    trouble = {"kind": "kill", "rank": 1, "attempt": 1, "step": 2}
    gang = toy_run.gang("--trouble", json.dumps(trouble), module="gloo_worker")

    outcome = supervise(LaunchSpec(), gang, ledger=toy_run.ledger, budget_scope="one", poll=toy_run.newest_step)

    assert outcome.state == "done"
    first, _ = toy_run.events("attempt")
    assert "rank 1 was killed" in str(first["what"]), "the victim is named, not the peer whose connection broke"
    # None where all had ended before anybody was to be told.
    assert sum(float(str(each["duration_s"])) for each in toy_run.events("attempt.ending")) < LaunchSpec().stop_grace_s
    assert toy_run.survivors() == []


def test_a_rank_missing_from_a_collective_is_seen_in_the_stacks(toy_run) -> None:
    trouble = {"kind": "oversleep", "rank": 1, "attempt": 1, "step": 2}
    gang = toy_run.gang("--trouble", json.dumps(trouble), module="gloo_worker")
    spec = LaunchSpec(progress_deadline_s=4, max_attempts=1)

    with pytest.raises(TrainingFailed) as failed:
        supervise(spec, gang, ledger=toy_run.ledger, budget_scope="one", poll=toy_run.newest_step)

    message = str(failed.value)
    assert "late: rank 1 (" in message and "in oversleep (gloo_worker.py" in message
    assert "in all_reduce (distributed_c10d.py" in message
    assert toy_run.survivors() == []


def test_ranks_run_from_the_archive_whatever_training_folder_lies_about(toy_run, monkeypatch) -> None:
    archive = toy_run.folder / "code.zip"
    archive.write_bytes(pack(rank_sources() | {"zipped_worker.py": TOYS / "zipped_worker.py"}))
    project = toy_run.folder / "project"
    (project / "training").mkdir(parents=True)
    (project / "training" / "__init__.py").write_text("raise ImportError('this is the wrong house')")
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", str(project))
    gang = Gang(
        module="zipped_worker",
        arguments=(str(toy_run.folder),),
        nodes=1,
        ranks_per_node=1,
        import_path=(str(archive), str(project)),
        run_dir=toy_run.folder,
    )

    supervise(LaunchSpec(), gang, ledger=toy_run.ledger, budget_scope="one", poll=lambda: None)

    origins = toy_run.attempt(1).read_markers()[0].log.split()
    assert all(origin.startswith(str(archive)) for origin in origins)


def test_torchrun_by_hand_works_without_guard_or_supervisor(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "toy_worker"]
    subprocess.run(
        [*command, "--run-dir", str(tmp_path), "--steps", "3"],
        env=os.environ | {"PYTHONPATH": str(TOYS), "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    markers = AttemptFiles(tmp_path / "by-hand").read_markers()
    assert {rank: marker.state for rank, marker in markers.items()} == {0: "done", 1: "done"}
