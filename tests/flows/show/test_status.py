"""Status reads well in a narrow terminal."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.data_contracts.store import refs
from headway.data_contracts.store.documents import Link, RunSpec
from headway.data_contracts.store.errors import ConfigError, IntegrityError, RunStopped
from headway.data_contracts.store.publication import Workspace
from headway.data_contracts.store.published_files import document_path
from headway.flows.cli.command_line import app
from headway.flows.console.console import plain_console
from headway.flows.show.status import (
    CLEAR,
    ModelStatus,
    RunStatus,
    Status,
    print_status,
    read_kept,
    read_status,
    request_stop,
    run_asked,
    watch,
)
from headway.tasks.ownership import current_run
from headway.tasks.ownership.pipeline_history import (
    FailedRetrain,
    FinishedRetrain,
    PipelineEvent,
    record_failure,
    ref_of,
)
from headway.tasks.ownership.run_lease import leased_run
from headway.training.launch.base.failure import Failure
from headway.training.launch.base.gang import LaunchSpec
from headway.training.launch.base.retry_budget import AttemptRecord, AttemptRecords
from headway.training.launch.base.run_lock import owning
from tests.tasks.conftest import NOWHERE, make_context
from tests.waiting import DEADLINE_S

LAST_FINISHED = {"finished_unix_s": 1738206000.0, "started_unix_s": 1738202400.0, "host": "n8", "flow_run": "zero"}
REASON = "bits per byte 2.104 [2.086, 2.122], 0.310 below the champion's on the same 512 examples"
RUN = RunStatus(
    run="0123456789abcdef",
    pipeline="tiny",
    is_running=False,
    owner="",
    step=1_000,
    num_checkpoints=3,
    finished=False,
    folder="/folder",
)


def shown(status: Status) -> list[str]:
    stream = io.StringIO()
    print_status(status, plain_console(stream, width=80))
    return stream.getvalue().splitlines()


def test_no_line_is_wider_than_80_columns_and_nothing_is_cut_off() -> None:
    model = ModelStatus(
        model="stdlib-language-model",
        num_versions=12,
        champion="11",
        challenger="12",
        champion_since="2025-01-31T12:00:00+00:00",
        reason=REASON,
    )
    owner = "pid 123456 on a-host-with-a-rather-long-name.example.org"
    run = RUN.model_copy(update={"pipeline": "stdlib-lm-nightly", "is_running": True, "owner": owner, "step": 123_456})
    lines = shown(Status(workspace="/workspace", models=[model], runs=[run]))
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    facts = ("stdlib-language-model", "v11", "v12", "stdlib-lm-nightly", model.champion_since, run.run, "123,456,")
    for fact in (*facts, *REASON.split()):
        assert fact in words
    assert "0123456789abcdef  running" in lines
    assert all(line == line.rstrip() for line in lines)


def test_no_challenger_beside_a_champion_is_no_line_and_a_run_tells_its_newest_checkpoint() -> None:
    won = ModelStatus(
        model="tiny", num_versions=1, champion="1", challenger=None, champion_since="2025-01-31", reason="first"
    )
    run = RUN.model_copy(update={"checkpoint_step": 800})
    lines = [line.split() for line in shown(Status(workspace="/workspace", models=[won], runs=[run]))]
    assert ["champion", "v1", "since", "2025-01-31"] in lines and not any("challenger" in line for line in lines)
    assert ["step", "1,000,", "3", "checkpoints,", "the", "newest", "of", "step", "800"] in lines
    beaten = won.model_copy(update={"challenger": "2"})
    assert "  challenger  v2" in shown(Status(workspace="/workspace", models=[beaten], runs=[]))
    back = won.model_copy(update={"rolled_back_from": "2", "challenger": "2", "challenger_reason": "is worse"})
    lines = shown(Status(workspace="/workspace", models=[back], runs=[]))
    assert "  champion    v1 since 2025-01-31, rolled back to from v2" in lines
    assert "  why not v2  first" in lines and "  challenger  v2: is worse" in lines
    unbegun = run.model_copy(update={"step": None, "num_checkpoints": 0, "checkpoint_step": None})
    assert "  step      none yet, 0 checkpoints" in shown(Status(workspace="/workspace", models=[], runs=[unbegun]))


def test_a_run_that_ended_early_says_why_and_what_goes_on(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    failure = Failure(what="window closed: stopped at step 7 of 30; a checkpoint was kept.")
    for name, fields in {"": {"state": "stopped", "failure": failure}, "verify": {"state": "done"}}.items():
        folder = workspace.local_path("runs/0123456789abcdef") / name
        folder.mkdir(parents=True, exist_ok=True)
        started_s = 1.0 if name else 2.0
        record = AttemptRecord(
            attempt=1, scope="one", start_unix_s=started_s, continued_by="headway retrain tiny", **fields
        )
        AttemptRecords(folder).begin(record)
        AttemptRecords(folder).end(record)
    status = read_status(workspace.uri)
    text = " ".join(" ".join(shown(status)).split())
    assert f"ended {failure.what} resume headway retrain tiny" in text
    AttemptRecords(folder.parent).end(replace(record, attempt=2, start_unix_s=3.0, state="done"))
    run = read_status(workspace.uri).runs[0]
    assert not run.ended and not run.continued_by


def test_a_retrain_that_was_interrupted_between_its_attempts_says_so_and_what_goes_on(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    context = make_context(workspace, tmp_path / "flow")
    folder = workspace.local_path("runs/0123456789abcdef/export")
    folder.mkdir(parents=True)
    done = AttemptRecord(attempt=1, scope="one", state="done", end_unix_s=5.0, continued_by="headway retrain tiny.yaml")
    AttemptRecords(folder).begin(done)
    AttemptRecords(folder).end(done)
    (folder.parent / "result.json").write_text("{}")

    def told() -> str:
        return " ".join(" ".join(shown(read_status(workspace.uri))).split())

    assert "ended" not in told(), "of which no history says anything"
    current_run.start(context, "0123456789abcdef" * 4)
    assert "ended its owner was killed, or failed, before" in told() and "resume headway retrain tiny.yaml" in told()
    with owning(folder.parent):
        assert "ended" not in told(), "it goes on"
    with pytest.raises(RunStopped), current_run.recording_the_end(context, None):
        raise RunStopped("asked", reason="requested")
    assert "ended it was stopped before" in told() and "resume headway retrain tiny.yaml" in told()
    failed = FailedRetrain(
        pipeline=context.pipeline,
        host="n1",
        flow_run="one",
        stage="register",
        failed_unix_s=6.0,
        failure=Failure(what="MLflow does not answer."),
        card="/card.md",
    )
    record_failure(workspace, failed)
    assert "ended" not in told(), "what failed is told with its card"
    current_run.finish(context, 7.0)
    assert "ended" not in told() and "resume" not in told()


def test_an_unfinished_run_is_gone_on_with_by_its_own_name_since_a_retrain_of_changed_files_begins_another(
    tmp_path: Path,
) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    context = make_context(workspace, tmp_path / "flow")
    link = context.workspace.publish_document(
        RunSpec(
            pipeline="tiny",
            config={},
            manifest=Link(kind="manifest", sha256="1" * 64),
            receipt=Link(kind="receipt", sha256="2" * 64),
            fitted=Link(kind="fitted", sha256="3" * 64),
            code=NOWHERE,
            environment=NOWHERE,
        )
    )
    folder = workspace.local_path(f"runs/{link.sha256[:16]}")
    folder.mkdir(parents=True)
    for typed, shown_as in {
        "headway retrain 'my tiny.yaml' --workspace /w --no-promote --in-window": (
            f"headway resume {link.sha256[:16]} --pipeline 'my tiny.yaml' --workspace /w --no-promote"
        ),
        "headway trials tiny.yaml": "headway trials tiny.yaml",
        "headway retrain 'what somebody wrote": "",
    }.items():
        AttemptRecords(folder).begin(AttemptRecord(attempt=1, scope="one", continued_by=typed))
        AttemptRecords(folder).end(AttemptRecord(attempt=1, scope="one", state="stopped", continued_by=typed))
        assert read_status(workspace.uri).runs[0].continued_by == shown_as
    paused = Failure(cause="stopped", what="stopped at step 30 of 90.", reason="step reached")
    for typed, is_offered in {"headway trials tiny.yaml": False, "headway retrain tiny.yaml": True}.items():
        ended = AttemptRecord(attempt=1, scope="one", state="stopped", failure=paused, continued_by=typed)
        AttemptRecords(folder).end(ended)
        assert bool(read_status(workspace.uri).runs[0].continued_by) == is_offered, "a trial that waits at a rung"
    typed = "headway retrain tiny.yaml"
    AttemptRecords(folder).end(AttemptRecord(attempt=1, scope="one", state="stopped", continued_by=typed))
    (folder / "result.json").write_text("{}")
    assert read_status(workspace.uri).runs[0].continued_by == typed, "what is trained is not resumed"


@pytest.mark.parametrize("width", [20, 40, 80])
def test_paths_and_commands_stand_on_one_line_however_narrow_the_terminal_is(width: int) -> None:
    card = f"/workspace of a team/{'folder-' * 12}/failure.md"
    command = f"headway resume 0123456789abcdef --pipeline /{'folder-' * 12}/tiny.yaml"
    what = f"it cannot read /{'folder-' * 12}/rows.csv, which is damaged."
    failure = FailedRetrain(
        pipeline="tiny",
        stage="validate",
        failed_unix_s=1738292400.0,
        host="n7",
        failure=Failure(cause="data", what=what, advice="Mend it."),
        card=card,
        flow_run="one",
    )
    run = RUN.model_copy(update={"continued_by": command})
    stream = io.StringIO()
    status = Status(workspace="/workspace", models=[], runs=[run], failed=[failure])
    print_status(status, plain_console(stream, width=width))
    lines = stream.getvalue().splitlines()
    for whole in (card, command, what.split()[3]):
        assert any(whole in line for line in lines), whole


def test_a_retrain_that_failed_is_told_before_any_run_with_what_to_do_and_where_its_card_is() -> None:
    failure = FailedRetrain(
        pipeline="tiny",
        stage="validate",
        failed_unix_s=1738292400.0,
        host="n7",
        failure=Failure(cause="contract", what="the data break tiny 1.0.0.", advice="Read the report."),
        card="/workspace/ledger/one/failure.md",
        flow_run="one",
    )
    told = [
        "tiny  FAILED in stage validate",
        "  at     2025-01-31T03:00:00+00:00 on n7",
        "  what   the data break tiny 1.0.0.",
        "  to do  Read the report.",
        "  card   /workspace/ledger/one/failure.md",
    ]
    status = Status(workspace="/workspace", models=[], runs=[], failed=[failure])
    assert shown(status)[3:9] == [*told, "  last   none on record has finished"]
    finished = [FinishedRetrain(pipeline=name, **LAST_FINISHED) for name in ("other", "tiny")]
    assert shown(status.model_copy(update={"finished": finished}))[3:11] == [
        *told,
        "  last   finished 2025-01-30T03:00:00+00:00 on n8",
        "other  retrains",
        "  last  finished 2025-01-30T03:00:00+00:00 on n8",
    ]


def test_a_stop_of_a_run_that_has_ended_says_so_and_at_which_step_and_what_goes_on_instead(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    over, other = (workspace.local_path(f"runs/{name}") for name in ("0123456789abcdef", "1123456789abcdef"))
    for folder in (over, other):
        (folder / "checkpoints" / "step-00000538").mkdir(parents=True)
        (folder / "checkpoints" / "step-00000538" / "manifest.json").write_text("{}")
    with owning(other), pytest.raises(ConfigError) as requested:
        request_stop(workspace.uri, "0123", "")
    assert "run 0123456789abcdef has ended, at step 538." in str(requested.value)
    assert "Running: 1123456789abcdef." in str(requested.value)
    stopped = AttemptRecord(
        attempt=1,
        scope="one",
        state="stopped",
        failure=Failure(what="asked: so it was."),
        continued_by="headway retrain tiny",
    )
    AttemptRecords(over).end(stopped)
    with pytest.raises(ConfigError, match=r"at step 538: asked: so it was\.") as requested:
        request_stop(workspace.uri, "0123", "")
    assert "`headway retrain tiny` resumes it. Running: none." in str(requested.value)
    (over / "result.json").write_text("{}")
    with pytest.raises(ConfigError, match="run 0123456789abcdef is finished, at step 538"):
        request_stop(workspace.uri, "0123", "")
    with pytest.raises(ConfigError, match="'3' names 0 running runs"):
        request_stop(workspace.uri, "3", "")


def test_an_attempt_that_goes_on_has_not_lost_its_owner(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    folder = workspace.local_path("runs/0123456789abcdef") / "export"
    folder.mkdir(parents=True)
    AttemptRecords(folder).begin(AttemptRecord(attempt=1, scope="one", continued_by="headway retrain tiny"))
    with owning(folder):
        assert not read_status(workspace.uri).runs[0].ended
    assert read_status(workspace.uri).runs[0].ended == "its owner was lost."


def test_a_run_of_another_machine_is_told_and_left_to_be_stopped_there(
    new_bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"s3://{new_bucket()}/team"
    context = make_context(Workspace.create(uri), tmp_path / "flow")
    monkeypatch.setenv("HEADWAY_LOCAL", str(tmp_path / "another machine"))
    with leased_run(context, Link(kind="run", sha256="7" * 64), LaunchSpec()):
        (run,) = read_status(uri).runs
        assert run.is_running and run.is_remote and f"pid {os.getpid()} on " in run.owner
        with pytest.raises(ConfigError, match=f"runs on another machine .pid {os.getpid()} on .*Ask for it there"):
            request_stop(uri, "7777", "")
    (run,) = read_status(uri).runs
    assert not run.is_running and not run.is_remote


def test_refs_that_are_gone_are_no_new_workspace(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path))
    workspace.publish_document(
        PipelineEvent(pipeline="tiny", finished=FinishedRetrain(pipeline="tiny", **LAST_FINISHED))
    )
    event = workspace.publish_document(PipelineEvent(pipeline="tiny"))
    refs.move(workspace, ref_of("tiny"), event, expected=None, reason="")
    assert read_status(str(tmp_path)).lost == []
    (tmp_path / "refs").rename(tmp_path / "elsewhere")
    found = read_status(str(tmp_path))
    assert found.lost == ["refs"]
    lines = shown(found)
    assert lines[2] == "refs  GONE" and "backup" in " ".join(lines[3:8])
    (tmp_path / "refs" / "models" / "tiny").mkdir(parents=True)
    assert read_status(str(tmp_path)).lost == ["refs/pipelines"]


def test_an_empty_workspace_says_so() -> None:
    assert {"no models yet", "no runs yet"} <= set(shown(Status(workspace="/workspace", models=[], runs=[])))


@pytest.mark.parametrize("place", ["", "attempts", "checkpoints", "owner.lock", "attempts.jsonl", "result.json"])
@pytest.mark.parametrize("what", ["loop", "file", "fifo"])
def test_what_lies_in_the_place_of_a_run_keeps_nobody_from_seeing_the_others(
    tmp_path: Path, place: str, what: str
) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    good, bad = (workspace.local_path(f"runs/{digit * 16}") for digit in "ab")
    (good / "checkpoints").mkdir(parents=True)
    path = bad / place
    path.parent.mkdir(parents=True, exist_ok=True)
    match what:
        case "loop":
            path.symlink_to(path.name)
        case "file":
            path.write_bytes(b"{")
        case _:
            os.mkfifo(path)
    assert {run.run for run in read_status(workspace.uri).runs} == {"a" * 16, "b" * 16}
    assert run_asked(workspace.uri, "a").run == "a" * 16 and run_asked(workspace.uri, "").run


@pytest.mark.parametrize("what", ["loop", "folder without entries", "entry that is none"])
def test_what_lies_in_the_place_of_a_model_keeps_nobody_from_seeing_the_others(tmp_path: Path, what: str) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    (workspace.local_path("refs/models") / "tiny").mkdir(parents=True)
    path = workspace.local_path("refs/models") / "x"
    if what == "loop":
        path.symlink_to(path.name)
    elif what == "entry that is none":
        (path / "champion").mkdir(parents=True)
        (path / "champion" / "00000001.json").write_bytes(b"{}")
    else:
        path.mkdir()
    found = read_status(workspace.uri)
    assert "tiny" in {model.model for model in found.models}
    assert list(found.damaged) == ([] if what == "folder without entries" else ["refs/models/x"])
    if found.damaged:
        lines = shown(found)
        at = lines.index("refs/models/x  DAMAGED")
        assert "circle" in " ".join(lines[at:]) or "not a readable ref entry" in " ".join(lines[at:])
        with pytest.raises(IntegrityError):
            read_kept(workspace)  # what is watched by machines is whole, or none


def test_a_run_is_known_by_its_pipeline_as_long_as_its_document_is_whole(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    nothing, digest = workspace.publish("nothing", b""), "0" * 64
    link = workspace.publish_document(
        RunSpec(
            pipeline="nightly",
            config={},
            manifest=Link(kind="manifest", sha256=digest),
            receipt=Link(kind="receipt", sha256=digest),
            fitted=Link(kind="fitted", sha256=digest),
            code=nothing,
            environment=nothing,
        )
    )
    workspace.local_path(f"runs/{link.sha256[:16]}").mkdir(parents=True)
    workspace.local_path("runs/0123456789abcdef").mkdir()

    def pipelines() -> dict[str, str]:
        return {run.run: run.pipeline for run in read_status(workspace.uri).runs}

    assert pipelines() == {link.sha256[:16]: "nightly", "0123456789abcdef": ""}
    workspace.publish(f"{document_path(link)}~", b"an editor's")
    assert pipelines() == {link.sha256[:16]: "nightly", "0123456789abcdef": ""}
    workspace.publish(document_path(link), b"{}")
    assert pipelines() == {link.sha256[:16]: "", "0123456789abcdef": ""}


def test_a_pipeline_whose_windows_close_before_its_run_is_finished_waits_and_then_starves(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    entry = None
    for cut, message in ((0, None), (1, "tiny  resumes in its next window"), (5, "tiny  STARVING")):
        now = PipelineEvent(pipeline="tiny", run="0" * 16, state="cut" if cut else "finished", windows_cut=cut)
        target = workspace.publish_document(now.model_copy(update={"starving": cut == 5}))
        entry = refs.move(workspace, ref_of("tiny"), target, expected=entry, reason="cut")
        lines = shown(read_status(workspace.uri))
        assert (message in lines) if message else not any("tiny" in line for line in lines)
    assert f"  windows  5 windows in a row closed before run {'0' * 16} was finished." in lines


@pytest.mark.process
def test_a_live_view_shows_the_status_again_in_place_until_ctrl_c(tmp_path: Path) -> None:
    workspace = Workspace.create(str(tmp_path / "workspace"))
    workspace.local_path("documents").mkdir()
    command = (sys.executable, "-m", "headway", "status", "--watch", "--workspace", workspace.uri)
    ours, theirs = os.openpty()
    watching = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)  # else its end would not be seen
    try:
        shown = ""
        while shown.count(CLEAR) < 3:
            shown += os.read(ours, 10_000).decode()
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate(timeout=DEADLINE_S)
    finally:
        watching.kill()
        watching.wait()
        os.close(ours)
    assert shown.count("no runs yet") >= 2 and watching.returncode == 130
    assert "Traceback" not in said


@pytest.mark.parametrize("option", ["--json"])
def test_a_live_view_is_for_people_at_a_terminal(tmp_path: Path, option: str) -> None:
    workspace = str(Workspace.create(str(tmp_path / "workspace")).uri)
    assert "--watch is for people" in CliRunner().invoke(app, ["status", "--watch", option, "-w", workspace]).output
    with pytest.raises(ConfigError, match="needs a terminal"):
        watch(workspace)
