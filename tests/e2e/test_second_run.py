"""The second run: what is known is found, what changed is made again, and nothing is registered twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import ShardManifest
from headway.data_contracts.store.errors import ConfigError
from headway.data_contracts.store.publication import Workspace
from headway.training.observe.ledger import Event, read_events

pytestmark = pytest.mark.long

STAGES = ["snapshot", "validate", "shard", "launch", "verify", "evaluate", "register"]


def found_and_made(events: list[Event]) -> tuple[list[str], list[str]]:
    ended = [event for event in events if event["event"].startswith("stage.") and "found" in event]
    ended = [event for event in ended if "duration_s" in event]
    names = {
        found: [e["event"].removeprefix("stage.") for e in ended if e["found"] is found] for found in (True, False)
    }
    return names[True], names[False]


def versions(project) -> list[str]:
    from headway.tasks.registry.mlflow_store import connect

    client = connect(f"sqlite:///{project.workspace / 'mlflow.db'}")
    return [str(version.version) for version in client.search_model_versions("name = 'tiny'")]


def planned(project) -> dict[str, str]:
    """What `headway plan` says each stage would do."""
    from headway.flows.config.request import RetrainRequest
    from headway.flows.show.plan import make_plan

    plan = make_plan(RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace)))
    return {stage.stage: stage.state for stage in plan.stages}


def test_it_finds_every_stage_and_says_so_in_json_lines(project, shared_server) -> None:
    project.settings |= shared_server

    def made() -> dict[Path, int]:
        """That it has finished is written down each time."""
        files = (path for path in project.files("documents/**/*") if "pipeline-event" not in path.parts)
        return {path: path.stat().st_mtime_ns for path in files}

    before = made()
    request_unix_s = time.time()
    done = project.retrain("--json")
    assert (done.returncode, done.stderr) == (0, "")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(isinstance(event, dict) and "event" in event for event in events)
    assert [event["event"] == "summary" for event in events] == [False] * (len(events) - 1) + [True]
    assert found_and_made(events) == (STAGES, [])
    assert events[-1]["stages_found"] == STAGES and events[-1]["stages_run"] == []
    assert events[-1]["version"] == "1" and events[-1]["is_champion"]
    assert sum(events[-1]["time_s"].values()) == pytest.approx(events[-1]["wall_s"], abs=0.05)
    # In a run this short a busy machine may take a hundredth for itself between any two parts.
    assert events[-1]["unattributed_ratio"] <= 0.01 + 0.1 / events[-1]["wall_s"], events[-1]["time_s"]
    (begin,) = (event for event in events if event["event"] == "flow.begin")
    assert begin["started_unix_s"] >= request_unix_s - 2 / os.sysconf("SC_CLK_TCK"), "counted from before the command"
    assert len(project.attempts()) == 1
    assert made() == before
    assert versions(project) == ["1"]


FOUND = """
import json, sys, headway
starts = []
sys.addaudithook(lambda event, _: starts.append(event) if event in {"subprocess.Popen", "os.fork"} else None)
summary = headway.retrain(sys.argv[1], sys.argv[2])
heavy = {"prefect", "mlflow", "torch", "great_expectations", "pandas"} & set(sys.modules)
print(json.dumps({"run": summary.stages_run, "heavy": sorted(heavy), "starts": starts}))
"""


def test_where_everything_is_found_neither_prefect_nor_mlflow_is_loaded_and_no_process_started(project) -> None:
    command = (sys.executable, "-c", FOUND, str(project.pipeline), str(project.workspace))
    done = subprocess.run(command, env=project.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"run": [], "heavy": [], "starts": []}
    assert [line.split()[:2] for line in done.stdout.splitlines() if " found " in line] == [
        [s, "found"] for s in STAGES
    ]


def test_where_something_has_to_be_made_the_look_that_came_first_leaves_nothing(project, retrain_here) -> None:
    """No ledger, no card and no word in the pipeline's history; what it found is found once more."""
    from headway.flows.config.request import RetrainRequest
    from headway.flows.retrain import found_retrain

    def files() -> set[Path]:
        return set(project.files("ledger/**/*")) | set(project.files("refs/**/*")) | set(project.files("sessions/*"))

    request = RetrainRequest(pipeline=str(project.pipeline), workspace=str(project.workspace))
    shutil.rmtree(project.workspace / "stages" / "register")
    before = files()
    assert found_retrain(request) is None
    assert files() == before
    project.edit("contract.yaml", "version: 1.0.0", "version: one")  # of what is wrong the flow says what
    assert found_retrain(request) is None
    assert files() == before


def test_a_retrain_without_a_server_loads_no_prefect_and_imports_torch_once_for_all_its_ranks(finished) -> None:
    events = [event for spool in finished.pristine.rglob("*.jsonl") for event in read_events(spool)]
    ranks = [event for event in events if event["event"] == "rank.start"]
    assert len(ranks) >= 4 and all(event["is_forked"] for event in ranks), "to train, verify, evaluate and export"
    assert not [event for event in events if event["event"] == "prefect"]
    assert "Prefect" not in finished.first.stdout


def test_touching_only_mtimes_and_saving_at_another_interval_runs_nothing_again(project, retrain_here) -> None:
    project.edit("tiny.yaml", "every_steps: 20", "every_s: 600\n  profile: {first_step: 5}")
    for path in (project.root / "texts").rglob("*.txt"):
        os.utime(path, ns=(0, 1_700_000_000_000_000_000))
    summary, events = retrain_here(project)
    assert found_and_made(events) == (STAGES, [])
    assert summary.version == "1"


