"""A person goes on with a run from one of its checkpoints: on what it was begun with, to the bits it would have had."""

from __future__ import annotations

import json
import os
import shlex
import time

import pytest

from headway.data_contracts.store.errors import RunStopped
from headway.flows.show.status import read_status
from headway.training.observe.ledger import read_events
from tests.e2e.project import MAX_STEPS


@pytest.mark.long
def test_a_run_goes_on_from_the_step_a_person_names_on_its_own_data_to_the_same_bits(
    project, finished, here, train_here
) -> None:
    project.forget_the_model()
    with pytest.raises(RunStopped):
        train_here(project, stop_at_step=47)
    run = project.run_dir().name
    for path in (project.root / "texts").rglob("*.txt"):
        path.write_text(path.read_text() + "edited since\n")
    in_workspace = ("--workspace", str(project.workspace))
    refused = {
        ("resume", run, "--from", "20"): "--why",
        ("resume", "0000", "--pipeline", str(project.pipeline)): "names 0 runs",
        ("resume", run, "--from", "30", "--why", "x", "--pipeline", str(project.pipeline)): "It has: 20, 40, 47.",
    }
    for arguments, told in refused.items():
        answer = here(*arguments, *in_workspace)
        assert answer.returncode == 2 and told in answer.stderr and "Traceback" not in answer.stderr
    # The last steps are saved at what the file says now, and the run stays the same.
    project.edit("tiny.yaml", "every_steps: 20", "every_steps: 35")
    request_unix_s = time.time()
    resumed = project.headway(
        "resume", run[:8], "--from", "20", "--why", "rank 1 had a bad core", "--pipeline", "tiny.yaml"
    )
    assert resumed.returncode == 0, resumed.stderr
    assert f"run {run} goes back to step 20" in resumed.stdout and "champion" in resumed.stdout
    (last,) = read_status(str(project.workspace)).finished
    tick_s = 1 / os.sysconf("SC_CLK_TCK")  # the system counts a process's beginning in ticks, and rounds it down
    assert request_unix_s - tick_s < last.started_unix_s < last.finished_unix_s
    assert read_status(str(project.workspace)).failed == [], "what failed before it is over"
    expected = json.loads(next(finished.pristine.glob("workspace/runs/*/result.json")).read_bytes())
    assert project.result()["tensors_sha256"] == expected["tensors_sha256"]
    committed = [path.parent.name for path in project.files("runs/*/checkpoints/*/manifest.json")]
    assert committed[-3:] == ["step-00000070", "step-00000105", "step-00000120"]
    kept = {path.name for path in (project.run_dir() / "quarantine").iterdir()}
    assert len(kept) == 2, "what nobody trusted is kept for a person to look at"
    made = json.loads(project.file("stages/launch/*.json").read_bytes())["provenance"]
    assert made["num_steps"] == MAX_STEPS - 20, "what it took is told of the steps since it went on"
    flows = [event for path in project.files("ledger/*/flow.jsonl") for event in read_events(path)]
    (back,) = [event for event in flows if event["event"] == "run.went_back"]
    assert back["quarantined"] == [40, 47] and back["why"] == "rank 1 had a bad core" and "@" in back["by"]
    again = here("resume", run, "--pipeline", str(project.pipeline), *in_workspace)
    assert again.returncode == 2 and "is finished" in again.stderr


@pytest.mark.soak  # that it is given test_cancel.py proves, and the test above that it goes on
def test_the_command_that_the_status_gives_for_a_run_goes_on_with_it_after_its_data_changed(
    project, finished, here, train_here
) -> None:
    project.forget_the_model()
    with pytest.raises(RunStopped):
        train_here(project, stop_at_step=47)
    run = project.run_dir().name
    for path in (project.root / "texts").rglob("*.txt"):
        path.write_text(path.read_text() + "edited since\n")
    told = here("status", "--json", "--workspace", str(project.workspace))
    (unfinished,) = json.loads(told.stdout)["runs"]
    typed = shlex.split(unfinished["continued_by"])
    assert typed[1:3] == ["resume", run]
    resumed = project.headway(*typed[1:])
    assert resumed.returncode == 0, resumed.stderr
    assert project.run_dir().name == run
    expected = json.loads(next(finished.pristine.glob("workspace/runs/*/result.json")).read_bytes())
    assert project.result()["tensors_sha256"] == expected["tensors_sha256"]
