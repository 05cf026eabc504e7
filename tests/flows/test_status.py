"""Status reads well in a narrow terminal."""

from __future__ import annotations

import io

from rich.console import Console

from flows.status import ModelStatus, RunStatus, Status, print_status

REASON = "bits per byte 2.104 [2.086, 2.122], 0.310 below the champion's on the same 512 examples"


def shown(status: Status) -> list[str]:
    stream = io.StringIO()
    print_status(status, Console(file=stream, width=80, highlight=False))
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
    run = RunStatus(
        run="0123456789abcdef",
        going_on=True,
        owner="pid 123456 on a-host-with-a-rather-long-name.example.org",
        step=123_456,
        num_checkpoints=3,
        finished=False,
        folder="/folder",
    )
    lines = shown(Status(workspace="/workspace", models=[model], runs=[run]))
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    for fact in ("stdlib-language-model", "v11", "v12", model.champion_since, run.run, "123,456,", *REASON.split()):
        assert fact in words
    assert "0123456789abcdef  going on" in [line.rstrip() for line in lines]


def test_an_empty_workspace_says_so() -> None:
    assert {"no models yet", "no runs yet"} <= set(shown(Status(workspace="/workspace", models=[], runs=[])))
