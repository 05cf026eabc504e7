"""What no ledger of ours has written is no event, whoever wrote it: no reader of a ledger ends with a traceback."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from headway.tasks.core.run_progress import read_progress, read_steps
from headway.training.launch.diagnosis.rank_event_stream import last_events
from headway.training.observe.ledger import Ledger, read_events
from headway.training.observe.ledger_lines import parse_event
from headway.training.observe.step_summary import summarise_steps

GOOD = {"event": "step", "unix_s": 1.0, "step": 7, "duration_s": 0.5, "loss": 2.0}
VALIDATED = {"event": "validation", "metric": "log_loss", "value": 0.5, "best_step": 7, "stale": 0, "patience": None}
NONE = {
    "deep lists": b"[" * 5_000,
    "deep objects": b'{"a":' * 5_000,
    "no object": b"[1]",
    "no JSON": b"\xff{",
    "a number of 5,000 digits": b'{"event":"step","unix_s":' + b"9" * 5_000 + b"}",
    **{
        what: json.dumps(GOOD | fields).encode()
        for what, fields in {
            "no moment": {"unix_s": None},
            "a moment in words": {"unix_s": "noon"},
            "a moment that no calendar has": {"unix_s": 1e18},
            "an infinite one": {"unix_s": float("inf")},
            "one of 400 digits": {"unix_s": 10**400},
            "a step of 400 digits": {"step": 10**400},
            "no step": {"step": None},
            "a step in words": {"step": "x"},
            "a loss that is a list": {"loss": []},
            "a loss of 400 digits": {"loss": 10**400},
            "a loss in words": {"loss": "low"},
            "a span without end": {"outcome": "ok", "duration_s": None},
            "an endless span": {"duration_s": float("inf")},
            "a name that is none": {"event": ["step"]},
            "ranks that are none": {"ranks": [[]]},
            "a folder that is none": {"folder": {}},
            "a model of no known size": {"event": "model"},
            "a task without a name": {"event": "task"},
            "a span that ends after all calendars": {"unix_s": 253402300799.0, "duration_s": 2.0},
            "tokens below 0": {"tokens": -1},
            "a norm that is a list": {"grad_norm": []},
            "traffic without figures": {"traffic": {"all_reduce": None}},
            "traffic in words": {"traffic": {"all_reduce": {"num_calls": "x", "sent_bytes": 0, "busy_s": 0.0}}},
            "a validation that says not what was best": {"event": "validation", "value": 0.5, "metric": "log_loss"},
            "a validation of no measure": VALIDATED | {"metric": None},
            "a validation of null": VALIDATED | {"value": None},
            "a validation in words": VALIDATED | {"value": "good"},
            "a best step in words": VALIDATED | {"best_step": "7"},
            "a patience that is a list": VALIDATED | {"patience": []},
            "traffic of 400 digits": {"traffic": {"all_reduce": {"num_calls": 10**400, "sent_bytes": 0, "busy_s": 0}}},
        }.items()
    },
}


@pytest.mark.parametrize("what", NONE)
def test_a_line_that_no_ledger_writes_is_left_out_and_the_others_are_read(tmp_path: Path, what: str) -> None:
    spool = tmp_path / "attempts" / "001" / "ledger" / "rank-0.jsonl"
    with contextlib.closing(Ledger(spool)) as ledger:
        ledger.take_over(GOOD)
    with spool.open("ab") as stream:
        stream.write(NONE[what] + b"\n")
    assert read_events(spool) == read_steps(spool) == last_events(spool) == [GOOD]
    assert read_progress(tmp_path).step == 7


def test_a_loss_that_is_not_finite_is_an_event(tmp_path: Path) -> None:
    with contextlib.closing(Ledger(tmp_path / "spool.jsonl")) as ledger:
        ledger.take_over({**GOOD, "loss": float("nan")})
        ledger.take_over({**GOOD, "step": 8, "loss": float("inf")})
        ledger.take_over({**GOOD, "step": 9, "loss": "nan"})  # as a guard writes it
    assert [event["step"] for event in read_events(tmp_path / "spool.jsonl")] == [7, 8, 9]


def test_a_summary_of_steps_has_quantiles_where_a_step_has_a_figure() -> None:
    quantiles = b'"grad_norm":{"p50":0.5,"p95":1.5,"p99":2.0}'
    assert parse_event(b'{"event":"steps","unix_s":1.0,%s}' % quantiles) is not None
    assert parse_event(b'{"event":"step","step":1,"unix_s":1.0,%s}' % quantiles) is None


def test_a_step_that_says_nothing_but_its_number_is_one(tmp_path: Path) -> None:
    spool = tmp_path / "attempts" / "001" / "ledger" / "rank-0.jsonl"
    with contextlib.closing(Ledger(spool)) as ledger:
        ledger.take_over({"event": "step", "unix_s": 1.0, "step": 7, "duration_s": None, "tokens": None})
    assert read_progress(tmp_path).step == 7 and summarise_steps(read_events(spool)) is not None
