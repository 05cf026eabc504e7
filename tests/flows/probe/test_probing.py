"""A probe makes a whole retrain on made-up data, and leaves its record, its cost and a bounded number of folders."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from pydantic import ValidationError

from headway.data_contracts.store.errors import IntegrityError, TrainingFailed
from headway.data_contracts.store.publication import Workspace
from headway.flows.accounts.cost import costs
from headway.flows.accounts.flow_account import PROBE
from headway.flows.accounts.kept_accounts import all_accounts
from headway.flows.accounts.probe_records import FOLDER as RECORDS
from headway.flows.accounts.probe_records import KEPT as KEPT_RECORDS
from headway.flows.accounts.probe_records import ProbeRecord, keep_probe, newest_probe, newest_probes
from headway.flows.config.pipeline_spec import load_pipeline
from headway.flows.config.profiles import PricesSpec
from headway.flows.monitoring.workspace_metrics import WorkspaceMetrics
from headway.flows.probe.probing import FOLDER, KEPT, _prune, run_probe, write_project
from headway.flows.probe_flow import ProbeRequest, probe
from headway.flows.show.board import read_board
from headway.training.launch.base.gang import LaunchSpec

ONE_RANK = LaunchSpec(nodes=1, ranks_per_node=1)


def record(end_unix_s: float, *, launcher: str = "local", **fields: object) -> ProbeRecord:
    usual = {
        "launcher": launcher,
        "host": "h",
        "flow_run": "f",
        "begin_unix_s": end_unix_s - 30,
        "end_unix_s": end_unix_s,
        "interval_s": 3600.0,
        "has_succeeded": True,
        "last_success_unix_s": end_unix_s,
    }
    return ProbeRecord.model_validate({**usual, **fields})


@pytest.mark.long
@pytest.mark.e2e
def test_a_probe_goes_through_every_stage_and_a_failed_one_tells_when_one_last_succeeded(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    old = [f"local-2020010{day}T000000000000Z" for day in range(1, 6)]
    for name in (*old, "slurm-20200101T000000000000Z"):
        (tmp_path / "workspace" / FOLDER / name / "refs").mkdir(parents=True)
        (tmp_path / "workspace" / FOLDER / name / "refs" / "entry.json").write_text("{}")

    made = probe.fn(ProbeRequest(launch=ONE_RANK, workspace=workspace.uri))
    assert made.has_succeeded and made.last_success_unix_s == made.end_unix_s and made.stage == made.message == ""
    (account,) = all_accounts(workspace)
    assert (account.pipeline, account.job_class, account.has_registered) == ("headway-probe", PROBE, True)
    (own,) = [each for each in sorted((tmp_path / "workspace" / FOLDER).iterdir()) if "-2020" not in each.name]
    assert [each.name for each in (own / "refs" / "models").iterdir()] == ["headway-probe"]
    stages = {path.parts[-2] for path in (own / "stages").rglob("*.json")}
    assert {"snapshot", "validate", "shard", "verify", "evaluate", "register"} <= stages, stages
    left = sorted(each.name for each in (tmp_path / "workspace" / FOLDER).iterdir())
    assert left == [*sorted(old)[-(KEPT - 1) :], own.name, "slurm-20200101T000000000000Z"]
    # What it cost is told by pipeline, and nothing else counts it.
    prices = PricesSpec(device_hour_usd={"any": 1.0})
    (line,) = costs(all_accounts(workspace), "pipeline", prices)
    assert line.name == "headway-probe" and line.usd > 0
    board = read_board(workspace.uri, 90, prices)
    assert board.tally.num_flow_runs == 0 and not board.tally.outcomes and board.listed == [] and board.newest == []
    assert board.tally.cost.usd == pytest.approx(line.usd)
    text = generate_latest(WorkspaceMetrics(workspace, prices)).decode()
    assert 'headway_probe_success{launcher="local"} 1.0' in text
    assert "train_runs_total{" not in text and 'train_time_seconds_total{state="productive"} 0.0' in text

    # One that cannot be done in time is ended, and nobody of it is left.
    again = run_probe(workspace, ONE_RANK, interval_s=3600, within_s=0.5)
    assert not again.has_succeeded and "not done within" in again.message
    assert again.last_success_unix_s == made.last_success_unix_s
    assert newest_probe(workspace, "local") == again
    assert 'headway_probe_success{launcher="local"} 0.0' in generate_latest(WorkspaceMetrics(workspace)).decode()


@pytest.mark.process
def test_a_failed_probe_fails_its_flow_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.flows.probe.probing._retrain", lambda *_: (6, "the launcher is away."))
    with pytest.raises(TrainingFailed, match=r"probe of launcher local failed: the launcher is away"):
        probe.fn(ProbeRequest(workspace=str(tmp_path / "workspace")))


@pytest.mark.process
def test_in_object_storage_records_and_folders_are_bounded_there_and_on_this_machine(
    new_bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_LOCAL", str(tmp_path))
    monkeypatch.setattr("headway.flows.probe.probing._retrain", lambda *_: (6, "the launcher is away."))
    workspace = Workspace.create(f"s3://{new_bucket()}/team")
    for day in range(1, 7):
        own = Workspace.create(f"{workspace.uri}/{FOLDER}/local-2020010{day}T000000000000Z")
        own.publish("refs/entry.json", b"{}")
        own.local_path("left").write_bytes(b"")
    roots = {Workspace(f"{workspace.uri}/{FOLDER}/{name}").local_root for name in workspace.names(FOLDER)}
    made = run_probe(workspace, ONE_RANK, interval_s=60, within_s=60)
    assert newest_probes(workspace) == [made] and made.message == "the launcher is away."
    assert workspace.names(FOLDER) == [f"local-2020010{day}T000000000000Z" for day in (4, 5, 6)]
    assert sorted(root.name for root in roots if root.exists()) == sorted(
        Workspace(f"{workspace.uri}/{FOLDER}/local-2020010{day}T000000000000Z").local_root.name for day in (4, 5, 6)
    )


@pytest.mark.parametrize(
    ("launch", "batch"), [(ONE_RANK, 64), (LaunchSpec(nodes=4, ranks_per_node=2), 256), (LaunchSpec(nodes=3), 128)]
)
def test_the_shipped_pipeline_takes_any_launcher_and_has_a_micro_batch_for_each_rank(
    tmp_path: Path, launch: LaunchSpec, batch: int
) -> None:
    write_project(tmp_path, launch, seed=1)
    spec = load_pipeline(tmp_path / "pipeline.yaml")
    assert spec.launch == launch and spec.training.global_batch_sequences == batch
    assert len(list((tmp_path / "data").iterdir())) == 4


def test_nothing_but_old_probes_is_taken_away(tmp_path: Path) -> None:
    """Neither a folder of somebody's with another name nor, where `probes` is a link, what lies behind it."""
    workspace, theirs = Workspace.create(str(tmp_path / "workspace")), tmp_path / "theirs"
    probes = [f"local-2020010{day}T000000000000Z" for day in range(1, 6)]
    for folder in (theirs, tmp_path / "workspace" / FOLDER):
        for name in (*probes, "local-notes", "local-1"):
            (folder / name).mkdir(parents=True)
    _prune(workspace, "local", until=probes[-1])
    left = {path.name for path in (tmp_path / "workspace" / FOLDER).iterdir()}
    assert left == {*probes[-KEPT:], "local-notes", "local-1"}
    (tmp_path / "workspace" / FOLDER).rename(tmp_path / "before")
    (tmp_path / "workspace" / FOLDER).symlink_to(theirs)
    with pytest.raises(IntegrityError, match="a link"):
        _prune(workspace, "local", until=probes[-1])
    assert len(list(theirs.iterdir())) == len(probes) + 2


