"""`headway logs`: the run that is meant, every line with who wrote it, to the end of a run that goes on."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import pytest

from headway.data_contracts.store.errors import ConfigError, EnvironmentProblem
from headway.data_contracts.store.publication import Workspace
from headway.flows.show import logs
from headway.flows.show.logs import show_logs
from headway.flows.show.status import request_stop
from headway.training.launch.base.gang import Gang, LaunchSpec, PreflightSpec, attempt_folder
from headway.training.launch.base.protocol import OWNER_SILENT, AttemptFiles, write_json
from headway.training.launch.base.retry_budget import RECORDS_NAME
from headway.training.launch.base.run_lock import owning
from headway.training.launch.supervise.supervisor import supervise
from headway.training.observe.ledger import Ledger


class Written:
    """A run of one rank on one node."""

    def __init__(self, workspace: Path, name: str) -> None:
        self.folder = workspace / "runs" / name
        files = AttemptFiles(attempt_folder(self.folder, 1))
        self._log = files.rank_logs(0) / "abc" / "attempt_0" / "0" / "stdout.log"
        self._log.parent.mkdir(parents=True)
        self._index = files.log_times(0)
        self.spool = files.rank_spool(0)
        files.node_log(0).touch()
        node = {"node": 0, "guard_pid": 1, "agent_pid": 1, "state": "running", "host": "somewhere"}
        write_json(files.status(0), node)
        rank = {"rank": 0, "pid": 1, "parent_pid": 1, "state": "running", "unix_s": 0.0}
        write_json(files.marker(0), rank | {"log": str(self._log)})

    def say(self, text: str, unix_s: float) -> None:
        with self._log.open("a") as stream:
            stream.write(text)
        with self._index.open("a") as stream:
            name = str(self._log.relative_to(self._index.parent))
            stream.write(json.dumps([unix_s, name, self._log.stat().st_size]) + "\n")

    def record(self, name: str, unix_s: float, **fields: Any) -> None:
        with contextlib.closing(Ledger(self.spool)) as ledger:
            ledger.event(name, **fields, unix_s=unix_s)

    def attempt(self, name: str, unix_s: float, **fields: Any) -> None:
        """How its one attempt begins or ends, in the records of attempts."""
        with contextlib.closing(Ledger(self.folder / RECORDS_NAME)) as ledger:
            ledger.event(name, **{"unix_s": unix_s, "attempt": 1, "scope": "flow"}, **fields)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    Workspace.create(str(tmp_path)).publish("documents/anything", b"")
    return tmp_path


def test_a_line_says_when_and_who_wrote_it(workspace, capsys) -> None:
    run = Written(workspace, "a" * 16)
    run.say("epoch [1] :tada:\nstep 2\n", 1.0)
    show_logs(str(workspace), "aaa")
    first, *lines = capsys.readouterr().out.splitlines()
    assert "train, attempt 1" in first
    assert [line.split("somewhere/0 rank 0", 1)[1].strip() for line in lines] == ["epoch [1] :tada:", "step 2"]
    show_logs(str(workspace), "", tail=1, as_json=True)
    line = json.loads(capsys.readouterr().out)
    assert line == {
        **{"unix_s": 1.0, "gang": "train", "attempt": 1, "node": 0, "host": "somewhere", "rank": 0},
        **{"stream": "stdout", "event": "", "text": "step 2"},
    }


def test_what_happened_stands_by_its_time_among_what_was_written_and_is_marked(workspace, capsys) -> None:
    run = Written(workspace, "a" * 16)
    run.attempt("attempt.begin", 1.0)
    run.record("rank.armed", 2.0)
    run.say("written\n", 3.0)
    run.record("checkpoint.durable", 4.0, step=5, size_bytes=2_000_000, durable_s=0.25)
    run.attempt("attempt", 6.0, state="failed", step=7, failure={"what": "rank 0 was killed."})
    show_logs(str(workspace), "")
    lines = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert [" ".join(line.split()) for line in lines] == [
        "headway attempt 1 begins.",
        "headway rank rank 0 is process 1 on somewhere.",
        "somewhere/0 rank 0 written",
        "headway checkpoint of step 5 is kept: 2.0 MB in 0.25 s.",
        "headway attempt 1 failed at step 7: rank 0 was killed.",
    ]
    show_logs(str(workspace), "", as_json=True)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = ["attempt.begin", "rank.armed", "", "checkpoint.durable", "attempt"]
    assert [line["event"] for line in told] == names
    assert [line["stream"] == "ledger" for line in told] == [bool(name) for name in names]


@pytest.mark.parametrize("scope", ["\0", "../../elsewhere", "/etc", ".."])
def test_a_record_that_names_an_owner_elsewhere_leads_nowhere(workspace, capsys, scope: str) -> None:
    run = Written(workspace, "a" * 16)
    with contextlib.closing(Ledger(run.folder / RECORDS_NAME)) as ledger:
        ledger.event("attempt.begin", attempt=1, scope=scope, unix_s=1.0)
    run.say("written\n", 3.0)
    with contextlib.closing(Ledger(workspace.parent / "elsewhere" / "flow.jsonl")) as ledger:
        ledger.event("attempt.start", attempt=1, duration_s=1.0, folder=str(attempt_folder(run.folder, 1)))
    show_logs(str(workspace), "")
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[-1] for line in lines if "begins" not in line] == ["written"]


def test_a_run_whose_ranks_wrote_nothing_is_told_by_what_happened(workspace, capsys) -> None:
    run = Written(workspace, "a" * 16)
    run.attempt("attempt.begin", 1.0)
    run.attempt("attempt", 2.0, state="done", step=7, failure={"what": ""})
    show_logs(str(workspace), "")
    message = capsys.readouterr()
    assert message.err == "" and "1 done at step 7." in message.out


@pytest.mark.process
def test_a_run_whose_launch_was_refused_before_a_rank_started_says_what_was_refused(workspace, capsys) -> None:
    run_dir = workspace / "runs" / ("a" * 16)
    gang = Gang(module="never", arguments=(), nodes=1, ranks_per_node=1, import_path=(), run_dir=run_dir)
    spec = LaunchSpec(nodes=1, preflight=PreflightSpec(environment=("NO_SUCH_SECRET",)))
    with (
        contextlib.closing(Ledger(workspace / "ledger" / "one" / "flow.jsonl")) as ledger,
        pytest.raises(EnvironmentProblem, match="NO_SUCH_SECRET"),
    ):
        supervise(spec, gang, ledger=ledger, budget_scope="one", poll=lambda: None)
    show_logs(str(workspace), "")
    started, failed = capsys.readouterr().out.splitlines()[1:]
    assert "1 begins." in started
    assert "1 failed: " in failed and "NO_SUCH_SECRET is not set" in failed


def test_where_an_attempt_started_from_is_told(workspace, capsys) -> None:
    run = Written(workspace, "a" * 16)
    run.record("rank.armed", 1.0)
    for step in (0, 1500):
        run.record("restore", 1.0, duration_s=1.0, outcome="ok", step=step)
    show_logs(str(workspace), "")
    anew, again = capsys.readouterr().out.splitlines()[2:]
    assert anew.endswith("at step 0.") and again.endswith("resumes from the checkpoint of step 1,500")


def test_of_steps_one_a_minute_is_told(workspace, capsys) -> None:
    run = Written(workspace, "a" * 16)
    for step in range(1, 14):
        run.record("step", 1000.0 + 10 * step, step=step, loss=1.0, duration_s=10.0)
    show_logs(str(workspace), "", as_json=True)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    steps = [line["text"].split()[1] for line in told if line["event"] == "step"]
    assert steps == ["1:", "7:", "13:"]


@pytest.mark.process
def test_the_ledger_of_a_long_run_is_never_in_memory_as_a_whole(workspace, capsys) -> None:
    run, num_steps = Written(workspace, "a" * 16), 20_000
    run.record("rank.armed", 1.0)
    steps = ({"event": "step", "unix_s": 1e6 + i, "step": i, "loss": 1.0, "duration_s": 0.5} for i in range(num_steps))
    with run.spool.open("a") as spool:
        spool.writelines(json.dumps({**step, "traffic": {"all_reduce": {"num_calls": 1}}}) + "\n" for step in steps)
    show_logs(str(workspace), "", tail=0)  # what is loaded at first use is no part of the ledger
    tracemalloc.start()
    try:
        show_logs(str(workspace), "", tail=1)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "step       19,980: loss 1.0000" in capsys.readouterr().out, "one a minute"
    assert peak_bytes < run.spool.stat().st_size / 2


def test_a_rank_that_was_killed_and_one_that_failed_after_it_are_told_apart(workspace, capsys) -> None:
    run = Written(workspace, "a" * 16)
    files = AttemptFiles(attempt_folder(run.folder, 1))
    with contextlib.closing(Ledger(files.node_spool(0), node=0)) as ledger:
        ledger.event("rank.lost", ranks=[0], unix_s=1.0)
        ledger.event("agent.stop", why="rank 0 vanished", unix_s=1.5)
    echo = {"rank": 1, "pid": 2, "parent_pid": 1, "state": "failed", "unix_s": 2.0}
    write_json(files.marker(1), {**echo, "failure": {"what": "a peer\nis gone."}})
    show_logs(str(workspace), "")
    killed, failed = capsys.readouterr().out.splitlines()[1:]
    assert "rank 0 is gone without a word: it crashed, or was killed" in killed
    assert "rank 1 failed: a peer is gone." in failed


def test_a_guard_that_ends_its_ranks_on_its_own_account_says_why(workspace, capsys) -> None:
    run = Written(workspace, "a" * 16)
    files = AttemptFiles(attempt_folder(run.folder, 1))
    with contextlib.closing(Ledger(files.node_spool(0), node=0)) as ledger:
        ledger.event("agent.stop", why=OWNER_SILENT)
        ledger.event("agent.stop", why="stop")
    show_logs(str(workspace), "")
    (told,) = capsys.readouterr().out.splitlines()[1:]
    assert f"node 0 ends its ranks: {OWNER_SILENT}." in told


def test_without_a_name_it_is_the_run_that_goes_on_or_else_the_newest(workspace, capsys) -> None:
    for age_s, name in ((10, "b" * 16), (0, "c" * 16)):
        run = Written(workspace, name)
        run.say(f"{name[0]}\n", 1.0)
        attempt = attempt_folder(run.folder, 1)
        os.utime(attempt, (1e9 - age_s, 1e9 - age_s))
    show_logs(str(workspace), "")
    assert capsys.readouterr().out.splitlines()[-1].endswith("  c")
    with owning(workspace / "runs" / ("b" * 16)):
        show_logs(str(workspace), "")
    assert capsys.readouterr().out.splitlines()[-1].endswith("  b")


def test_the_newest_is_the_one_trained_last_though_an_older_champion_was_evaluated_since(workspace, capsys) -> None:
    for trained_s, name in ((10.0, "b" * 16), (20.0, "c" * 16)):
        run = Written(workspace, name)
        run.say(f"{name[0]}\n", 1.0)
        os.utime(attempt_folder(run.folder, 1), (trained_s, trained_s))
    attempt_folder(workspace / "runs" / ("b" * 16) / "evaluate" / "now", 1).mkdir(parents=True)
    show_logs(str(workspace), "")
    assert capsys.readouterr().out.splitlines()[-1].endswith("  c")


def test_where_nothing_was_written_that_is_said(workspace, capsys) -> None:
    run = Written(workspace, "a" * 16)
    run.say("one\n", 1.0)
    show_logs(str(workspace), "", ranks=(7,), attempt=3)
    message = capsys.readouterr()
    assert message.out == ""
    assert f"headway: nothing was written by rank 7 in attempt 3 at training in run {'a' * 16}.\n" in message.err
    show_logs(str(workspace), "", tail=0)
    message = capsys.readouterr()
    assert message.out == "" and "headway:" not in message.err


def test_who_follows_sees_all_to_the_last_word_and_then_it_ends(workspace, capsys, monkeypatch) -> None:
    run, is_running = Written(workspace, "d" * 16), contextlib.ExitStack()
    is_running.enter_context(owning(run.folder))
    run.say("one\n", 1.0)
    happens = iter(
        [
            lambda: run.say("two\n", 2.0),
            lambda: run.attempt("attempt.begin", 2.5),
            lambda: (run.say("last words", 3.0), is_running.close()),
        ]
    )
    monkeypatch.setattr(logs.time, "sleep", lambda _s: next(happens)())
    show_logs(str(workspace), "d", follow=True)
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["one", "two", "begins.", "words"]
    assert next(happens, None) is None


def test_a_run_is_found_by_the_flow_run_that_trained_it_which_is_what_an_alert_names(workspace, capsys) -> None:
    for name, text in (("a" * 16, "mine"), ("b" * 16, "another's")):
        Written(workspace, name).say(f"{text}\n", 1.0)
    flow_run = str(uuid.uuid4())
    with contextlib.closing(Ledger(workspace / "ledger" / flow_run / "flow.jsonl")) as ledger:
        ledger.event("run.folder", run="a" * 64, path=str(workspace / "runs" / ("a" * 16)))
    show_logs(str(workspace), flow_run)
    message = capsys.readouterr().out
    assert "mine" in message and "another's" not in message
    with pytest.raises(ConfigError, match="has ended"):
        request_stop(str(workspace), flow_run, "")
    with pytest.raises(ConfigError, match="names 0 runs"):
        show_logs(str(workspace), str(uuid.uuid4()))


@pytest.mark.process
def test_no_line_is_lost_of_a_run_with_more_logs_than_may_be_open_by_default(workspace) -> None:
    run = Written(workspace, "a" * 16)
    run.say("said 0\n", 1.0)
    one = attempt_folder(run.folder, 1)
    for number in range(2, 65):
        shutil.copytree(one, attempt_folder(run.folder, number))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    done = subprocess.run(
        [sys.executable, "-m", "headway", "logs", "--workspace", str(workspace), "--json"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, most)),
    )
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()].count("said 0") == 64, done.stderr


def test_what_cannot_be_shown_is_refused_with_what_there_is(workspace) -> None:
    Written(workspace, "e" * 16)
    Written(workspace, "ef" * 8)
    with pytest.raises(ConfigError, match="'e' names 2 runs"):
        show_logs(str(workspace), "e")
    with pytest.raises(ConfigError, match=f"'x' names 0 runs.*{'e' * 16}"):
        show_logs(str(workspace), "x")
    (workspace / "runs" / ("f" * 16)).mkdir()
    with pytest.raises(ConfigError, match="no attempt of this run has started on this machine"):
        show_logs(str(workspace), "f")