def test_the_plan_agrees_that_nothing_would_run(project) -> None:
    assert planned(project) == dict.fromkeys(STAGES, "found")


@pytest.mark.long
def test_what_the_plan_says_is_found_the_retrain_finds_and_what_it_says_runs_runs(project, retrain_here) -> None:
    """Record, key and branch of the spec, one after the other; last, back to what was trained first."""

    def lose_the_snapshots_record() -> None:
        shutil.rmtree(project.workspace / "stages" / "snapshot")

    changes: tuple[tuple[str, Callable[[], None]], ...] = (
        ("snapshot", lose_the_snapshots_record),
        ("launch", lambda: project.edit("tiny.yaml", "max_steps: 120", "max_steps: 40")),
        ("shard", lambda: project.edit("tiny.yaml", "vocab_size: 300", "vocab_size: 290")),
        ("evaluate", lambda: project.edit("tiny.yaml", "model: tiny", "model: other")),
        ("validate", lambda: project.edit("contract.yaml", "Made-up", "Invented")),
        (
            "",
            lambda: (project.edit("contract.yaml", "Invented", "Made-up"), project.edit("tiny.yaml", "290", "300"))[0],
        ),
    )
    for first, change in changes:
        change()
        plan = planned(project)
        found, made = found_and_made(retrain_here(project)[1])
        assert plan == {stage: "found" if stage in found else "run" for stage in STAGES}, first
        if first:
            assert next(stage for stage in made if stage in STAGES) == first
    project.edit("contract.yaml", "max: 500", "max: 400")
    with pytest.raises(ConfigError, match="breaks what"):  # as it refuses the retrain
        planned(project)


def test_an_edit_that_keeps_size_and_mtime_is_noticed(project, retrain_here) -> None:
    retrain_here(project)  # so that digests of settled files are remembered
    path = project.root / "texts" / "part1" / "text07.txt"
    status, data = path.stat(), path.read_bytes()
    path.write_bytes(data.replace(b" b then", b" c then"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size and path.stat().st_mtime_ns == status.st_mtime_ns
    assert planned(project)["snapshot"] == "run"
    path.write_bytes(data)
    assert planned(project)["snapshot"] == "found"


def test_changing_one_file_runs_exactly_what_depends_on_it_and_keeps_the_tokenizer(project, retrain_here) -> None:
    workspace = Workspace(str(project.workspace))
    before = {group_key(group): group for group in manifest_of(project).groups}
    changed = "part1/text07.txt"
    with (project.root / "texts" / changed).open("a") as file:
        file.write(" b then c then d then\n")
    summary, events = retrain_here(project)
    assert found_and_made(events) == ([], STAGES), "all but the fit depend on the data"
    assert not project.files("stages/fit/*.json")[1:]
    assert len(refs.history(workspace, "fitted/tiny")) == 1
    (registration,) = (e for e in refs.history(workspace, "models/tiny/versions") if e.detail["version"] == "2")
    assert summary.version == "2" and summary.registration == registration.target.sha256
    assert versions(project) in (["2", "1"], ["1", "2"])
    assert summary.champion_value is not None, "the champion was scored on the same documents"
    champion = refs.current(workspace, "models/tiny/champion")
    assert champion is not None and champion.detail["version"] == ("2" if summary.is_champion else "1")
    after = {group_key(group): group for group in manifest_of(project, newest=True).groups}
    assert {key for key in before if before[key] != after[key]} == {
        key for key, group in before.items() if changed in group.documents
    }, "only the changed file's own group is other than it was"


def group_key(group) -> tuple[int, str]:
    return group.group, group.split


def manifest_of(project, *, newest: bool = False) -> ShardManifest:
    paths = sorted(project.files("documents/manifest/*.json"), key=lambda path: path.stat().st_mtime_ns)
    return ShardManifest.from_bytes(paths[-1 if newest else 0].read_bytes(), where="")


@pytest.mark.parametrize("lost", ["the refs", "the refs and the stage's record"])
def test_a_registration_that_died_before_it_was_written_down_makes_no_second_version(
    project, retrain_here, lost: str
) -> None:
    before = project.file("documents/registration/*.json")
    shutil.rmtree(project.workspace / "refs" / "models")
    if lost.endswith("record"):
        shutil.rmtree(project.workspace / "stages" / "register")
        shutil.rmtree(project.workspace / "models")
    summary, events = retrain_here(project)
    assert summary.version == "1" and summary.is_champion
    assert versions(project) == ["1"]
    assert found_and_made(events)[1] == (["register"] if lost.endswith("record") else [])
    assert project.file("documents/registration/*.json") == before
    assert [path.stem for path in project.files("refs/models/tiny/versions/*.json")] == ["00000001"]


def test_a_document_that_went_bad_is_made_again_and_the_run_says_so(project, retrain_here, flip_one_bit) -> None:
    shard: Path = project.files("shards/**/*.parquet")[0]
    good = shard.read_bytes()
    flip_one_bit(shard)
    summary, events = retrain_here(project)
    assert shard.read_bytes() == good
    (damage,) = (event for event in events if event["event"] == "stage.damaged")
    assert shard.name in damage["message"]
    assert found_and_made(events)[1] == ["shard"]
    assert summary.version == "1"