def test_records_are_bounded_and_one_that_is_damaged_hides_none(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path))
    for number in range(KEPT_RECORDS + 3):
        keep_probe(workspace, record(1_000_000.0 + number))
    keep_probe(workspace, record(50.0, launcher="ssh"))
    folder = tmp_path / RECORDS / "local"
    assert len(list(folder.iterdir())) == KEPT_RECORDS
    (folder / "20990101T000000000000Z.json").write_text("{")
    assert [(each.launcher, each.end_unix_s) for each in newest_probes(workspace)] == [
        ("local", 1_000_000.0 + KEPT_RECORDS + 2),
        ("ssh", 50.0),
    ]


def test_a_record_of_a_moment_to_come_or_under_another_name_hides_no_failure(tmp_path: Path) -> None:
    """A machine whose clock was years ahead once left a success behind, and every failure since was hidden by it."""
    workspace, now_s = Workspace.create(str(tmp_path)), time.time()
    failed = record(now_s - 60.0).model_copy(update={"has_succeeded": False})
    ahead = record(now_s + 3 * 365 * 86_400.0).model_copy(update={"has_succeeded": True})
    keep_probe(workspace, ahead)
    keep_probe(workspace, failed)
    assert newest_probes(workspace) == [failed]
    copied = record(now_s - 7200.0).model_copy(update={"has_succeeded": True})
    workspace.publish_json(f"{RECORDS}/local/{'9' * 8}T{'0' * 12}Z.json", copied.model_dump(mode="json"))
    assert newest_probes(workspace) == [failed]
    for number in range(KEPT_RECORDS):
        keep_probe(workspace, ahead.model_copy(update={"end_unix_s": ahead.end_unix_s + number}))
    keep_probe(workspace, failed)
    assert newest_probes(workspace) == [failed], "it is not pushed out either"


def test_folders_of_moments_to_come_push_no_evidence_out(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path))
    probes = [f"local-2020010{day}T000000000000Z" for day in range(1, 6)]
    ahead = [f"local-2999010{day}T000000000000Z" for day in range(1, 6)]
    for name in (*probes, *ahead):
        (tmp_path / FOLDER / name).mkdir(parents=True)
    _prune(workspace, "local", until=probes[-1])
    assert {path.name for path in (tmp_path / FOLDER).iterdir()} == {*probes[-KEPT:], *ahead}


@pytest.mark.parametrize("field", ["interval_s", "within_s"])
@pytest.mark.parametrize("odd", ["inf", "nan", 1e300, 0, -1])
def test_a_form_takes_no_number_that_no_record_could_hold(field: str, odd: float | str) -> None:
    with pytest.raises(ValidationError):
        ProbeRequest.model_validate({field: odd})


def test_one_is_late_after_two_intervals_and_ten_minutes() -> None:
    assert not record(1000.0).is_late(1000.0 + 7800) and record(1000.0).is_late(1000.0 + 7801)
