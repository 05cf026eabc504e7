"""Lines of ranks as JSON, made by their guard: each one once, with who wrote it and how serious it is; files stay."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.training.launch.base.gang import LaunchSpec, attempt_folder
from headway.training.launch.base.protocol import LOG_FORMAT, LOG_PIPE, AttemptFiles
from headway.training.launch.diagnosis.logs import RunLogs
from headway.training.launch.node.json_log import MAX_LINE_BYTES, JsonLog, take_pipe
from headway.training.launch.supervise.supervisor import supervise
from headway.training.observe.trace_context import TRACEPARENT, flow_trace

RUN = "0123456789abcdef"
ASKED = {LOG_FORMAT: "json", TRACEPARENT: flow_trace("af91d8ec-7cb3-4fd4-bed9-d2ef69bba001").header}


class Node:
    """Files of a node as its ranks write them, and the JSON that its guard makes of them."""

    def __init__(self, run_dir: Path, environ: dict[str, str], node: int = 0, pipe: int | None = None) -> None:
        self.files, self.node = AttemptFiles(attempt_folder(run_dir, 2)), node
        self.files.folder.mkdir(parents=True, exist_ok=True)
        self.lines = JsonLog(self.files, node, 2, 2, environ, pipe)

    def write(self, local: int, data: bytes, stream: str = "stdout") -> None:
        path = self.files.rank_logs(self.node) / "abc" / "attempt_0" / str(local) / f"{stream}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def look(self) -> list[dict[str, Any]]:
        self.lines._looked_s = 0.0
        self.lines.look()
        return self.objects()

    def objects(self) -> list[dict[str, Any]]:
        path = self.files.json_lines(self.node)
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def messages(objects: list[dict[str, Any]]) -> list[str]:
    return [each["message"] for each in objects]


def test_a_line_says_who_wrote_it_when_and_in_which_trace(tmp_path: Path) -> None:
    node = Node(tmp_path / "runs" / RUN, ASKED, node=1)
    before_s = time.time()
    node.write(1, "grüße\n".encode())
    (line,) = node.look()
    moment = datetime.datetime.fromisoformat(line.pop("time"))
    assert before_s - 0.01 <= moment.timestamp() <= time.time() and moment.tzinfo is not None
    assert line.pop("host")
    assert line == {
        **{"level": "info", "message": "grüße", "run": RUN, "gang": "train", "attempt": 2, "node": 1},
        **{"rank": 3, "stream": "stdout", "trace_id": "af91d8ec7cb34fd4bed9d2ef69bba001"},
    }


def test_gangs_of_a_run_are_told_apart(tmp_path: Path) -> None:
    node = Node(tmp_path / "runs" / RUN / "evaluate" / "ffffffffffffffff", ASKED)
    node.files.node_log(0).write_text("by the guard\n")
    (line,) = node.look()
    assert (line["run"], line["gang"]) == (RUN, "evaluate/ffffffffffffffff")
    assert (line["rank"], line["stream"]) == (None, "node")
    elsewhere = Node(tmp_path / "elsewhere", {LOG_FORMAT: "json"})
    elsewhere.write(0, b"x\n")
    (line,) = elsewhere.look()
    assert (line["run"], line["gang"], line["trace_id"]) == ("elsewhere", "train", "")


def test_nobody_asked_and_nothing_is_written(tmp_path: Path) -> None:
    node = Node(tmp_path, {})
    node.write(0, b"one\n")
    assert node.look() == []
    node.lines.finish()
    assert not node.files.json_lines(0).exists()


LEVELS = {
    "stdout": [
        *(
            ("plain words", "info"),
            ("WARNING:root:of Python", "warning"),
            ("2026-11-26 10:00:00 ERROR db: no", "error"),
        ),
        *(("INFORMATION is no level", "info"), ("[rank0]:[W1126 10:00:00.123 c10d] of torch", "warning")),
        *(("E1126 10:00:00.123456 of torch", "error"), ("F1126 10:00:00.123 dies", "critical")),
    ],
    "stderr": [
        *(("as logging's last resort", "warning"), ("INFO: just so", "info"), ("a.py:3: UserWarning: mind", "warning")),
        *(("Traceback (most recent call last):", "error"), ('  File "x.py", line 1', "error"), ("    1/0", "error")),
        *(("ZeroDivisionError: by zero", "error"), ("after it", "warning")),
    ],
}


@pytest.mark.parametrize("stream", LEVELS)
def test_levels_are_those_that_lines_say_and_else_those_of_their_stream(tmp_path: Path, stream: str) -> None:
    node = Node(tmp_path, ASKED)
    node.write(0, "".join(f"{text}\n" for text, _ in LEVELS[stream]).encode(), stream)
    assert [(each["message"], each["level"]) for each in node.look()] == LEVELS[stream]


def test_every_line_comes_once_whole_and_the_last_one_even_torn(tmp_path: Path) -> None:
    node = Node(tmp_path, ASKED)
    node.write(0, b"one\nhal")
    assert messages(node.look()) == ["one"]
    node.write(0, b"f\n\n\xff\x00\r\n" + b"x" * (MAX_LINE_BYTES + 5) + b"\nin the middle of a li")
    assert messages(node.look()) == ["one", "half", "\N{REPLACEMENT CHARACTER}\0", "x" * MAX_LINE_BYTES, "x" * 5]
    node.lines.finish()
    assert messages(node.objects())[-1] == "in the middle of a li"
    node.lines.finish()
    assert len(node.objects()) == 6


def test_a_file_longer_than_one_look_comes_whole_at_the_end(tmp_path: Path) -> None:
    node = Node(tmp_path, ASKED)
    written = [f"{number:>99}" for number in range(3_500)]
    node.write(0, "".join(f"{line}\n" for line in written).encode())
    assert 0 < len(node.look()) < 3_500, "the guard has other duties"
    node.lines.finish()
    assert messages(node.objects()) == written


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_who_reads_slowly_is_not_waited_for_and_loses_nothing(tmp_path: Path, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    node = Node(tmp_path, ASKED, pipe=writing)
    written = [f"{number:>99}" for number in range(4_000)]
    node.write(0, "".join(f"{line}\n" for line in written).encode())
    started_s, data = time.monotonic(), b""
    node.look()
    assert time.monotonic() - started_s < 1.0, "the pipe is full"
    waiting = len(node.lines._waiting)
    node.look()
    assert 0 < len(node.lines._waiting) == waiting, "no more is read before there is room"
    while data.count(b"\n") < len(written):
        data += os.read(reading, 1 << 16)
        node.look()
    assert messages([json.loads(line) for line in data.splitlines()]) == written
    assert not node.files.json_lines(0).exists()


def test_a_full_disk_costs_the_guard_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, ASKED)
    node.files.json_lines(0).mkdir()
    node.write(0, b"one\n")
    node.lines.look()
    node.files.json_lines(0).rmdir()
    assert messages(node.look()) == ["one"]


def test_the_pods_pipe_is_its_guards_alone() -> None:
    environ = {LOG_PIPE: "7", "PATH": "x"}
    assert take_pipe(environ) == 7 and environ == {"PATH": "x"}
    assert take_pipe({}) is None and take_pipe({LOG_PIPE: "²"}) is None


@pytest.mark.process
@pytest.mark.usefixtures("forked_agents")
def test_a_real_gang_speaks_json_beside_its_files_also_where_a_rank_is_killed(toy_run: Any) -> None:
    trouble = json.dumps({"kind": "kill", "rank": 1, "attempt": 1, "step": 3})
    gang = toy_run.gang("--steps", "6", "--in-step", "--trouble", trouble)
    asked = dataclasses.replace(gang, environment=ASKED)
    outcome = supervise(
        LaunchSpec(backoff_s=0), asked, ledger=toy_run.ledger, budget_scope="one", poll=toy_run.newest_step
    )
    assert outcome.state == "done"
    plain = list(RunLogs(toy_run.folder).read(is_over=True))
    objects = [
        json.loads(line)
        for number in (1, 2)
        for node in (0, 1)
        for line in toy_run.attempt(number).json_lines(node).read_bytes().splitlines()
    ]
    spoken = sorted(
        (line.attempt, line.node, line.rank, line.stream, line.text) for line in plain if line.rank is not None
    )
    as_json = sorted(
        (each["attempt"], each["node"], each["rank"], each["stream"], each["message"])
        for each in objects
        if each["rank"] is not None
    )
    assert as_json == spoken, "and `headway logs` reads what it read before"
    assert (1, 1, 1, "stderr", "in the middle of a li") in as_json, "what a killed rank had begun to say"
    assert {each["trace_id"] for each in objects} == {"af91d8ec7cb34fd4bed9d2ef69bba001"}
    assert {each["host"] for each in objects} == {line.host for line in plain}
