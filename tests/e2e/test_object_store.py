"""A whole workspace in a bucket: trained, found again, proved, resumed on another machine, and damage named."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from s3fs import S3FileSystem

from headway.data_contracts.store.errors import EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.flows.show.status import read_status
from headway.flows.show.verify import verify_model
from headway.training.checkpoint.layout import directory_name
from tests.e2e.project import let_go_of_databases

STAGES = ["snapshot", "validate", "fit", "shard", "launch", "verify", "evaluate", "register"]
SECRETS = ("AKIATESTKEY", "test-secret")
SOME_KINDS = ("documents/evaluation", "code", "refs/models/tiny/champion", "shards")
KINDS = (
    *SOME_KINDS,
    *("documents/checkpoint", "documents/run", "documents/manifest", "documents/receipt", "documents/registration"),
    *("documents/snapshot", "documents/fitted", "contracts", "fitted", "models", "environments"),
)


@pytest.fixture
def bucket(new_bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADWAY_LOCAL")
    return new_bucket()


def on_the_local_side(project, uri: str) -> Workspace:
    """Lets the project's hands reach the runs in progress, wherever the local side lies."""
    workspace = Workspace(uri)
    project.workspace.symlink_to(workspace.local_root)
    return workspace


def published_steps(workspace: Workspace) -> list[int]:
    runs = [f"runs/{run}/checkpoints" for run in workspace.names("runs")]
    names = [f"{run}/{step}/manifest.json" for run in runs for step in workspace.names(run)]
    return [int(name.split("/")[-2].removeprefix("step-")) for name in names if workspace.exists(name)]


def flip_one_bit(fs: S3FileSystem, key: str, draw: random.Random) -> bytes:
    data = fs.cat_file(key)
    place = draw.randrange(8 * len(data))
    flipped = bytearray(data)
    flipped[place // 8] ^= 1 << place % 8
    fs.pipe_file(key, bytes(flipped))
    return data


# Each look takes seconds. `tests/tasks/prove/test_verify_mutations.py` flips a bit in every file of a folder.
@pytest.mark.long
@pytest.mark.parametrize("kinds", [SOME_KINDS, pytest.param(KINDS, marks=pytest.mark.soak)], ids=["some", "every kind"])
def test_a_bucket_holds_everything_and_any_flipped_bit_in_it_is_found(
    new_project, bucket: str, retrain_here, capsys, kinds: tuple[str, ...]
) -> None:
    uri = f"s3://{bucket}/team"
    case = SimpleNamespace(pipeline=new_project.pipeline, workspace=uri)
    first, _ = retrain_here(case)
    assert first.stages_run == STAGES
    assert first.reports["contract"].startswith(uri)
    assert list(new_project.root.glob("workspace*")) == []

    workspace = Workspace(uri)
    shutil.rmtree(workspace.local_root)
    let_go_of_databases()
    # Another process, as on another machine: this one remembers MLflow's database.
    done = new_project.retrain("--workspace", uri, "--json")
    assert done.returncode == 0, done.stderr
    second = json.loads(done.stdout.splitlines()[-1])
    assert second["stages_run"] == []
    assert second["is_champion"] and second["registration"] == first.registration

    status = read_status(uri)
    assert [model.champion for model in status.models] == ["1"]
    assert [(run.finished, run.is_running) for run in status.runs] == [(True, False)]
    assert {"flow.jsonl", "summary.json"} <= set(workspace.names(f"ledger/{workspace.names('ledger')[0]}"))
    assert verify_model("models:/tiny@champion", uri, as_json=True) == 0
    capsys.readouterr()

    fs = S3FileSystem(use_listings_cache=False)
    keys = [key.removeprefix(f"{bucket}/team/") for key in fs.find(bucket)]
    for key in keys:
        data = fs.cat_file(f"{bucket}/team/{key}")
        assert not any(secret.encode() in data for secret in SECRETS), key
    for path in (path for path in workspace.local_root.rglob("*") if path.is_file()):
        assert not any(secret.encode() in path.read_bytes() for secret in SECRETS), path
    draw = random.Random(3)
    damaged = {
        kind: draw.choice([k for k in keys if k.startswith(f"{kind}/") and "group.json" not in k])
        for kind in sorted(kinds)
    }
    # Of the checkpoints kept, the last is the one that was registered: the proof speaks of no other.
    registered = f"/checkpoints/{directory_name(max(published_steps(workspace)))}/"
    damaged |= {
        name: draw.choice([k for k in keys if registered in k and k.endswith(name)])
        for name in ("manifest.json", "manifest.sha256", ".safetensors")[0 if kinds is KINDS else 2 :]
    }
    for kind, key in sorted(damaged.items()):
        whole = flip_one_bit(fs, f"{bucket}/team/{key}", draw)
        code = verify_model("models:/tiny@champion", uri, as_json=True)
        fs.pipe_file(f"{bucket}/team/{key}", whole)
        told = capsys.readouterr().out
        assert code == 5, (kind, told)
        assert key.rpartition("/")[2] in told, (kind, told)


@pytest.mark.long
def test_another_machine_goes_on_from_the_newest_published_checkpoint_once_the_first_is_gone(
    new_project, bucket: str, train_here, wait_until, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_project.edit("tiny.yaml", "max_steps: 120", "max_steps: 240")
    new_project.edit("tiny.yaml", "launch: {", "launch: {owner_lease_s: 4, ")
    uri = f"s3://{bucket}/team"
    workspace = on_the_local_side(new_project, uri)
    lost = new_project.start("retrain", "tiny.yaml", "--workspace", uri)
    wait_until(lambda: new_project.files("runs/*/checkpoints/*/manifest.json") or lost.poll() is not None)
    for rank in (0, 1):
        os.kill(new_project.rank_pid(rank), signal.SIGSTOP)  # it shall not finish before it is lost
    wait_until(lambda: published_steps(workspace) or lost.poll() is not None)
    here = SimpleNamespace(pipeline=new_project.pipeline, workspace=uri)
    monkeypatch.setenv("HEADWAY_LOCAL", str(tmp_path / "another machine"))
    with pytest.raises(EnvironmentProblem, match=f"another machine trains this run already .pid {lost.pid} on "):
        train_here(here)
    os.killpg(lost.pid, signal.SIGKILL)
    lost.wait()
    wait_until(lambda: not new_project.living())
    (kept, *_) = sorted(published_steps(workspace), reverse=True)
    assert 0 < kept < 240

    events = train_here(here)
    assert [event["step"] for event in events if event["event"] == "checkpoints.fetch"] == [kept]
    new_project.workspace.unlink()
    on_the_local_side(new_project, uri)
    (attempt,) = new_project.attempts()
    restored = [event["step"] for event in new_project.rank_events(attempt) if event["event"] == "restore"]
    assert restored == [kept]
    assert max(published_steps(workspace)) == 240
